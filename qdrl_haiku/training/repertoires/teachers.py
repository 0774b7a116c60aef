"""The critic that a repertoire's agents share, and what it learns from."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import (
  environments,
  learners,
  map_elites,
  platform,
  replay,
  specs,
  trees,
  types,
)
from qdrl_haiku.distributed import sharding
from qdrl_haiku.learners import statistics
from qdrl_haiku.training.config import TeachingConfig, TrainingConfig
from qdrl_haiku.training.repertoires import several_critics
from qdrl_haiku.training.state import Members
from qdrl_haiku.types import Array, Key, Metrics, Transition, Tree

# Largest magnitude of descriptors whose bounds are scaled to -1 and 1: larger
# ones would dominate what a network learns.
_FARTHEST = 10.0


class TeacherState(NamedTuple):
  """A critic, and all that it learns from."""

  agent: types.State  # Of the learner whose critics are shared.
  # Transitions of all evaluated agents. If the critic sees targets, extras are
  # the agent's mean `descriptor` [D] and the `target` [D] that it was made for,
  # if one seeks novelty, `next_descriptor` [D], with the bounds -1 and 1; if
  # there is one of each objective, `objectives` [M].
  replay: replay.ReplayState
  num_restarts: Array  # int32 [], how often it was no longer finite.


def teacher(
  env: environments.BatchedEnvironment, learner: learners.Learner,
  config: TrainingConfig = TrainingConfig(),
  teaching: TeachingConfig = TeachingConfig(), *, sees_targets: bool = False,
  critics: str = "one", mesh: jax.sharding.Mesh | None = None,
) -> map_elites.Teacher:
  """Makes the teacher of `map_elites.pga_emitter` or `dcrl_emitter`.

  Individuals are `map_elites.Elite`s, and what it remembers of an evaluation is
  in `extra`: "transitions" and "lengths", as `actors.evaluate` returns them.

  A critic that sees targets learns from rewards that are lifted by the
  environment's offset, kept at 0 or above, and weighted by how near the
  episodes came to their target (`map_elites.dcrl_similarity`).

  Args:
    env: in which agents are evaluated.
    learner: of the agents, with `share`, such as `learners.td3`; with
      `own_critics=False` an elite has no critics of its own.
    config: of which `replay_capacity`, which holds at least an evaluation's
      transitions, `batch_size` and `min_replay_size` count.
    teaching: for how many steps critic and agents learn.
    sees_targets: whether critic and policy see targets, for `dcrl_emitter`.
    critics: "one"; "novelty" for a second one, whose rewards are states'
      distances from an archive (`map_elites.novelty`), with which
      `dcrl_emitter` is QD-PG's; or "objectives" for one of each objective of
      the environment (MOME-PGX). Agents are shared out among several evenly,
      and none of them sees targets.
    mesh: of the devices that share the work, see `training.Setup`.

  Raises:
    ValueError: if the learner has no `share`, the environment no descriptor
      where it is needed or no objectives where they are, or a setting doesn't
      fit them.
  """
  descriptor, shared, rewards = _shared(
    env, learner, teaching, sees_targets, critics)
  critic, buffer = shared.learner, replay.uniform(config.capacity)
  whole = specs.Extended(
    env.observation_spec, "context", descriptor.size if sees_targets else 0)
  lower, upper = np.array([descriptor.lower, descriptor.upper], np.float32)

  def scaled(descriptors: Array) -> Array:
    scaled = 2 * (descriptors - lower) / (upper - lower) - 1
    return jnp.clip(scaled, -_FARTHEST, _FARTHEST)

  def context(targets: Array) -> Array:
    if rewards:
      return several_critics.even_shares(
        targets.shape[0], len(rewards.prefixes))
    return scaled(targets) if sees_targets else targets[..., :0]

  def init(key: Key) -> TeacherState:
    # float32 also in programs that enable float64.
    observation, action = specs.zeros((env.observation_spec, env.action_spec))
    place = jnp.zeros(descriptor.size, jnp.float32)
    number = jnp.zeros((), jnp.float32)
    extras = dict.fromkeys(
      ["descriptor", "target"] if sees_targets else [], place)
    if rewards:
      extras = {rewards.extra: jnp.zeros(rewards.size, jnp.float32)}
    example = Transition(
      observation=observation, action=action, reward=number, discount=number,
      next_observation=observation, extras=extras)
    return TeacherState(
      critic.init(key), buffer.init(example), jnp.zeros((), jnp.int32))

  def remember(
    state: TeacherState, evaluated: map_elites.Evaluated, targets: Array
  ) -> TeacherState:
    transitions = evaluated.extra["transitions"]
    lengths = evaluated.extra["lengths"]
    shape = transitions.reward.shape  # [B, N, T].
    extras = {}
    if sees_targets:
      of_agents = {"descriptor": evaluated.descriptors, "target": targets}
      extras = {
        name: jnp.broadcast_to(
          scaled(x)[:, None, None], (*shape, descriptor.size))
        for name, x in of_agents.items()}
    if rewards:
      extra = transitions.extras[rewards.extra]
      extras = {rewards.extra: scaled(extra) if critics == "novelty" else extra}
    rows = jax.tree.map(
      lambda x: x.reshape(-1, *x.shape[3:]), transitions._replace(extras=extras)
    )
    valid = (jnp.arange(shape[2]) < lengths[..., None]).reshape(-1)
    valid &= trees.all_finite_leaves(rows)
    agent = critic.observe(state.agent, statistics.left_out_unless(
      valid, with_target(rows.observation, rows)))
    if rewards:
      archived = platform.decision(rewards.remember)
      agent = agent._replace(archive=sharding.run_replicated(mesh, archived)(
        agent.archive, rows.extras[rewards.extra], valid))
    return state._replace(
      agent=agent,
      replay=buffer.add_where(state.replay, rows, valid))

  def with_target(observation: Tree, rows: Transition) -> Tree:
    nothing = jnp.zeros((*rows.reward.shape, 0), jnp.float32)
    return whole.join(observation, rows.extras.get("target", nothing))

  def as_learned(rows: Transition) -> Transition:
    reward = rows.reward
    if sees_targets:
      reward = map_elites.dcrl_similarity(
        rows.extras["descriptor"], rows.extras["target"], teaching.length_scale
      ) * jnp.maximum(reward + descriptor.reward_offset, 0)
    return rows._replace(
      observation=with_target(rows.observation, rows), reward=reward,
      next_observation=with_target(rows.next_observation, rows),
      extras=rows.extras if rewards else {})

  def improve(
    state: TeacherState, elites: map_elites.Elite, targets: Array, key: Key
  ) -> map_elites.Elite:
    shape = (teaching.num_policy_steps, config.batch_size)
    observations = buffer.sample(state.replay, key, shape).observation

    def improve_all(known: Tree, agents: Tree) -> Tree:
      in_turn = platform.member(
        lambda agent, observations, genotype, at: shared.improve(
          agent, genotype, observations, at, teaching.offspring_learning_rate))
      return jax.vmap(in_turn, (None, None, 0, 0))(*known, *agents)

    # Replicated: XLA would otherwise shard the choice of parents too.
    elites, targets = sharding.replicate(mesh, (elites, targets))
    spread = sharding.run_on_shards(
      mesh, improve_all, (state.agent, observations))
    improved = sharding.all_gather(
      mesh, spread(elites.genotype, context(targets)), targets.shape[0])
    # Without enough transitions nothing is learned.
    can = buffer.can_sample(state.replay, config.min_replay_size)
    return elites._replace(genotype=jax.tree.map(
      lambda x, old: jnp.where(can, x, old), improved, elites.genotype))

  def policies(state: TeacherState, targets: Array) -> map_elites.Elite:
    at = jax.vmap(shared.genotype_at, (None, 0))
    genotypes = sharding.run_replicated(mesh, at)(
      state.agent, context(targets))
    hyperparams = jax.tree.map(
      lambda x: jnp.full(targets.shape[0], x, jnp.float32), learner.hyperparams)
    return map_elites.Elite(genotypes, hyperparams)

  def update(agent: types.State, inputs: Tree) -> tuple[types.State, Metrics]:
    rows, key = inputs
    return critic.update(agent, learner.hyperparams, as_learned(rows), key)

  num_updates = teaching.num_critic_steps // critic.batches_per_update
  train = _training(critic, update, num_updates, config)
  return map_elites.Teacher(
    init=init, remember=remember, train=sharding.run_replicated(mesh, train),
    improve=improve, policies=policies)


def _shared(
  env: environments.BatchedEnvironment, learner: learners.Learner,
  teaching: TeachingConfig, sees_targets: bool, critics: str,
) -> tuple[
  environments.Descriptor, learners.SharedCritic, several_critics.Rewards | None
]:
  """Returns what a teacher needs, or refuses what doesn't have it."""
  descriptor = env.descriptor or environments.Descriptor((), (), ())
  compares = sees_targets or critics == "novelty"
  if compares and not descriptor.size:
    raise ValueError(
      "this emitter's critic needs an environment with state descriptors; take "
      "one that has, give yours a Descriptor, or take pga.")
  if learner.share is None:
    raise ValueError(
      "this emitter's agents learn from critics that they share, and the "
      "learner can't share its own; take td3 with memory=none, or give yours "
      "`share`.")
  bounds = (*descriptor.lower, *descriptor.upper)
  if compares and not all(map(math.isfinite, bounds)):
    raise ValueError(
      "this emitter compares descriptors in units of their bounds, and "
      f"those of {', '.join(descriptor.names)} aren't all finite; give the "
      "environment's descriptor finite ones, or take pga.")
  shared, rewards = learner.share(descriptor.size if sees_targets else 0), None
  if critics == "novelty":
    rewards = several_critics.rewards_and_novelty(descriptor)
  elif critics == "objectives":
    if env.objectives is None:
      raise ValueError(
        "this emitter has a critic of each objective, and the environment "
        "reports none; take one that does, such as halfcheetah_uni, or pga.")
    rewards = several_critics.one_per_objective(env.objectives)
  if rewards:
    shared = several_critics.several_critics(shared, rewards)
  if teaching.num_critic_steps % shared.learner.batches_per_update:
    raise ValueError(
      f"num_critic_steps={teaching.num_critic_steps} must be a multiple of the "
      f"{shared.learner.batches_per_update} critic steps of an update.")
  return descriptor, shared, rewards


