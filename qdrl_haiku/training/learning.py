"""The part of a generation in which members collect and learn."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import (
  actors,
  eager,
  learners,
  platform,
  prng,
  replay,
  trees,
  types,
)
from qdrl_haiku.learners import statistics
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import curriculum, n_step, order, shifts
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import Members
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Transition, Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Row:
  """Metrics [..., M] in one array, which a loop stores by one kernel."""

  numbers: Array
  names: tuple[str, ...] = dataclasses.field(metadata={"static": True})

  @classmethod
  def of(cls, metrics: Metrics) -> "_Row":
    """Joins metrics, which are scalars."""
    return cls(jnp.array([*metrics.values()]), tuple(metrics))


@eager.compiled_if_eager("setup")
def train_members(
  setup: Setup, members: Members, hyperparams: Hyperparams, keys: Key
) -> tuple[Members, Metrics, Array]:
  """Collects and learns for `perturbation_interval` steps.

  Transitions with a non-finite value are counted, but neither learned from nor
  added to statistics. A member doesn't learn while its replay buffer is below
  the minimum, or from a rollout without a finite transition.

  Args:
    setup: what the population is composed of.
    members: leaves [P, ...].
    hyperparams: leaves [P].
    keys: [P]; consumed.

  Returns:
    The members, whose pool is used up; metrics by name, [P], means over the
    updates; and the number of critic steps of each member, int32 [P].
  """
  iterations = config_lib.training_iterations(setup.config, setup.learner)
  learn_anew = _learn_from_rollout if setup.on_policy else _learn_from_replay
  warms_up = setup.config.random_warm_up and not setup.on_policy

  def iteration(members: Members, t: Array) -> tuple[Members, Tree]:
    collect_keys, learn_keys = _split(prng.fold_in_each(keys, t))
    learner, acting = setup.learner, members.learner
    if warms_up:
      learner, acting = _warming_up(setup), (acting, members.replay.size)
    with jax.named_scope("collect"):
      env_states, transitions = actors.collect(
        setup.env, learner, acting, hyperparams, members.environment,
        collect_keys, iterations.num_env_steps, pool or None, tunables)
    with jax.named_scope("store"):
      is_finite = trees.all_finite_leaves(transitions, 3)  # [P, T, E].
      seen = statistics.left_out_unless(is_finite, transitions.observation)
    members, rows, learned = learn_anew(
      setup, members._replace(environment=env_states), hyperparams,
      members_lib.stored_by_members(setup, transitions), is_finite, seen,
      learn_keys)
    counts = _nonfinite(transitions, is_finite)
    told = boundaries and curriculum.boundary_returns(
      transitions, is_finite, len(boundaries))
    return members, (rows, _observed(seen), counts, learned, told)

  pool, members = members.pool, members._replace(pool=())
  boundaries, tunables = setup.boundaries, {}
  if boundaries:
    tunables = curriculum.curriculum_tunables(
      setup.config.curriculum, boundaries, members.curriculum.reach)
  goes_on = setup.abilities.copies_states and not setup.config.inherit_replay
  if setup.keeps_order and not goes_on:
    members = members._replace(
      replay=jax.vmap(lambda b: order.cut_order(setup, b))(members.replay))
  begin = members
  members, (rows, observed, counts, learned, told) = jax.lax.scan(
    iteration, members, jnp.arange(iterations.num_iterations))
  learned_iterations = jnp.sum(learned, axis=0)
  sums = jnp.sum(rows.numbers, axis=0)
  metrics = {
    name: sums[:, i] / learned_iterations for i, name in enumerate(rows.names)}
  means, variances = observed
  metrics["observation_mean"] = jnp.mean(means, axis=0)
  metrics["observation_std"] = jnp.sqrt(
    jnp.mean(variances, axis=0) + jnp.var(means, axis=0))
  metrics |= jax.tree.map(lambda x: jnp.sum(x, axis=0).astype(float), counts)
  if pool:
    # Reported, so that a user can tell whether `pool_size` is too small.
    before, after = (x.environment.info["episodes"] for x in (begin, members))
    reused = jnp.maximum(after - before - setup.config.pool_size, 0)
    metrics["reused_initial_states"] = jnp.sum(reused, axis=1).astype(float)
  if boundaries:
    metrics |= curriculum.curriculum_metrics(boundaries, members.curriculum)
    members = members._replace(curriculum=curriculum.judge_boundaries(
      setup.config.curriculum, members.curriculum,
      *(jnp.sum(x, axis=0) for x in told)))
  per_iteration = iterations.num_updates * setup.learner.batches_per_update
  return members, metrics, learned_iterations * per_iteration


def _learn_from_replay(
  setup: Setup, members: Members, hyperparams: Hyperparams,
  transitions: Transition, is_finite: Array, seen: Tree, keys: Key,
) -> tuple[Members, _Row, Array]:
  """Stores transitions [P, T, E, ...], and learns from replay.

  Returns members, metrics [P, M], and whether they learned, bool [P].
  """
  add = setup.buffer.add_where
  if setup.keeps_order:
    add = functools.partial(order.add_in_order, setup)
  with jax.named_scope("store"):
    states = jax.vmap(setup.learner.observe)(members.learner, seen)
    buffers = jax.vmap(add)(members.replay, *jax.tree.map(
      lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]),
      (transitions, is_finite)))
  can_learn = setup.buffer.can_sample(buffers, setup.config.min_replay_size)
  learn_now = functools.partial(learn, setup)

  def go_on(states: types.State, *others: Tree) -> tuple[types.State, Tree]:
    shapes = jax.eval_shape(learn_now, states, *others)[1]
    return states, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

  states, rows = platform.where_needed(
    jnp.any(can_learn), learn_now, go_on, states, buffers, hyperparams, keys)
  return members._replace(learner=states, replay=buffers), rows, can_learn


def _learn_from_rollout(
  setup: Setup, members: Members, hyperparams: Hyperparams,
  transitions: Transition, is_finite: Array, seen: Tree, keys: Key,
) -> tuple[Members, _Row, Array]:
  """Learns from what was just collected, see `_learn_from_replay`."""
  can_learn = jnp.any(is_finite, axis=(1, 2))
  rollouts = jax.vmap(members_lib.rollout_without_nonfinite)(
    transitions, is_finite)
  learned, rows = learn_rollouts(
    setup, members.learner, hyperparams, rollouts, keys)
  nothing = jax.tree.map(jnp.zeros_like, rows)
  states, rows = trees.choose_rows(
    can_learn, (learned, rows), (members.learner, nothing))
  # After learning, which needs the statistics with which the policy acted.
  states = jax.vmap(setup.learner.observe)(states, seen)
  return members._replace(learner=states), rows, can_learn


def learn_rollouts(
  setup: Setup, states: types.State, hyperparams: Hyperparams,
  rollouts: Transition, keys: Key,
) -> tuple[types.State, _Row]:
  """Learns from rollouts.

  The members' `states` have leaves [P, ...], `hyperparams` [P], `rollouts`
  [P, T, E, ...], `keys` are [P], and metrics [P, M]; `setup` has the learner.
  """

  def update(*arguments: Tree) -> tuple[types.State, _Row]:
    learned, metrics = setup.learner.update(*arguments)
    return learned, _Row.of(metrics)

  with jax.named_scope("learn"):
    return jax.vmap(platform.member(update))(
      states, hyperparams, rollouts, keys)


def learn(
  setup: Setup, states: types.State, buffers: replay.ReplayState,
  hyperparams: Hyperparams, keys: Key,
) -> tuple[types.State, _Row]:
  """Learns from replay for one iteration.

  Args:
    setup: what is trained.
    states: the members' learner states, leaves [P, ...].
    buffers: their replay, leaves [P, ...].
    hyperparams: leaves [P].
    keys: [P], consumed.

  Returns:
    The states, and metrics [P, M], 0 where a member may not learn yet.
  """
  config, learner = setup.config, setup.learner
  num_updates = config_lib.training_iterations(config, learner).num_updates
  batches = (
    num_updates, learner.batches_per_update,
    *learner.batch_shape(config.batch_size))
  sample_keys, update_keys = _split(keys)
  # All of them in one gather.
  sample: Callable[..., Tree] = setup.buffer.sample
  if config.n_step > 1:
    sample = functools.partial(n_step.sample_n_step, setup)
  elif learner.learns_from == "sequences":
    sample = functools.partial(order.sample_sequences, setup)
  with jax.named_scope("sample"):
    sampled = jax.vmap(lambda b, k: sample(b, k, batches))(buffers, sample_keys)
  update_keys = jax.vmap(jax.random.split, (0, None))(update_keys, num_updates)

  def updates(
    state: types.State, hyperparams: Hyperparams, sampled: Tree, keys: Key,
    can_learn: Array,
  ) -> tuple[types.State, _Row]:
    if config.n_step > 1:
      sampled = n_step.fold_n_step(sampled, hyperparams)

    def update(state: types.State, inputs: Tree) -> tuple[types.State, _Row]:
      batches, key = inputs
      if config.random_shift:
        key, shift_key = jax.random.split(key)
        batches = shifts.shift_images(
          setup.env.observation_spec, config.random_shift, batches, shift_key)
      learned, metrics = learner.update(state, hyperparams, batches, key)
      learned = _where(can_learn, learned, state, in_loop=True)
      return learned, _Row.of(metrics)

    learned, rows = jax.lax.scan(update, state, (sampled, keys))
    return learned, _Row(jnp.mean(rows.numbers, axis=0), rows.names)

  can_learn = setup.buffer.can_sample(buffers, config.min_replay_size)
  # On CPUs each member in turn makes all updates: its networks stay cached.
  with jax.named_scope("learn"):
    learned, metrics = jax.vmap(platform.member(updates))(
      states, hyperparams, sampled, update_keys, can_learn)
  choose = jax.vmap(functools.partial(_where, in_loop=False))
  return choose(can_learn, learned, states), trees.choose_rows(
    can_learn, metrics, jax.tree.map(jnp.zeros_like, metrics))


def _where(condition: Array, new: Tree, old: Tree, *, in_loop: bool) -> Tree:
  """Takes a member's new arrays on a condition, inside the loop or after it.

  On accelerators floats are chosen inside the loop over updates, since choosing
  them after it needs a copy of the old ones. An update reads counts again once
  it has raised them, so counts, and all arrays on CPUs, are chosen after it.
  """

  def choose(x: Array, y: Array) -> Array:
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    chosen_in_loop = is_float and not platform.branches_cheaply()
    return jnp.where(condition, x, y) if in_loop == chosen_in_loop else x

  return jax.tree.map(choose, new, old)


def _observed(observed: Tree) -> tuple[Array, Array]:
  """Returns mean and variance [P] of the observations that statistics count."""
  observations = jnp.concatenate([
    x.astype(jnp.float32).reshape(*x.shape[:3], -1)
    for x in jax.tree.leaves(observed)], axis=-1)
  counts = statistics.counts_in_statistics(observations, 3)
  seen = jnp.where(counts[..., None], observations, 0.0)
  # Exactly 1 where all are counted, so that those means stay bit-identical.
  correction = counts[0].size / jnp.maximum(jnp.sum(counts, axis=(1, 2)), 1)
  mean = jnp.mean(seen, axis=(1, 2, 3)) * correction
  apart = jnp.where(counts[..., None], seen - mean[:, None, None, None], 0.0)
  return mean, jnp.mean(jnp.square(apart), axis=(1, 2, 3)) * correction


def _nonfinite(transitions: Transition, is_finite: Array) -> dict[str, Array]:
  """Counts non-finite transitions, observations and rewards, [P] by name.

  A next observation counts only after a finite action, and a reward only after
  a finite observation too: otherwise the environment isn't the cause.
  """
  before, action, reward, _, after = (
    trees.all_finite_leaves(x, 3) for x in transitions[:5])
  counted = {
    "nonfinite_transitions": ~is_finite,
    "nonfinite_observations": ~before | (action & ~after),
    "nonfinite_rewards": before & action & ~reward}
  return {name: jnp.sum(x, axis=(1, 2)) for name, x in counted.items()}


def _warming_up(setup: Setup) -> learners.Learner:
  """Returns a learner that acts uniformly until its buffer has its minimum.

  Its state is the learner's and the size of the buffer.
  """

  def act(
    state: types.State, hyperparams: Hyperparams, observation: Tree,
    memory: Tree, key: Key,
  ) -> types.Acted:
    state, size = state
    act_key, uniform_key = jax.random.split(key)
    acted = setup.learner.act(state, hyperparams, observation, memory, act_key)
    action, spec = acted.action, setup.env.action_spec
    leading = action.shape[: action.ndim - len(spec.shape)]
    uniform = spec.sample(uniform_key, *leading)
    return acted._replace(action=jnp.where(
      size < setup.config.min_replay_size, uniform, action))

  return setup.learner._replace(act=act)


def _split(keys: Key) -> tuple[Key, Key]:
  """Returns two keys [P] for each of keys [P]."""
  first, second = jnp.unstack(jax.vmap(jax.random.split)(keys), axis=1)
  return first, second
