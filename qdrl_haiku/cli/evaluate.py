"""Evaluates an agent that a run left behind; the run stays as it is.

python launchers/evaluate.py --logdir=logs/my_run --member=3 --render=gif
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from qdrl_haiku.cli import (
  devices,
  evaluation_flags,
  launch,
  shared_flags,
  skill_flags,
)
from qdrl_haiku.cli.evaluation_flags import EvaluationFlags

_DEFAULT_EPISODES = 16
# Flags that mean something else here than when the run was started.
_OWN = (
  "compilation_cache_dir", "logdir", "num_eval_episodes", "resume", "seed"
)  # fmt: skip


def main(flags: EvaluationFlags) -> None:
  """Evaluates the agent that the flags ask for.

  Args:
    flags: of the launcher.
  """
  flags, logdir, choice = evaluation_flags.checked(flags)
  launch.refuse_other_settings(flags, logdir, skill_flags.of_agents())
  flags = launch.with_settings_of(flags, logdir, besides=_OWN)
  devices.prepare_jax(flags)
  import jax

  from qdrl_haiku import artifacts, environments
  from qdrl_haiku.artifacts import export
  from qdrl_haiku.drawing import episodes
  from qdrl_haiku.storage import strict_json

  num_episodes = flags.num_eval_episodes
  of_agent = flags
  if flags.skill is not None:  # They needn't show all skills.
    of_agent = dataclasses.replace(flags, num_eval_episodes=None)
  agent = shared_flags.make_agent(of_agent)
  learner, eval_env = agent.learner, agent.eval_env
  if flags.skill is not None:
    eval_env = skill_flags.one_skill(flags, eval_env, flags.skill)
  elif num_episodes is None:
    num_episodes = agent.num_eval_episodes
  if flags.render:
    with _as_flag(flags, "render"):
      scene = environments.scene(eval_env)
      episodes.check_format(scene, flags.render)
  state, which, facts = _read_agent(flags, logdir, learner, choice)
  if flags.skill is not None:
    which += f", skill {flags.text_of('skill')}"
  key = jax.random.key(flags.seed)
  evaluation = artifacts.evaluate_agent(
    eval_env, learner, state, key, num_episodes or _DEFAULT_EPISODES
  )
  summary = facts | artifacts.summarize_evaluation(
    evaluation, eval_env.descriptor
  )
  if flags.export:
    with _as_flag(flags, "export"):
      export.save(
        flags.export,
        learner,
        state,
        # A learner of one's own doesn't say which it has.
        activation=None if ":" in flags.learner else flags.activation,
        info={"env_name": flags.env_name, "agent": which},
      )
  if flags.render:
    episode = episodes.first_episode(eval_env, learner, state, key, scene)
    title = f"{flags.env_name}: {which}"
    with _as_flag(flags, "render_to"):
      episodes.render(str(flags.render_to), flags.render, scene, episode, title)
  print(f"{logdir}: {which}")
  width = max(map(len, summary))
  for name, value in summary.items():
    print(f"  {name:<{width}} {value:g}")
  for path in filter(None, (flags.export, flags.render_to)):
    print(f"wrote {path}")
  print(strict_json.to_json({"agent": which, **summary}))


def _read_agent(
  flags: EvaluationFlags, logdir: str, learner: Any, choice: str
) -> tuple[Any, str, dict[str, Any]]:
  """Reads the agent that a flag chooses.

  Args:
    flags: of the launcher.
    logdir: directory of the run.
    learner: as the run had it.
    choice: the flag's name.

  Returns:
    The agent's state, who it is, and what else is known of it.

  Raises:
    ValueError: if there is no such agent.
  """
  from qdrl_haiku import artifacts

  if choice == "best":
    state, record = artifacts.read_best(learner, logdir)
    return state, f"best agent, of step {record['step']}", {}
  if choice == "member":
    return _read_member(flags.member or 0, logdir, learner)
  return _read_elite(flags, logdir, learner, choice)


def _read_member(
  member: int, logdir: str, learner: Any
) -> tuple[Any, str, dict[str, Any]]:
  """Reads the agent of --member, as `_read_agent` does."""
  import jax

  from qdrl_haiku import artifacts
  from qdrl_haiku.storage.directory import RunDirectory

  emitter = RunDirectory(logdir).settings().get("emitter", "pbt")
  if emitter != "pbt":
    raise ValueError(
      f"--member={member}, but no agents trained in a run with "
      f"--emitter={emitter}; leave it out for the best elite, or give --cell."
    )
  states, record = artifacts.read_agents(learner, logdir)
  size = len(record["returns"])
  if not 0 <= member < size:
    raise ValueError(
      f"--member={member}, but there are {size} agents; give one from 0 to "
      f"{size - 1}."
    )
  which = f"member {member} after generation {record['generation']}"
  return jax.tree.map(lambda x: x[member], states), which, {}


def _read_elite(
  flags: EvaluationFlags, logdir: str, learner: Any, choice: str
) -> tuple[Any, str, dict[str, Any]]:
  """Reads the agent of --cell or --descriptor, as `_read_agent` does."""
  import jax

  from qdrl_haiku.artifacts import repertoires

  repertoire, step = repertoires.read_latest(learner, logdir)
  cell = flags.cell
  with _as_flag(flags, choice):
    if cell is not None:
      repertoires.check_cell(repertoire, cell)
    else:
      cell = repertoires.nearest_occupied(
        repertoire, evaluation_flags.numbers_of_descriptor(flags)
      )
  genotype = jax.tree.map(lambda x: x[cell], repertoire.genotypes.genotype)
  where = ",".join(f"{x:.3g}" for x in repertoire.descriptors[cell])
  return (
    learner.from_genotype(genotype),
    f"cell {cell} of the repertoire of step {step}, found at {where}",
    {"cell": cell, "cell_return": float(repertoire.fitness[cell])},
  )


@contextlib.contextmanager
def _as_flag(flags: EvaluationFlags, name: str) -> Iterator[None]:
  """Says which flag it was that asked for what can't be done."""
  flag = f"--{name}={flags.text_of(name)}"
  try:
    yield
  except OSError as error:
    raise ValueError(
      f"{flag} can't be written ({error.strerror})."
    ) from error
  except ValueError as error:
    raise ValueError(f"{flag}: {error}") from error


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.run_main(main, EvaluationFlags)
