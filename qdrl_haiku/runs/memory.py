"""Plans the memory of a run before anything is allocated."""

import contextlib
import math
import os
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from qdrl_haiku.distributed import sharding
from qdrl_haiku.runs import reevaluation
from qdrl_haiku.runs.engines import State
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import emitters, teachers
from qdrl_haiku.training.initial_states import InitialStates
from qdrl_haiku.training.setup import Setup

# What makes a part smaller, as settings are called.
_SETTINGS = {
  "networks": "population_size or the networks' hidden layers",
  "optimisers": "population_size or the networks' hidden layers",
  "replay": "replay_capacity or population_size",
  "environments": "num_envs, pool_size or population_size",
  "repertoire": "grid_shape, num_cells or resampling_depth",
  "batches": (
    "batch_size, grad_updates_per_step, num_critic_steps, num_envs or "
    "population_size"
  ),
  "evaluation": (
    "num_eval_episodes, population_size, variation_batch_size or "
    "num_initial_genotypes"
  ),
  "reevaluation": "num_reevaluations",
  "bookkeeping": "what the emitter or the controller remembers",
  "shared_replay": "replay_capacity",
  "recorded": "variation_batch_size, num_eval_episodes or episode_length",
}


class MemoryPlan(NamedTuple):
  """Holds the bytes that a run needs on all its devices together.

  What the compiled programs need beside it, such as activations, is not in it.

  Attributes:
    networks: of one agent's state, what is no optimiser.
    optimisers: of one agent's state, what is of a type of optax.
    replay: one agent's buffer.
    environments: one agent's, and the states in which episodes begin.
    num_agents: for how many there are slots, P or more; 0 if none are trained.
    batches: what all agents draw from their buffers for one iteration of
      learning, and on each device a critic that they share for a generation.
    copies: of buffers. With a controller, one on its way to a member that has
      diverged, and once more as it's sent, on each device; all a second time
      if children inherit them. The batches are gone by then.
    repertoire: all cells, with what tells them apart, and those next in line;
      0 without one. What of it a device holds, if they share it.
    bookkeeping: hyperparameters, fitness, decisions, and what controllers and
      emitters remember.
    num_devices: each has the repertoire and the bookkeeping; they share the
      agents.
    evaluation: the offspring of a generation, or the first genotypes if they
      need more; and of all agents that are evaluated the states in which
      episodes begin, and what is recorded of each step.
    reevaluation: the same of a batch of elites that are evaluated again between
      generations.
    shared_replay: of emitters whose agents learn from one buffer; each device
      has it.
    recorded: transitions of all offspring's episodes, for emitters that need
      them: those of its own that a device records, and all, on each device.
  """

  networks: int
  optimisers: int
  replay: int
  environments: int
  num_agents: int
  batches: int
  copies: int
  repertoire: int
  bookkeeping: int
  num_devices: int
  evaluation: int = 0
  reevaluation: int = 0
  shared_replay: int = 0
  recorded: int = 0

  @property
  def agents(self) -> int:
    """Bytes of all agents."""
    return self.num_agents * (
      self.networks + self.optimisers + self.replay + self.environments
    )

  @property
  def held(self) -> int:
    """Bytes of what is there from the first generation to the last."""
    return self.agents + self.num_devices * (
      self.repertoire + self.bookkeeping + self.shared_replay
    )

  @property
  def total(self) -> int:
    """Bytes of the most that is there at any time."""
    return (
      self.held
      + self.evaluation
      + max(self.batches, self.copies, self.reevaluation, self.recorded)
    )


