"""Plans the memory of a run, from shapes, before anything is allocated."""

import contextlib
import functools
import math
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from qdrl_haiku import files, specs, types
from qdrl_haiku.distributed import sharding
from qdrl_haiku.programs.runs import reevaluation
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training.repertoires import describers, teachers
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import InitialStates, State, Trainer

# Parts, and the settings that make them smaller; `_settings` says which
# settings members, agents and learning are.
_SETTINGS: dict[str, tuple[str, ...]] = {
  "networks and optimisers": ("the networks' hidden layers", "members"),
  "replay": ("replay_capacity", "members"),
  "environments": ("num_envs", "members"),
  "repertoire": ("grid_shape", "num_cells"),
  "emitters and controller": ("the emitters' and the controller's settings",),
  "evaluation": ("num_eval_episodes", "episode_length", "agents"),
  "batches to learn from": ("learning",),
  "replay while children inherit": ("replay_capacity", "members"),
  "elites evaluated again": ("num_reevaluations",)}
_FLOAT = np.dtype(np.float32).itemsize


class MemoryPlan(NamedTuple):
  """Holds the bytes that a run needs on all its devices together, by part.

  What the compiled programs need beside it, such as activations, is not in it.
  """

  held: dict[str, int]  # From the first generation to the last.
  in_turn: dict[str, int]  # One at a time.

  @property
  def total(self) -> int:
    """Bytes of the most that is there at any time."""
    return sum(self.held.values()) + max(self.in_turn.values())


