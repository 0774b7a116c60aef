"""Measures the parts of training, by the code that trains."""

import dataclasses
import functools
import resource
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import map_elites, types
from qdrl_haiku.benchmarks import peak, timing
from qdrl_haiku.cpu import one_by_one
from qdrl_haiku.distributed import sharding as sharding_lib
from qdrl_haiku.runs import programs, records
from qdrl_haiku.storage.program_cache import ProgramCache
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import (
  generation,
  initial_states,
  learning,
  population,
)
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training.setup import Setup

Row = dict[str, Any]
"""Numbers by name."""

# What one interval may take.
_INTERVAL_SECONDS = 6.0
# What a device does in a second, about: floating-point operations of updates,
# and environment steps. Not measured, so that intervals are the same each time.
_FLOPS = {"cpu": 1e11}
_FLOPS_OF_ACCELERATORS = 1e13
_STEPS = 1e4


def shortened(setup: Setup, *, min_replay_size: int | None = None) -> Setup:
  """Gives a population an interval that can be measured in seconds."""
  assert setup.mesh is not None
  config, per_update = setup.config, setup.learner.batches_per_update
  platform = setup.mesh.devices.flat[0].platform
  flops = _FLOPS.get(platform, _FLOPS_OF_ACCELERATORS)
  update_seconds = peak.flops_per_update(setup) / flops
  seconds = config.population_size / setup.mesh.size * (
    1 / _STEPS + config.grad_updates_per_step * update_seconds
  )
  unit = config_lib.iteration_steps(
    num_envs=config.num_envs,
    grad_updates_per_step=config.grad_updates_per_step,
    batches_per_update=per_update,
  )
  interval = unit * max(1, round(_INTERVAL_SECONDS / seconds / unit))
  interval = min(interval, config.perturbation_interval)
  if min_replay_size is None:
    min_replay_size = min(config.min_replay_size, interval)
  return setup._replace(
    config=dataclasses.replace(
      config, perturbation_interval=interval, min_replay_size=min_replay_size
    )
  )


def generations(
  setup: Setup,
  repetitions: int,
  run_key: types.Key,
  start: float,
  cache: ProgramCache | None = None,
) -> Row:
  """Times whole generations, compiled and called as a run does."""
  assert setup.mesh is not None
  begin = time.monotonic()
  made = programs.make_programs(setup, setup.mesh, run_key, cache)
  # Both at once, as a run does.
  made = programs.compile_generation(made)
  state = jax.block_until_ready(made.init(run_key))
  made.wait_to_train()
  compile_seconds = time.monotonic() - begin
  initial = made.draw(run_key, 1)
  state, trained = jax.block_until_ready(
    made.train(state, initial.pool, run_key)
  )
  first_update = time.monotonic() - start
  state, _ = jax.block_until_ready(
    made.evaluate(state, trained, initial.evaluation, run_key)
  )
  first_generation = time.monotonic() - start
  seconds: list[float] = []
  number = 1
  while len(seconds) < number:
    begin = time.monotonic()
    state, report = jax.block_until_ready(
      made.step(state, run_key, 2 + len(seconds))
    )
    seconds.append(time.monotonic() - begin)
    if len(seconds) == 1:
      number = timing.affordable(seconds[0], repetitions)
  median = statistics.median(seconds)
  rates = {
    name.removeprefix("training/"): x
    for name, x in records.rates(
      setup, jax.device_get(report), median
    ).items()
  }
  return {
    **rates,
    **peak.of_peak(setup, rates["updates_per_second"]),
    "generation_seconds": median,
    "repetitions": number,
    "compile_seconds": compile_seconds,
    "time_to_first_update_seconds": first_update,
    "time_to_first_generation_seconds": first_generation,
  }


def collecting(setup: Setup, repetitions: int, run_key: types.Key) -> Row:
  """Times the steps that agents collect, without learning."""
  config = setup.config
  steps = (repetitions + 1) * config.perturbation_interval
  if steps >= config.replay_capacity:
    raise ValueError(
      f"replay_capacity {config.replay_capacity} must be more than the {steps} "
      "steps that are collected; raise it, or lower perturbation_interval."
    )
  # Learning begins when the buffer is full.
  setup = setup._replace(
    config=dataclasses.replace(
      config, min_replay_size=config.replay_capacity, random_warm_up=False
    )
  )
  members, hyperparams, keys = _population(setup, run_key)

  pool = jax.jit(lambda keys: initial_states.draw_pool(setup, keys))(keys)

  def train(members: Any) -> Any:
    return setup.over_members(learning.train_members)(
      members._replace(pool=pool), hyperparams, keys
    )[0]

  median = timing.median_seconds(
    jax.jit(train, donate_argnums=0), members, repetitions
  )
  steps = config.population_size * config.perturbation_interval
  return {"env_steps_per_second": steps / median}