def memory_plan(
  setup: Setup,
  state: State,
  initial: InitialStates,
  num_reevaluations: int = 0,
) -> MemoryPlan:
  """Works out from shapes what a run will hold."""
  members = state.members
  num_devices = 1 if setup.mesh is None else setup.mesh.size
  repertoire: Any = getattr(state, "repertoire", None)
  contenders = _bytes(getattr(state, "contenders", ()))
  on_each = _bytes(repertoire) + contenders
  if setup.map_elites is not None and setup.map_elites.shard_repertoire:
    genotypes = _bytes(repertoire.genotypes)
    on_each += genotypes // num_devices - genotypes
  buffers = _bytes(teachers.buffers(getattr(state, "emitter", None)))
  bookkeeping = _bytes(state) - buffers - contenders
  bookkeeping -= _bytes(members) + _bytes(repertoire)
  plan = MemoryPlan(
    *(0,) * 5,
    batches=num_devices * _shared_batches(setup, state),
    copies=0,
    repertoire=on_each,
    bookkeeping=bookkeeping,
    num_devices=num_devices,
    evaluation=_evaluation(
      setup,
      state,
      initial,
      sharding.num_slots(setup.mesh, _num_evaluated(setup)),
      setup.config.num_eval_episodes,
    ),
    reevaluation=_evaluation(
      setup,
      state,
      initial,
      reevaluation.batch_size(setup, num_reevaluations),
      num_reevaluations,
    )
    if num_reevaluations and setup.map_elites is not None
    else 0,
    shared_replay=buffers,
    recorded=(1 + num_devices) * _recorded(setup),
  )
  if members is None:
    return plan
  config, per_update = setup.config, setup.learner.batches_per_update
  num_updates = config_lib.iterations(config, per_update).num_updates
  num_drawn = num_updates * per_update * config.batch_size
  size = jax.tree.leaves(members)[0].shape[0]
  optimisers = sum(
    _bytes(x)
    for x in jax.tree.leaves(members.learner, is_leaf=_is_of_optax)
    if _is_of_optax(x)
  )
  return plan._replace(
    networks=(_bytes(members.learner) - optimisers) // size,
    optimisers=optimisers // size,
    replay=_bytes(members.replay) // size,
    environments=_bytes((members.environment, initial.pool)) // size,
    num_agents=size,
    batches=plan.batches
    + num_drawn
    * (_bytes(members.replay.storage) // config.replay_capacity),
    copies=_copies(setup, _bytes(members.replay), size, plan.num_devices),
  )


def available_bytes(devices: Iterable[jax.Device]) -> int | None:
  """Returns how much memory devices have, whatever else is in it."""
  devices = list(devices)
  if devices[0].platform == "cpu":
    if not hasattr(os, "sysconf"):  # As on Windows.
      return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_control_group_limits(pathlib.Path("/"))])
  total = 0
  for device in devices:
    try:
      stats = device.memory_stats() or {}
    except RuntimeError:  # Not every platform implements it.
      return None
    if "bytes_limit" not in stats:
      return None
    total += stats["bytes_limit"]
  return total


def check(plan: MemoryPlan, available: int | None) -> None:
  """Refuses a plan that is larger than the memory."""
  if available is None or plan.total <= available:
    return
  parts = {
    name: plan.num_agents * getattr(plan, name)
    for name in ("networks", "optimisers", "replay", "environments")
  }
  parts["replay"] += plan.copies
  parts["repertoire"] = plan.num_devices * plan.repertoire
  parts["batches"] = plan.batches
  parts["evaluation"] = plan.evaluation
  parts["reevaluation"] = plan.reevaluation
  parts["shared_replay"] = plan.num_devices * plan.shared_replay
  parts["recorded"] = plan.recorded
  parts["bookkeeping"] = plan.num_devices * plan.bookkeeping
  largest = max(parts, key=lambda name: parts[name])
  raise ValueError(
    f"this run would need {_with_unit(plan.total)} of memory, but there are "
    f"{_with_unit(available)}; {largest} would take the most, "
    f"{_with_unit(parts[largest])}: lower {_SETTINGS[largest]}."
  )


def describe(plan: MemoryPlan, available: int | None) -> str:
  """Words a plan for people."""
  each = ""
  if plan.num_devices > 1:
    each = f" on each of {plan.num_devices} devices"
  rows = {
    "networks of an agent": plan.networks,
    "optimisers of an agent": plan.optimisers,
    "replay of an agent": plan.replay,
    "environments of an agent": plan.environments,
    f"agents, {plan.num_agents} in all": plan.agents,
    "batches to learn from": plan.batches,
    "replay while children inherit": plan.copies,
    "agents while they are evaluated": plan.evaluation,
    "elites evaluated again": plan.reevaluation,
    "transitions of episodes": plan.recorded,
    f"shared replay{each}": plan.shared_replay,
    f"repertoire{each}": plan.repertoire,
    "memory needed": plan.total,
  }
  lines = [f"{name:<34}{_with_unit(x):>10}" for name, x in rows.items() if x]
  of = "" if available is None else f" of {_with_unit(available)}"
  return "\n".join(lines) + of


