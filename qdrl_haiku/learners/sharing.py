"""Lets many agents learn from the critics of one.

Nilsson and Cully (2021), "Policy gradient assisted MAP-Elites"; with a context
that critics see, Faldor et al. (2024), "Synergizing quality-diversity with
descriptor-conditioned reinforcement learning", arXiv 2401.08632.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import networks, specs, types
from qdrl_haiku.learners import base, statistics

PolicyStepFn = Callable[..., tuple[types.Params, types.State, types.Metrics]]
"""A policy step that increases the first critic's value: (policy parameters,
optimiser state, critic parameters (the first critic's suffice), observations
[B] for the policy, for the critics with context, learning rate) -> (policy
parameters, optimiser state, metrics)."""


def shared_critic(
  learner: base.Learner, whole: specs.Extended, policy_step: PolicyStepFn,
  optimizer: base.Optimizer, *, own_critics: bool,
) -> base.SharedCritic:
  """Lets many agents learn from the critics of one, which sees a context.

  Args:
    learner: of the agent that has the critics.
    whole: what it observes: the others' observation, and the context.
    policy_step: one step of a policy, see `PolicyStepFn`.
    optimizer: of the policies.
    own_critics: whether the other agents have critics of their own, too.
  """
  of_policy = dataclasses.replace(whole, base=specs.seen_by_policy(whole.base))

  def improve(
    state: types.State, genotype: types.Tree, observations: types.Tree,
    context: types.Array, learning_rate: types.Array | float,
  ) -> types.Tree:
    # The policy climbs the first critic; the other one needn't be computed.
    first = jax.tree.map(lambda x: x[:1], state.critic_params)
    rate = jnp.asarray(learning_rate)

    def step(carry: types.Tree, batch: types.Tree) -> tuple[types.Tree, None]:
      params, optimizer_state = carry
      size = jax.tree.leaves(batch)[0].shape[0]
      judged = statistics.normalize_by_statistics(
        state.observation_statistics,
        whole.join(batch, jnp.broadcast_to(context, (size, *context.shape))))
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
      mean, variance = (whole.split(x)[0] for x in known[1:])
      is_known = jax.tree.leaves(mean)  # Not of integers alone.
      known = known._replace(mean=mean, variance=variance) if is_known else None
    return learner.genotype(state)._replace(
      policy_params=networks.fix_mlp_inputs(
        state.policy_params, of_policy.start, seen_context(state, context)),
      critic_params=critics_at(state, context), observation_statistics=known)

  def critics_at(
    state: types.State, context: types.Array
  ) -> types.Params | None:
    if not own_critics:
      return None
    return jax.vmap(networks.fix_mlp_inputs, (0, None, None))(
      state.critic_params, whole.start, seen_context(state, context))

  def seen_context(state: types.State, context: types.Array) -> types.Array:
    observation = whole.join(specs.zeros(whole.base), context)
    return whole.split(statistics.normalize_by_statistics(
      state.observation_statistics, observation))[1]

  return base.SharedCritic(learner, improve, genotype_at)
