"""Measures the speed of training and of its parts, by the code that trains."""

import dataclasses
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import map_elites, platform, types
from qdrl_haiku.distributed import sharding as sharding_lib
from qdrl_haiku.programs.runs import compilation, records
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import generation, learning, population
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import Members
from qdrl_haiku.types import Record, State, Tree

if sys.platform != "win32":
  import resource

# Seconds of a measurement, compilation aside, and of an interval, at most.
_SECONDS = 40.0
_INTERVAL_SECONDS = 6.0
# Floating-point operations of updates, and environment steps, that a device
# does per second, about. Not measured, so that intervals are always the same.
_FLOPS = {"cpu": 1e11}
_FLOPS_OF_ACCELERATORS = 1e13
_STEPS = 1e4


def shorten_for_benchmark(
  setup: Setup, *, min_replay_size: int | None = None
) -> Setup:
  """Returns a setup with generations so short that each takes seconds."""
  assert setup.mesh is not None
  config, learner = setup.config, setup.learner
  kind = setup.mesh.devices.flat[0].platform
  flops = _FLOPS.get(kind, _FLOPS_OF_ACCELERATORS)
  update_seconds = benchmark_flops_per_update(setup) / flops
  unit = config_lib.training_iteration_steps(config, learner)
  num_updates = config.grad_updates_per_step
  if setup.on_policy:
    num_updates = learner.batches_per_update / unit
  seconds = config.population_size / setup.mesh.size * (
    1 / _STEPS + num_updates * update_seconds)
  interval = unit * max(1, round(_INTERVAL_SECONDS / seconds / unit))
  interval = min(interval, config.perturbation_interval)
  settings: Record = {"perturbation_interval": interval}
  if not setup.on_policy:
    settings["min_replay_size"] = min_replay_size or min(
      config.min_replay_size, interval)
  return setup._replace(config=dataclasses.replace(config, **settings))


def benchmark_generations(
  setup: Setup, repetitions: int, run_key: types.Key, start: float
) -> Record:
  """Times whole generations of a `setup`, compiled and called as a run does.

  The median is of `repetitions`; keys are those of `run_key`; the first update
  and generation are timed from `start` on, seconds of `time.monotonic`.
  """
  begin = time.monotonic()
  made = compilation.make_programs(generation.prepare(setup), run_key)
  # Both at once, as a run does.
  made.begin_to_compile()
  state = jax.block_until_ready(made.init(run_key))
  made.train.compile()
  compile_seconds = time.monotonic() - begin
  initial = made.draw(run_key, 1)
  state, trained = jax.block_until_ready(
    made.train(state, initial.pool, run_key))
  first_update = time.monotonic() - start
  carried = made.evaluate(state, trained, initial.evaluation, run_key)
  jax.block_until_ready(carried)
  first_generation = time.monotonic() - start
  numbers = itertools.count(2)

  def train_generation(carried: tuple[State, Tree]) -> tuple[State, Tree]:
    initial = made.draw(run_key, next(numbers))
    state, trained = made.train(carried[0], initial.pool, run_key)
    return made.evaluate(state, trained, initial.evaluation, run_key)

  seconds, carried = _time_calls(train_generation, carried, repetitions)
  median = statistics.median(seconds)
  rates = {
    name.removeprefix("training/"): x
    for name, x in records.record_rates(
      setup, jax.device_get(carried[1]), median).items()}
  return {
    **rates, **_peak_columns(setup, rates["updates_per_second"]),
    "generation_seconds": median, "repetitions": len(seconds),
    "compile_seconds": compile_seconds,
    "time_to_first_update_seconds": first_update,
    "time_to_first_generation_seconds": first_generation}


def benchmark_updating(
  setup: Setup, repetitions: int, run_key: types.Key
) -> Record:
  """Times sampling and updates of a `setup`, without environments.

  The time is the median of `repetitions`; keys are those of `run_key`.
  """
  plan = config_lib.training_iterations(setup.config, setup.learner)
  members, hyperparams, keys = _population(setup, run_key)
  if setup.on_policy:
    shape = (keys.shape[0], plan.num_env_steps, setup.config.num_envs)
    full = jax.tree.map(
      lambda x: jnp.zeros((*shape, *x.shape), x.dtype),
      members_lib.member_transition_example(setup))
  else:
    full = members.replay._replace(
      size=jnp.full_like(members.replay.size, setup.config.capacity))

  def interval(
    setup: Setup, states: State, full: Tree, hyperparams: Tree, keys: Tree
  ) -> State:
    def iteration(states: State, t: types.Array) -> tuple[State, None]:
      own = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
      if setup.on_policy:
        args = states, hyperparams, full, own
        return learning.learn_rollouts(setup, *args)[0], None
      return learning.learn(setup, states, full, hyperparams, own)[0], None

    return jax.lax.scan(iteration, states, jnp.arange(plan.num_iterations))[0]

  def learn(states: State) -> State:
    return setup.over_members(interval)(states, full, hyperparams, keys)

  learn = _compiled(learn, donate_argnums=0)
  seconds = measure_median_seconds(learn, members.learner, repetitions)
  updates = (
    plan.num_iterations * plan.num_updates * setup.learner.batches_per_update)
  rate = setup.config.population_size * updates / seconds
  return {"updates_per_second": rate, **_peak_columns(setup, rate)}


