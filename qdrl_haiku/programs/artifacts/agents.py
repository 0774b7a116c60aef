"""The agents that a run left behind: to look at, or to begin another with."""

import contextlib
from collections.abc import Callable, Collection, Iterator

import jax

from qdrl_haiku import learners, types
from qdrl_haiku.programs.storage import checkpoints
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.types import Record


def read_best(
  learner: learners.Learner, logdir: str
) -> tuple[types.State, Record]:
  """Reads the best agent that a run ever evaluated.

  Args:
    learner: as the run had it.
    logdir: directory of the run.

  Returns:
    The agent's state, for `learner.act_greedy`; and the record of when it was
    evaluated, its return and its hyperparameters.

  Raises:
    ValueError: if there is no such run, or if its agents are of another kind.
  """
  like = jax.eval_shape(learner.init, jax.random.key(0))
  return _read(RunDirectory(logdir), "best", lambda _: like)


def read_best_agent_record(logdir: str) -> Record:
  """Reads what is known of the best agent that a run ever evaluated."""
  with _open_latest(RunDirectory(logdir), "best") as (stored, step):
    return stored.record(step)


def read_agents(
  learner: learners.Learner, logdir: str
) -> tuple[types.State, Record]:
  """Reads the agents in a run's latest checkpoint, as `read_best` does.

  Returns:
    The agents' states, leaves [P, ...]; and the checkpoint's record, with the
    members' last `returns`, None where one had diverged.
  """

  def like(record: Record) -> types.State:
    keys = jax.random.split(jax.random.key(0), len(record["returns"]))
    return jax.eval_shape(jax.vmap(learner.init), keys)

  # There may be more slots than agents.
  return _read(RunDirectory(logdir), "checkpoints", like, ["learner"])


@contextlib.contextmanager
def _open_latest(
  directory: RunDirectory, folder: str
) -> Iterator[tuple[checkpoints.Checkpoints, int]]:
  """Opens the checkpoints of a folder, and finds the step of the latest."""
  directory.settings()
  path = directory.path / folder
  # A look at a run must not create the folder.
  stored = checkpoints.Checkpoints(path) if path.is_dir() else None
  if stored is None or not stored.steps():
    raise ValueError(
      f"{directory.path} has nothing in {folder}/; name the directory of a "
      "run that finished a generation.")
  try:
    yield stored, stored.steps()[0]
  except (MemoryError, OSError) as error:
    reason = str(error) or "the memory ran out"
    raise ValueError(
      f"{directory.path} can't be read: {reason}; fix that first.") from error


def _read(
  directory: RunDirectory, folder: str, like: Callable[[Record], types.State],
  in_slots: Collection[str] = (),
) -> tuple[types.State, Record]:
  """Reads learners' states and the record of a folder's latest checkpoint."""
  with _open_latest(directory, folder) as (stored, step):
    record = stored.record(step)
    # Each of several processes reads them for itself.
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
      like(record))
    layouts = [shapes]
    if isinstance(shapes, learners.SkillState):
      layouts.append(_layout_of_0_4(shapes))
    for layout in layouts:
      try:
        restored = stored.restore(step, {"learner": layout}, in_slots)
        break
      except checkpoints.DamagedCheckpoint:
        raise
      except (ValueError, KeyError) as error:
        other_kind = error
    else:
      raise ValueError(
        f"{directory.path} holds agents of another kind; use the learner, the "
        "environment and the layer sizes of that run.") from other_kind
    places, leaves = map(id, jax.tree.leaves(layout)), jax.tree.leaves(restored)
    by_place = dict(zip(places, leaves, strict=True))
    return jax.tree.map(lambda x: by_place[id(x)], shapes), record


def _layout_of_0_4(state: learners.SkillState) -> dict[str, types.Tree]:
  """Returns an agent with skills as runs until 0.4 stored it."""
  learned = dict(state.learned)
  optimizers = {
    name.removeprefix("log_").removesuffix("_params") + "_optimizer_state": x
    for name, x in state.optimizers.items()}
  of_all = {
    "agent": state.agent,
    "observation_statistics": state.observation_statistics}
  if "best_return" not in learned:
    return {**of_all, **learned, **optimizers}
  best = learned.pop("best_return")
  return {
    **of_all, "best_return": best,
    "diversity": {**dict.fromkeys(of_all), **learned},
    "diversity_optimizers": optimizers}