def _copies(
  setup: Setup, replay: int, num_slots: int, num_devices: int
) -> int:
  """Counts the bytes of copies, see `MemoryPlan`."""
  config = setup.config
  total = 0
  if setup.controller is not None:
    total += num_devices * 2 * replay // num_slots
  if config.inherit_replay and setup.controller is not None:
    total += replay
  return total


def _num_evaluated(setup: Setup) -> int:
  """Counts the agents that are evaluated at once, at most."""
  qd = setup.map_elites
  if qd is None:
    return setup.config.population_size
  num_later = setup.num_offspring + setup.num_resampled
  return max(num_later, qd.num_initial_genotypes)


def _evaluation(
  setup: Setup,
  state: State,
  initial: InitialStates,
  num_agents: int,
  num_episodes: int,
) -> int:
  """Counts the bytes of agents that are evaluated, see `MemoryPlan`."""
  env, descriptor = setup.eval_env, setup.eval_env.descriptor
  repertoire: Any = getattr(state, "repertoire", None)
  elite = env_state = per_step = 0
  if repertoire is not None:  # Members are there anyway.
    elite = _bytes(repertoire.genotypes) // repertoire.fitness.shape[0]
  if drawn := jax.tree.leaves(initial.evaluation):
    num_drawn = math.prod(drawn[0].shape[:2])
    env_state = _bytes(initial.evaluation) // num_drawn
  if setup.map_elites is not None or setup.evaluate is not None:
    per_step = 0 if descriptor is None else descriptor.size
  if setup.evaluate is not None:
    # Observations, and what is said of each.
    per_step += 2 * env.observation_size
  recorded = env.episode_steps * per_step * np.dtype(np.float32).itemsize
  return num_agents * (elite + num_episodes * (env_state + recorded))


def _shared_batches(setup: Setup, state: State) -> int:
  """Counts the bytes of what a critic that agents share learns from at once."""
  buffers = teachers.buffers(getattr(state, "emitter", None))
  if setup.map_elites is None or not buffers:
    return 0
  teaching, config = setup.map_elites.teaching, setup.config
  num_steps = teaching.num_critic_steps + teaching.num_policy_steps
  row = sum(_bytes(x.storage) for x in buffers) // config.replay_capacity
  return num_steps * config.batch_size * row


def _recorded(setup: Setup) -> int:
  """Counts the bytes of transitions that emitters are told of."""
  qd, env = setup.map_elites, setup.eval_env
  if qd is None or "transitions" not in emitters.make_emitter(setup).needs:
    return 0
  assert env.descriptor is not None
  steps = setup.config.num_eval_episodes * env.episode_steps
  # Two observations and descriptors, the action, reward and discount.
  size = 2 * (env.observation_size + env.descriptor.size) + env.action_size + 2
  size *= np.dtype(np.float32).itemsize
  return _num_evaluated(setup) * steps * size


def _bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _is_of_optax(tree: Any) -> bool:
  return type(tree).__module__.split(".")[0] == "optax"


def _control_group_limits(root: pathlib.Path) -> list[int]:
  """Returns bytes that the process's control groups allow, where they limit.

  Each is within those above it. A container's file may name a group that can't
  be seen from inside; then the top is the container's own.
  """
  limits = []
  groups = []
  with contextlib.suppress(OSError):
    groups = (root / "proc/self/cgroup").read_text().splitlines()
  for group in groups:
    _, controllers, path = group.split(":", 2)
    # Version 2 names no controllers.
    names = {"": "memory.max", "memory": "memory.limit_in_bytes"}
    if controllers in names:
      directory = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
      for above in (directory, *directory.parents):
        with contextlib.suppress(OSError):
          text = (above / names[controllers]).read_text().strip()
          limits += [int(text)] if text.isdigit() else []
  return limits


def _with_unit(num_bytes: float) -> str:
  for unit in ("B", "KiB", "MiB", "GiB"):
    if num_bytes < 1024:
      return f"{num_bytes:.{0 if unit == 'B' else 1}f} {unit}"
    num_bytes /= 1024
  return f"{num_bytes:.1f} TiB"