def benchmark_exploiting(
  setup: Setup, repetitions: int, run_key: types.Key
) -> Record:
  """Times a decision, and children taking over from their parents.

  Args are those of `benchmark_updating`.
  """
  controller, config = setup.controller, setup.config
  assert controller is not None
  members, hyperparams, _ = _population(setup, run_key)
  size = config.population_size
  fitness = jnp.arange(size, dtype=jnp.float32)
  state = jax.jit(lambda key: controller.init(key, size)[0])(run_key)
  # As in a generation: divided among devices they would wait for each other.
  update = sharding_lib.run_replicated(
    setup.mesh, platform.decision(controller.update))

  # Returns all that a decision computes, or XLA would leave it out.
  def decide(carried: Tree) -> Tree:
    state, decision = update(carried[0], run_key, fitness, carried[1])
    return state, decision.hyperparams

  def exploit(carried: Tree) -> Tree:
    members, *carried = carried
    state, decision = update(carried[0], run_key, fitness, carried[1])
    members = population.inherit_in_population(
      setup, members, decision.parents, jnp.ones(size, bool))
    return members, state, decision.hyperparams

  # A first call places arrays as all later ones do; the next compiles again.
  decide = _compiled(decide)
  decided = decide((state, hyperparams))
  decision_seconds = measure_median_seconds(decide, decided, repetitions)
  _, decision = controller.update(state, run_key, fitness, hyperparams)
  num_replaced = int(jnp.sum(decision.parents != jnp.arange(size)))
  inherited = [members.learner, *[members.replay] * config.inherit_replay]
  moved = sum(x.nbytes // x.shape[0] for x in jax.tree.leaves(inherited))
  exploit = _compiled(exploit, donate_argnums=0)
  exploited = exploit((members, *decided))
  seconds = measure_median_seconds(exploit, exploited, repetitions)
  return {
    "exploit_milliseconds": 1000 * seconds,
    "decision_milliseconds": 1000 * decision_seconds,
    "num_replaced": num_replaced, "moved_bytes": num_replaced * moved}


def benchmark_adding(repetitions: int) -> Record:
  """Times MAP-Elites without agents, in a grid and in a Voronoi tessellation.

  One generation varies 1,024 parents, scores them by a sum of squares, and
  adds them to 10,000 cells; a genotype has 1,000 parameters.
  """
  lower, upper = (-1.0, -1.0), (1.0, 1.0)
  tessellations: dict[str, map_elites.Tessellation] = {
    "grid": map_elites.Grid((100, 100), lower, upper),
    "cvt": map_elites.cvt(jax.random.key(0), 10_000, lower, upper)}
  emitter = map_elites.genetic_emitter(
    lambda key, x1, x2: map_elites.iso_line(key, x1, x2, 0.1, 0.1), 1024)

  def score(x: types.Array) -> tuple[types.Array, types.Array]:
    return -jnp.sum(jnp.square(x), axis=1), jnp.tanh(x[:, :2])

  def generation(
    state: tuple[map_elites.Repertoire, types.Key],
  ) -> tuple[map_elites.Repertoire, types.Key]:
    repertoire, key = state
    key, ask_key = jax.random.split(key)
    x, _ = emitter.ask((), repertoire, ask_key)
    return repertoire.add(x, *score(x)), key

  row = {}
  for name, tessellation in tessellations.items():
    first = jax.random.normal(jax.random.key(1), (1024, 1000))
    repertoire = map_elites.Repertoire.init(first[0], tessellation)
    repertoire = repertoire.add(first, *score(first))
    seconds = measure_median_seconds(
      _compiled(generation, donate_argnums=0), (repertoire, jax.random.key(2)),
      repetitions)
    row[f"generation_milliseconds/{name}"] = 1000 * seconds
  return row


def benchmark_resources(setup: Setup) -> Record:
  """Measures the memory that a population takes."""
  assert setup.mesh is not None
  transition = _member(setup)[1] if setup.trains_members else ()
  device = setup.mesh.devices.flat[0]
  if device.platform != "cpu":
    most_bytes = device.memory_stats()["peak_bytes_in_use"]
  elif sys.platform == "win32":
    most_bytes = None
  else:  # Macs count bytes, others KiB.
    unit = 1 if sys.platform == "darwin" else 1024
    most_bytes = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {
    "replay_bytes_per_transition": sum(
      x.dtype.itemsize * x.size for x in jax.tree.leaves(transition)),
    "peak_memory_bytes": most_bytes}


def _compiled(function: Callable[..., Tree], **more: Any) -> Any:
  """Compiles as programs of training are."""
  options = platform.compiler_options().always
  return jax.jit(function, compiler_options=options, **more)


def _peak_columns(setup: Setup, updates_per_second: float) -> dict[str, float]:
  """Returns the FLOP/s of updates at a rate, beside the machine's peak."""
  assert setup.mesh is not None
  flops, peak = benchmark_flops_per_update(setup), _matmul_peak(setup.mesh)
  return {
    "flops_per_update": flops,
    "achieved_gflops": updates_per_second * flops / 1e9,
    "matmul_peak_gflops": peak / 1e9,
    "fraction_of_peak": updates_per_second * flops / peak}


def benchmark_flops_per_update(setup: Setup) -> float:
  """Returns what XLA counts for one critic step of one agent."""
  member, transition = _member(setup)
  per_update, config = setup.learner.batches_per_update, setup.config
  shape: tuple[int, ...] = (config.rollout_length, config.num_envs)
  if not setup.on_policy:
    shape = per_update, *setup.learner.batch_shape(config.batch_size)
  transitions = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((*shape, *x.shape), x.dtype), transition)
  arguments = *member, transitions, jax.random.key(0)
  update: Any = jax.jit(setup.learner.update)
  compiled = update.lower(*arguments).compile()
  flops = compiled.cost_analysis()["flops"]
  # A rollout is learned from in a loop, whose body XLA counts once.
  return flops if setup.on_policy else flops / per_update