def updating(setup: Setup, repetitions: int, run_key: types.Key) -> Row:
  """Times sampling and updates, without environments."""
  assert setup.mesh is not None
  plan = config_lib.iterations(setup.config, setup.learner.batches_per_update)
  members, hyperparams, keys = _population(setup, run_key)
  full = members.replay._replace(
    size=jnp.full_like(members.replay.size, setup.config.replay_capacity)
  )

  def interval(
    setup: Setup, states: Any, buffers: Any, hyperparams: Any, keys: Any
  ) -> Any:
    def iteration(states: Any, t: types.Array) -> Any:
      own = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
      return learning.learn(setup, states, buffers, hyperparams, own)[0], None

    return jax.lax.scan(iteration, states, jnp.arange(plan.num_iterations))[0]

  def learn(states: Any) -> Any:
    return setup.over_members(interval)(
      states, full, hyperparams, keys
    )

  median = timing.median_seconds(
    jax.jit(learn, donate_argnums=0), members.learner, repetitions
  )
  updates = (
    plan.num_iterations * plan.num_updates * setup.learner.batches_per_update
  )
  rate = setup.config.population_size * updates / median
  return {"updates_per_second": rate, **peak.of_peak(setup, rate)}


def exploiting(setup: Setup, repetitions: int, run_key: types.Key) -> Row:
  """Times a decision, and children taking over from their parents."""
  controller, config = setup.controller, setup.config
  assert controller is not None
  members, hyperparams, _ = _population(setup, run_key)
  size = config.population_size
  fitness = jnp.arange(size, dtype=jnp.float32)

  state = jax.jit(lambda key: controller.init(key, size)[0])(run_key)

  # As in a generation: divided among devices they would wait for each other.
  update = sharding_lib.replicated(
    setup.mesh, one_by_one.alone(controller.update)
  )

  # All that a decision makes is handed on, or it would be left out.
  def exploit(carried: Any) -> Any:
    members, state, hyperparams = carried
    state, decision = update(state, run_key, fitness, hyperparams)
    members = population.inherit(
      setup, members, decision.parents, jnp.ones(size, bool)
    )
    return members, state, decision.hyperparams

  def decide(carried: Any) -> Any:
    state, hyperparams = carried
    state, decision = update(state, run_key, fitness, hyperparams)
    return state, decision.hyperparams

  # Once before, so that all is placed as it stays, and compiled once more.
  decide = jax.jit(decide)
  decided = decide((state, hyperparams))
  decision_median = timing.median_seconds(decide, decided, repetitions)
  _, decision = controller.update(state, run_key, fitness, hyperparams)
  num_replaced = int(jnp.sum(decision.parents != jnp.arange(size)))
  inherited = members.learner
  if config.inherit_replay:
    inherited = (members.learner, members.replay)
  moved = sum(x.nbytes // x.shape[0] for x in jax.tree.leaves(inherited))
  exploit = jax.jit(exploit, donate_argnums=0)
  exploited = exploit((members, *decided))
  median = timing.median_seconds(exploit, exploited, repetitions)
  return {
    "exploit_milliseconds": 1000 * median,
    "decision_milliseconds": 1000 * decision_median,
    "num_replaced": num_replaced,
    "moved_bytes": num_replaced * moved,
  }


def adding(repetitions: int) -> Row:
  """Times MAP-Elites without agents, in a grid and in a Voronoi tessellation.

  One generation varies 1,024 parents, scores them by a sum of squares, and
  adds them to 10,000 cells; a genotype has 1,000 parameters.
  """
  lower, upper = (-1.0, -1.0), (1.0, 1.0)
  tessellations: dict[str, map_elites.Tessellation] = {
    "grid": map_elites.Grid((100, 100), lower, upper),
    "cvt": map_elites.cvt(jax.random.key(0), 10_000, lower, upper),
  }

  def vary(key: types.Key, first: Any, second: Any) -> Any:
    return map_elites.iso_line(key, first, second, 0.1, 0.1)

  emitter = map_elites.genetic_emitter(vary, 1024)

  def generation(state: Any) -> Any:
    repertoire, key = state
    key, ask_key = jax.random.split(key)
    x, _ = emitter.ask((), repertoire, ask_key)
    fitness = -jnp.sum(jnp.square(x), axis=1)
    return repertoire.add(x, fitness, jnp.tanh(x[:, :2])), key

  row = {}
  for name, tessellation in tessellations.items():
    first = jax.random.normal(jax.random.key(1), (1024, 1000))
    repertoire = map_elites.Repertoire.init(first[0], tessellation)
    repertoire = repertoire.add(
      first, -jnp.sum(jnp.square(first), axis=1), jnp.tanh(first[:, :2])
    )
    median = timing.median_seconds(
      jax.jit(generation, donate_argnums=0),
      (repertoire, jax.random.key(2)),
      repetitions,
    )
    row[f"generation_milliseconds/{name}"] = 1000 * median
  return row


def resources(setup: Setup, run_key: types.Key) -> Row:
  """Measures what memory a population takes."""
  assert setup.mesh is not None
  made = programs.make_programs(setup, setup.mesh, run_key)
  replay = made.state.members.replay
  num_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replay))
  num_rows = replay.size.shape[0] * setup.config.replay_capacity
  device = setup.mesh.devices.flat[0]
  if device.platform == "cpu":
    most_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  else:
    most_bytes = device.memory_stats()["peak_bytes_in_use"]
  return {
    "replay_bytes_per_transition": num_bytes // num_rows,
    "peak_memory_bytes": most_bytes,
  }


def _population(setup: Setup, run_key: types.Key) -> Any:
  """Makes members, hyperparameters and keys of a population."""
  state = jax.jit(functools.partial(generation.init, setup))(run_key)
  keys = members_lib.member_keys(run_key, 1, setup.config.population_size)
  return state.members, state.hyperparams, keys
