"""Lets many agents learn from the critics of one.

Nilsson and Cully (2021), "Policy gradient assisted MAP-Elites"; with a context
that critics see, Faldor et al. (2024), "Synergizing quality-diversity with
descriptor-conditioned reinforcement learning", arXiv 2401.08632.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import networks, types
from qdrl_haiku.learners import base, statistics

PolicyStepFn = Callable[..., tuple[types.Params, types.State, types.Metrics]]
"""A policy step that increases the first critic's value: (policy parameters,
optimiser state, critic parameters (the first critic's suffice), observations
for the policy [B, O], for the critics [B, O + K], learning rate) -> (policy
parameters, optimiser state, metrics)."""


def shared_critic(
  learner: base.Learner, observation_size: int, policy_step: PolicyStepFn,
  optimizer: base.Optimizer, *, own_critics: bool,
) -> base.SharedCritic:
  """Lets many agents learn from the critics of one."""

  def improve(
    state: types.State, genotype: types.Tree, observations: types.Array,
    context: types.Array, learning_rate: types.Array | float,
  ) -> types.Tree:
    # The policy climbs the first critic; the other one needn't be computed.
    first = jax.tree.map(lambda x: x[:1], state.critic_params)
    rate = jnp.asarray(learning_rate)

    def step(carry: types.Tree, batch: types.Array) -> tuple[types.Tree, None]:
      params, optimizer_state = carry
      judged = statistics.normalize_by_statistics(
        state.observation_statistics, _with_context(batch, context))
      seen = statistics.normalize_by_statistics(
        genotype.observation_statistics, batch)
      *carry, _ = policy_step(
        params, optimizer_state, first, seen, judged, rate)
      return tuple(carry), None

    params = genotype.policy_params
    (params, _), _ = jax.lax.scan(
      step, (params, optimizer.init(params)), observations)
    return genotype._replace(
      policy_params=params, critic_params=critics_at(state, context))

  def genotype_at(state: types.State, context: types.Array) -> types.Tree:
    known = state.observation_statistics
    if known is not None:
      known = known._replace(
        mean=known.mean[:observation_size],
        variance=known.variance[:observation_size])
    return learner.genotype(state)._replace(
      policy_params=networks.fix_mlp_inputs(
        state.policy_params, observation_size, seen_context(state, context)),
      critic_params=critics_at(state, context), observation_statistics=known)

  def critics_at(
    state: types.State, context: types.Array
  ) -> types.Params | None:
    if not own_critics:
      return None
    return jax.vmap(networks.fix_mlp_inputs, (0, None, None))(
      state.critic_params, observation_size, seen_context(state, context))

  def seen_context(state: types.State, context: types.Array) -> types.Array:
    """Returns the context as the networks see it."""
    nothing = jnp.zeros(observation_size, context.dtype)
    whole = _with_context(nothing, context)
    return statistics.normalize_by_statistics(
      state.observation_statistics, whole)[observation_size:]

  return base.SharedCritic(learner, improve, genotype_at)


def _with_context(
  observations: types.Array, context: types.Array
) -> types.Array:
  """Appends a context [K] to observations [..., O]: [..., O + K]."""
  shape = (*observations.shape[:-1], *context.shape)
  return jnp.concatenate(
    [observations, jnp.broadcast_to(context, shape)], axis=-1)