def memory_plan(
  trainer: Trainer, state: State, initial: InitialStates, num_reevaluations: int
) -> MemoryPlan:
  """Sums up what a run holds, of the shapes of its states.

  Args:
    trainer: what is run.
    state: of training, or its shapes; so is `initial`.
    initial: the states in which episodes of one generation begin.
    num_reevaluations: episodes of each elite at the end, 0 for none.
  """
  setup = trainer.setup
  num_devices = 1 if setup.mesh is None else setup.mesh.size
  qd, members = setup.map_elites, state.members if state.population else None
  repertoire = _bytes((state.repertoire, state.describer)) * num_devices
  if qd is not None and qd.shard_repertoire:
    repertoire -= (num_devices - 1) * _bytes(state.repertoire.genotypes)
  evaluation = functools.partial(_evaluation, trainer, state, initial)
  num_agents = sharding.num_sharded_slots(
    setup.mesh, max(setup.sizes.first, setup.sizes.evaluated))
  held = {
    "repertoire": repertoire,
    "emitters and controller": num_devices
    * (_bytes(state.emitter) - _bytes(members)),
    "evaluation": evaluation(num_agents, setup.config.num_eval_episodes)}
  batches = num_devices * _shared_batches(setup, state)
  in_turn = {"batches to learn from": batches}
  if qd is not None and num_reevaluations:
    in_turn["elites evaluated again"] = evaluation(
      reevaluation.reevaluation_batch_size(setup, num_reevaluations),
      num_reevaluations)
  if members is not None:
    replay, config = _bytes(members.replay), setup.config
    held |= {
      "networks and optimisers": _bytes(members.learner),
      "replay": replay,
      "environments": _bytes((members.environment, initial.pool))}
    size = jax.tree.leaves(members)[0].shape[0]
    plan = config_lib.training_iterations(config, setup.learner)
    rows = size * plan.num_updates * setup.learner.batches_per_update
    rows *= math.prod(setup.learner.batch_shape(config.batch_size))
    if setup.on_policy:
      rows = size * plan.num_env_steps * config.num_envs
    in_turn["batches to learn from"] += rows * _bytes(
      members_lib.member_transition_example(setup))
    if setup.controller is not None:
      # Per device, two copies of one buffer, for a diverged member; and, if
      # children inherit replay, all buffers a second time.
      in_turn["replay while children inherit"] = (
        num_devices * 2 * replay // size + setup.config.inherit_replay * replay)
  return MemoryPlan(held, in_turn)


def available_memory_bytes(devices: Iterable[jax.Device]) -> int | None:
  """Returns how much memory a process's devices and the others' have."""
  devices = list(devices)
  if devices[0].platform == "cpu":
    if sys.platform == "win32":
      return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = _control_group_limits(pathlib.Path("/"))
    return jax.process_count() * min([machine, *limits])
  total = 0
  for device in devices:
    stats = None
    with contextlib.suppress(RuntimeError):  # Not every platform implements it.
      stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
      return None
    total += stats["bytes_limit"]
  return jax.process_count() * total


def check_memory(
  plan: MemoryPlan, available: int | None, setup: Setup
) -> None:
  """Refuses a plan that is larger than the memory.

  Args:
    plan: what a run holds.
    available: bytes; None if unknown.
    setup: of the run, whose settings the message names.

  Raises:
    ValueError: if the plan is larger.
  """
  if available is None or plan.total <= available:
    return
  parts = plan.held | plan.in_turn
  largest = max(parts, key=parts.__getitem__)
  raise ValueError(
    f"this run would need {_format_bytes(plan.total)} of memory, but there are "
    f"{_format_bytes(available)}; {largest} would take the most, "
    f"{_format_bytes(parts[largest])}: lower {_settings(setup, largest)}.")


def _settings(setup: Setup, part: str) -> str:
  """Names the settings that a setup has and that make a part smaller."""
  qd, members, taught = setup.map_elites, ["population_size"], False
  agents = members
  if qd is not None:
    varied = ["variation_batch_size"]
    if isinstance(qd.emitter, tuple) and qd.emitter[0].batch_size:
      members, varied = ["the numbers in emitter"], []
    is_named = setup.trains_members or not varied
    agents = ["num_initial_genotypes", *varied, *members * is_named]
    taught = not set(config_lib.TAUGHT).isdisjoint(qd.emitter_names)
  learning = ["batch_size", *["num_critic_steps"] * taught]
  if setup.on_policy:
    learning = ["rollout_length", "num_envs", *members]
  elif setup.trains_members:
    learning += ["grad_updates_per_step", *members]
  named = {"members": members, "agents": agents, "learning": learning}
  *others, last = (y for x in _SETTINGS[part] for y in named.get(x, [x]))
  return ", ".join(others) + " or " * bool(others) + last


def describe_memory_plan(plan: MemoryPlan, available: int | None) -> str:
  """Returns a table of a plan."""
  parts = plan.held | plan.in_turn
  rows = {name: parts.get(name, 0) for name in _SETTINGS}
  rows["memory needed"] = plan.total
  lines = [f"{name:<34}{_format_bytes(x):>10}" for name, x in rows.items() if x]
  of = "" if available is None else f" of {_format_bytes(available)}"
  return "\n".join(lines) + of


def _evaluation(
  trainer: Trainer, state: State, initial: InitialStates,
  num_agents: int, num_episodes: int,
) -> int:
  """Counts the bytes of agents, of first states, and of what is recorded."""
  setup = trainer.setup
  env, qd = setup.eval_env, setup.map_elites
  elite = env_state = per_step = 0
  seen: list[types.Tree] = []
  if drawn := jax.tree.leaves(initial.evaluation):
    num_drawn = math.prod(drawn[0].shape[:2])
    env_state = _bytes(initial.evaluation) // num_drawn
  descriptor = 0 if env.descriptor is None else env.descriptor.size
  looks = episode = 0
  if qd is not None:
    shown = jax.eval_shape(qd.container.show, state.repertoire)
    elite = _bytes(shown.genotypes) // shown.fitness.size
    per_step = descriptor
    if qd.describer is not None:
      seen_of, kept, _ = describers.describer_shapes(qd.describer, env)
      looks, episode = _bytes(seen_of), _bytes(kept)
    if "transitions" in trainer.needs:
      per_step += 2 * descriptor + 2
      seen = [env.observation_spec] * 2 + [env.action_spec]
  elif setup.evaluate is not None:
    # Observations, and what is said of each.
    per_step = descriptor
    seen = [env.observation_spec] * 2
  per_step = per_step * _FLOAT + _bytes(specs.shapes(seen))
  recorded = env.episode_length * (per_step + looks) + episode
  return num_agents * (elite + num_episodes * (env_state + recorded))


def _shared_batches(setup: Setup, state: State) -> int:
  """Counts the bytes of what critics that agents share learn from at once."""
  qd, buffers = setup.map_elites, teachers.teacher_buffers(state.emitter)
  if qd is None or not buffers:
    return 0
  steps = qd.teaching.num_critic_steps + qd.teaching.num_policy_steps
  row = sum(_bytes(x.storage) for x in buffers)
  return steps * setup.config.batch_size * row // setup.config.capacity


def _bytes(tree: types.Tree) -> int:
  """Returns the bytes of a tree's arrays, or of their shapes."""
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _control_group_limits(root: pathlib.Path) -> list[int]:
  """Returns the memory limits, in bytes, of the process's control groups."""
  names = {"": ["memory.max"], "memory": ["memory.limit_in_bytes"]}
  texts = files.control_group_texts(names, root)
  return [int(text) for text in texts if text.isdigit()]


def _format_bytes(num_bytes: float) -> str:
  """Returns a number of bytes for people."""
  for unit in ("B", "KiB", "MiB", "GiB"):
    if num_bytes < 1024:
      return f"{num_bytes:.{0 if unit == 'B' else 1}f} {unit}"
    num_bytes /= 1024
  return f"{num_bytes:.1f} TiB"