def _training(
  critic: learners.Learner,
  update: Callable[[types.State, Tree], tuple[types.State, Metrics]],
  num_updates: int, config: TrainingConfig,
) -> Callable[[TeacherState, Key], tuple[TeacherState, Metrics]]:
  """Makes what trains a critic by updates (agent, (rows, key)), if it can."""
  buffer = replay.uniform(config.capacity)

  def learn(
    agent: types.State, batches: Transition, keys: Key
  ) -> tuple[types.State, Metrics]:
    agent, metrics = jax.lax.scan(update, agent, (batches, keys))
    return agent, jax.tree.map(jnp.mean, metrics)

  def train(state: TeacherState, key: Key) -> tuple[TeacherState, Metrics]:
    sample_key, update_key, restart_key = jax.random.split(key, 3)

    def train_now(state: TeacherState) -> Tree:
      shape = (num_updates, critic.batches_per_update, config.batch_size)
      return platform.decision(learn)(
        state.agent, buffer.sample(state.replay, sample_key, shape),
        jax.random.split(update_key, num_updates))

    def go_on(state: TeacherState) -> Tree:
      shapes = jax.eval_shape(train_now, state)[1]
      return state.agent, jax.tree.map(
        lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)

    agent, metrics = jax.lax.cond(
      buffer.can_sample(state.replay, config.min_replay_size), train_now, go_on,
      state)
    is_finite = trees.all_finite_leaves(agent, 0)
    agent = jax.tree.map(
      lambda x, new: jnp.where(is_finite, x, new), agent,
      critic.init(restart_key))
    num_restarts = state.num_restarts + ~is_finite
    return TeacherState(agent, state.replay, num_restarts), metrics | {
      "num_restarts": num_restarts.astype(jnp.float32),
      "replay_size": state.replay.size.astype(jnp.float32)}

  return train


def teacher_buffers(emitter_state: Tree) -> list[replay.ReplayState]:
  """Returns the replay buffers that belong to emitters, not to members."""
  ends = replay.ReplayState | Members
  parts = jax.tree.leaves(emitter_state, is_leaf=lambda x: isinstance(x, ends))
  return [x for x in parts if isinstance(x, replay.ReplayState)]