def _matmul_peak(mesh: jax.sharding.Mesh) -> float:
  """Measures the FLOP/s of large float32 matrix products on all devices."""
  # Accelerators reach their peak with larger matrices only.
  size = 1024 if mesh.devices.flat[0].platform == "cpu" else 8192
  where = jax.NamedSharding(mesh, jax.P(sharding_lib.AXIS))
  x = jax.device_put(jnp.ones((mesh.size, size, size)), where)
  multiply = jax.jit(lambda x: 1e-3 * jnp.matmul(x, x), out_shardings=where)
  return 2 * mesh.size * size**3 / measure_median_seconds(multiply, x, 9)


def measure_median_seconds(
  call: Callable[[Tree], Tree], state: Tree, repetitions: int
) -> float:
  """Measures the median seconds of calls that go on from one another.

  The first of `repetitions` calls of `call` is on a `state`, after an untimed
  one.
  """
  state = jax.block_until_ready(call(state))
  return statistics.median(_time_calls(call, state, repetitions)[0])


def _time_calls(
  call: Callable[[Tree], Tree], state: Tree, repetitions: int
) -> tuple[list[float], Tree]:
  """Returns seconds of calls, each on the last result, and the final one."""
  seconds: list[float] = []
  number = 1  # As many as fit into `_SECONDS`, but one.
  while len(seconds) < number:
    begin = time.monotonic()
    state = jax.block_until_ready(call(state))
    seconds.append(time.monotonic() - begin)
    if len(seconds) == 1:
      number = min(repetitions, int(_SECONDS / max(seconds[0], 1e-9)))
      # Short measurements need no announcement.
      if (number - 1) * seconds[0] > 5:
        print(
          f"measuring {number} of {repetitions} repetitions, "
          f"{number * seconds[0]:.0f} s in all",
          file=sys.stderr, flush=True)
  return seconds, state


def _population(
  setup: Setup, run_key: types.Key
) -> tuple[Members, Tree, types.Key]:
  """Makes members, hyperparameters and keys of a population."""
  state = jax.jit(functools.partial(generation.init, setup))(run_key)
  keys = members_lib.member_keys(run_key, 1, setup.config.population_size)
  return state.members, state.hyperparams, keys


def _member(setup: Setup) -> tuple[tuple[Tree, Tree], Tree]:
  """Returns shapes of one learner and its hyperparameters; of a transition."""
  # A member learns alike whether there is a repertoire or not.
  alone = setup._replace(mesh=None, map_elites=None)
  init = functools.partial(generation.init, alone)
  state = jax.eval_shape(init, jax.random.key(0))

  learner = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
    (state.members.learner, state.hyperparams))
  return learner, members_lib.member_transition_example(alone)
