"""CrossQ: batch normalisation in the place of target networks.

Bhatt et al., arXiv 1902.05605.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku import eager, losses, networks, types
from qdrl_haiku.learners import base, hyperparameters, soft_policy, statistics
from qdrl_haiku.learners import config as config_lib
from qdrl_haiku.learners.check import check_update
from qdrl_haiku.learners.config import SoftAgentConfig

HYPERPARAMETERS = {
  "discount": hyperparameters.DISCOUNT,
  "policy_learning_rate": hyperparameters.POLICY_LEARNING_RATE,
  "critic_learning_rate": hyperparameters.CRITIC_LEARNING_RATE,
  "temperature_learning_rate": hyperparameters.TEMPERATURE_LEARNING_RATE,
  "target_entropy": hyperparameters.TARGET_ENTROPY,
  "reward_scaling": hyperparameters.REWARD_SCALING,
}
"""CrossQ's, by name."""
# Of Adam, in section 4 and table 2 of the paper.
_B1 = 0.5


@dataclasses.dataclass(frozen=True)
class CrossQConfig(SoftAgentConfig):
  """Shapes CrossQ's networks and its computation."""

  # 3 in the paper, and TD3's here, so that steps are cut up alike.
  policy_delay: int = config_lib.policy_delay()


class CrossQState(NamedTuple):
  """One CrossQ agent.

  Attributes:
    policy_params: the policy's parameters.
    critic_params: the twin critics' parameters, leaves [2, ...].
    critic_state: averages of the statistics of the batches that the critics
      have learned from, leaves [2, ...].
    log_temperature: [].
    policy_optimizer_state: Adam's moments for the policy.
    critic_optimizer_state: Adam's moments for the critics.
    temperature_optimizer_state: Adam's moments for the temperature, or None
      if it is not learned.
    observation_statistics: the running statistics, or None.
  """

  policy_params: types.Params
  critic_params: types.Params
  critic_state: Any
  log_temperature: types.Array
  policy_optimizer_state: optax.OptState
  critic_optimizer_state: optax.OptState
  temperature_optimizer_state: optax.OptState | None
  observation_statistics: statistics.ObservationStatistics | None


class CrossQGenotype(NamedTuple):
  """Holds what a repertoire stores of a CrossQ agent."""

  policy_params: types.Params
  critic_params: types.Params
  critic_state: Any
  log_temperature: types.Array
  observation_statistics: statistics.ObservationStatistics | None


def crossq(
  observation_size: int, action_size: int, config: CrossQConfig = CrossQConfig()
) -> base.Learner:
  """Makes CrossQ: SAC without target networks, with normalised critics.

  The batch and the target's batch, the next observations and the policy's
  actions at them, go through the critics together, so that both are normalised
  by the same statistics. Each update is `policy_delay` such steps of the
  critics, a batch each, then one step of the policy and of the temperature on
  the last batch, for which the critics are normalised by the averages of what
  the batches' statistics were. Nothing else than an update moves these.

  Its hyperparameters are those of `HYPERPARAMETERS`.

  Args:
    observation_size: O.
    action_size: A.
    config: what shapes networks and computation.

  Returns:
    The learner; its state is a `CrossQState`, its genotype a `CrossQGenotype`.

  Raises:
    ValueError: if a size or a setting is out of its range.
  """
  policy, critic = networks.make_crossq_networks(
    observation_size, action_size, config.network
  )
  optimizer, temperature_optimizer = base.adam(_B1), base.adam()
  soft = soft_policy.soft_policy(
    policy, optimizer, temperature_optimizer, config.learn_temperature
  )
  declared = hyperparameters.of_temperature(
    HYPERPARAMETERS, config.learn_temperature
  )
  defaults = hyperparameters.defaults(declared)
  if config.learn_temperature:
    defaults["target_entropy"] = hyperparameters.default_target_entropy(
      action_size
    )

  def init(key: types.Key) -> CrossQState:
    policy_key, critic_key = jax.random.split(key)
    critic_params, critic_state = critic.init(critic_key)
    return from_genotype(
      CrossQGenotype(
        policy_params=policy.init(policy_key),
        critic_params=critic_params,
        critic_state=critic_state,
        log_temperature=jnp.log(
          jnp.asarray(config.initial_temperature, jnp.float32)
        ),
        observation_statistics=statistics.init(observation_size)
        if config.normalizes
        else None,
      )
    )

  def genotype(state: CrossQState) -> CrossQGenotype:
    return CrossQGenotype(
      **{name: getattr(state, name) for name in CrossQGenotype._fields}
    )

  def from_genotype(genotype: CrossQGenotype) -> CrossQState:
    return CrossQState(
      **genotype._asdict(),
      policy_optimizer_state=optimizer.init(genotype.policy_params),
      critic_optimizer_state=optimizer.init(genotype.critic_params),
      temperature_optimizer_state=temperature_optimizer.init(
        genotype.log_temperature
      )
      if config.learn_temperature
      else None,
    )

  @eager.compiled()
  def update(
    state: CrossQState,
    hyperparams: types.Hyperparams,
    transitions: types.Transition,
    key: types.Key,
  ) -> tuple[CrossQState, types.Metrics]:
    check_update(transitions, hyperparams, defaults, config.policy_delay)
    observation, next_observation = (
      statistics.normalize(state.observation_statistics, x)
      for x in (transitions.observation, transitions.next_observation)
    )
    next_key, policy_key = jax.random.split(key)
    temperature = jnp.exp(state.log_temperature)
    # The policy stands still during a round, so one pass serves all batches.
    next_action, next_log_prob = soft.at(
      state.policy_params, next_observation
    ).sample_and_log_prob(seed=next_key)
    batches = (
      jnp.concatenate([observation, next_observation], axis=1),
      jnp.concatenate([transitions.action, next_action], axis=1),
      transitions.reward * hyperparams["reward_scaling"],
      transitions.discount * hyperparams["discount"],
      next_log_prob,
    )

    def critic_step(
      carry: tuple[types.Params, Any, optax.OptState], batch: Any
    ) -> tuple[tuple[types.Params, Any, optax.OptState], types.Metrics]:
      params, critic_state, optimizer_state = carry
      *inputs, reward, discount, log_prob = batch

      def loss_fn(params: types.Params) -> Any:
        both, moved = critic.apply(
          params, critic_state, *inputs, is_training=True
        )
        q, next_q = jnp.split(both[..., 0], 2)
        loss = jax.vmap(losses.sac_critic_loss, in_axes=(0, 0, 0, 0, 0, None))(
          q, reward, discount, next_q, log_prob, temperature
        )
        return jnp.mean(loss), (jnp.mean(q), moved)

      (loss, (q_mean, critic_state)), gradients = jax.value_and_grad(
        loss_fn, has_aux=True
      )(params)
      params, optimizer_state = optimizer.update(
        gradients,
        optimizer_state,
        params,
        hyperparams["critic_learning_rate"],
      )
      return (params, critic_state, optimizer_state), {
        "critic_loss": loss,
        "q_mean": q_mean,
        "gradient_norm/critic": optax.tree.norm(gradients),
      }

    (critic_params, critic_state, critic_optimizer_state), metrics = (
      jax.lax.scan(
        critic_step,
        (
          state.critic_params,
          state.critic_state,
          state.critic_optimizer_state,
        ),
        batches,
        # A round is short: unrolled, XLA fuses across its steps.
        unroll=True,
      )
    )

    def q_fn(action: types.Array) -> types.Array:
      q, _ = critic.apply(
        critic_params, critic_state, observation[-1], action, is_training=False
      )
      return q[..., 0]

    state, policy_metrics = soft.step(
      state, hyperparams, observation[-1], q_fn, policy_key
    )
    state = state._replace(
      critic_params=critic_params,
      critic_state=critic_state,
      critic_optimizer_state=critic_optimizer_state,
    )
    return state, jax.tree.map(jnp.mean, metrics) | policy_metrics

  return base.Learner(
    init=init,
    update=update,
    act=soft.act,
    act_greedy=soft.act_greedy,
    observe=statistics.observe,
    hyperparams=defaults,
    batches_per_update=config.policy_delay,
    genotype=genotype,
    from_genotype=from_genotype,
    declared=declared,
  )
