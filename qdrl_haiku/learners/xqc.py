"""XQC: SAC whose critics are classifiers, normalised by batch and by weight.

Palenicek et al., arXiv 2509.25174.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku import eager, losses, networks, types
from qdrl_haiku.config import setting
from qdrl_haiku.learners import base, hyperparameters, soft_policy, statistics
from qdrl_haiku.learners import config as config_lib
from qdrl_haiku.learners.check import check_update
from qdrl_haiku.learners.config import SoftAgentConfig

HYPERPARAMETERS = {
  "discount": hyperparameters.DISCOUNT,
  "tau": hyperparameters.TAU,
  "policy_learning_rate": hyperparameters.POLICY_LEARNING_RATE,
  "critic_learning_rate": hyperparameters.CRITIC_LEARNING_RATE,
  "temperature_learning_rate": hyperparameters.TEMPERATURE_LEARNING_RATE,
  "target_entropy": hyperparameters.TARGET_ENTROPY,
  "reward_scaling": hyperparameters.REWARD_SCALING,
}
"""XQC's, by name."""
# How far the atoms reach beyond the largest return, so that none is at their
# border, and the longest horizon that they reach over.
_MARGIN = 1.25
_LONGEST = 1000.0


@dataclasses.dataclass(frozen=True)
class XQCConfig(SoftAgentConfig):
  """Shapes XQC's networks and its computation."""

  # 3 in the paper, and TD3's here, so that steps are cut up alike.
  policy_delay: int = config_lib.policy_delay()
  num_atoms: int = setting(
    51,
    "Atoms of the distribution of values of xqc's critics.",
    low=2,
    offered=False,
  )


class XQCState(NamedTuple):
  """One XQC agent.

  Attributes:
    policy_params: the policy's parameters.
    critic_params: the twin critics' parameters, leaves [2, ...].
    target_critic_params: the target critics' parameters, leaves [2, ...].
    critic_state: averages of the statistics of the batches that the critics
      have learned from, leaves [2, ...].
    log_temperature: [].
    policy_optimizer_state: Adam's moments for the policy.
    critic_optimizer_state: Adam's moments for the critics.
    temperature_optimizer_state: Adam's moments for the temperature, or None
      if it is not learned.
    observation_statistics: the running statistics, or None.
    reward_statistics: those of the rewards, for the atoms.
  """

  policy_params: types.Params
  critic_params: types.Params
  target_critic_params: types.Params
  critic_state: Any
  log_temperature: types.Array
  policy_optimizer_state: optax.OptState
  critic_optimizer_state: optax.OptState
  temperature_optimizer_state: optax.OptState | None
  observation_statistics: statistics.ObservationStatistics | None
  reward_statistics: statistics.RewardStatistics


class XQCGenotype(NamedTuple):
  """Holds what a repertoire stores of a XQC agent; see `XQCState`."""

  policy_params: types.Params
  critic_params: types.Params
  critic_state: Any
  log_temperature: types.Array
  observation_statistics: statistics.ObservationStatistics | None
  reward_statistics: statistics.RewardStatistics


def xqc(
  observation_size: int, action_size: int, config: XQCConfig = XQCConfig()
) -> base.Learner:
  """Makes XQC: SAC whose critics are classifiers, normalised by their batches.

  The batch and the target's batch, the next observations and the policy's
  actions at them, go through the critics together, and through the target
  critics too, so that both are normalised by the same statistics. Each update
  is `policy_delay` such steps of the critics, a batch each, then one step of
  the policy and of the temperature on the last batch, for which the critics
  are normalised by the averages of what the batches' statistics were, and one
  move of the target critics. Nothing else than an update moves the averages.

  Its hyperparameters are those of `HYPERPARAMETERS`.

  Args:
    observation_size: O.
    action_size: A.
    config: what shapes networks and computation.

  Returns:
    The learner; its state is a `XQCState`, its genotype a `XQCGenotype`.

  Raises:
    ValueError: if a size or a setting is out of its range.
  """
  policy, critic = networks.make_xqc_networks(
    observation_size, action_size, config.network, num_atoms=config.num_atoms
  )
  optimizer = base.adam()
  soft = soft_policy.soft_policy(
    policy, optimizer, optimizer, config.learn_temperature
  )
  declared = hyperparameters.of_temperature(
    HYPERPARAMETERS, config.learn_temperature
  )
  defaults = hyperparameters.defaults(declared)
  if config.learn_temperature:
    defaults["target_entropy"] = hyperparameters.default_target_entropy(
      action_size
    )

  def init(key: types.Key) -> XQCState:
    policy_key, critic_key = jax.random.split(key)
    critic_params, critic_state = critic.init(critic_key)
    return from_genotype(
      XQCGenotype(
        policy_params=policy.init(policy_key),
        critic_params=critic_params,
        critic_state=critic_state,
        log_temperature=jnp.log(
          jnp.asarray(config.initial_temperature, jnp.float32)
        ),
        observation_statistics=statistics.init(observation_size)
        if config.normalizes
        else None,
        reward_statistics=statistics.init_rewards(),
      )
    )

  def genotype(state: XQCState) -> XQCGenotype:
    return XQCGenotype(
      **{name: getattr(state, name) for name in XQCGenotype._fields}
    )

  def from_genotype(genotype: XQCGenotype) -> XQCState:
    return XQCState(
      **genotype._asdict(),
      # A copy: a buffer can't be donated twice.
      target_critic_params=jax.tree.map(jnp.copy, genotype.critic_params),
      policy_optimizer_state=optimizer.init(genotype.policy_params),
      critic_optimizer_state=optimizer.init(genotype.critic_params),
      temperature_optimizer_state=optimizer.init(genotype.log_temperature)
      if config.learn_temperature
      else None,
    )

  def atoms_of(
    rewards: statistics.RewardStatistics,
    hyperparams: types.Hyperparams,
    temperature: types.Array,
  ) -> types.Array:
    """Returns the values [K] that logits are of: all returns lie among them."""
    # Of a step; the entropy of a policy is about as large as A.
    largest = (
      hyperparams["reward_scaling"] * rewards.largest
      + temperature * action_size
    )
    horizon = 1 / jnp.maximum(1 - hyperparams["discount"], 1 / _LONGEST)
    return _MARGIN * horizon * largest * jnp.linspace(-1, 1, config.num_atoms)

  def values(logits: types.Array, atoms: types.Array) -> types.Array:
    """Returns the means [B, 2] of logits [B, 2, K]."""
    of_twins = jax.vmap(losses.categorical_value, in_axes=(0, None))
    return jax.vmap(of_twins, in_axes=(0, None))(logits, atoms)

  @eager.compiled()
  def update(
    state: XQCState,
    hyperparams: types.Hyperparams,
    transitions: types.Transition,
    key: types.Key,
  ) -> tuple[XQCState, types.Metrics]:
    check_update(transitions, hyperparams, defaults, config.policy_delay)
    observation, next_observation = (
      statistics.normalize(state.observation_statistics, x)
      for x in (transitions.observation, transitions.next_observation)
    )
    next_key, policy_key = jax.random.split(key)
    temperature = jnp.exp(state.log_temperature)
    rewards = statistics.update_rewards(
      state.reward_statistics, transitions.reward
    )
    atoms = atoms_of(rewards, hyperparams, temperature)

    # The policy and the targets stand still during a round, so one pass serves
    # all batches.
    next_action, next_log_prob = soft.at(
      state.policy_params, next_observation
    ).sample_and_log_prob(seed=next_key)
    inputs = (
      jnp.concatenate([observation, next_observation], axis=1),
      jnp.concatenate([transitions.action, next_action], axis=1),
    )
    size = observation.shape[1]

    def next_values(*inputs: types.Array) -> types.Array:
      logits, _ = critic.apply(
        state.target_critic_params,
        state.critic_state,
        *inputs,
        is_training=True,
        rows=slice(size, None),
      )
      return values(logits, atoms)

    batches = (
      *inputs,
      transitions.reward * hyperparams["reward_scaling"],
      transitions.discount * hyperparams["discount"],
      jax.vmap(next_values)(*inputs),
      next_log_prob,
    )

    def critic_step(
      carry: tuple[types.Params, Any, optax.OptState], batch: Any
    ) -> tuple[tuple[types.Params, Any, optax.OptState], types.Metrics]:
      params, critic_state, optimizer_state = carry
      observation, action, reward, discount, next_q, log_prob = batch

      def loss_fn(params: types.Params) -> Any:
        logits, moved = critic.apply(
          params,
          critic_state,
          observation,
          action,
          is_training=True,
          rows=slice(size),
        )
        loss = jax.vmap(
          losses.xqc_critic_loss, in_axes=(0, 0, 0, 0, 0, None, None)
        )(logits, reward, discount, next_q, log_prob, temperature, atoms)
        return jnp.mean(loss), (jnp.mean(values(logits, atoms)), moved)

      (loss, (q_mean, critic_state)), gradients = jax.value_and_grad(
        loss_fn, has_aux=True
      )(params)
      params, optimizer_state = optimizer.update(
        gradients,
        optimizer_state,
        params,
        hyperparams["critic_learning_rate"],
      )
      carry = networks.with_unit_norm(params), critic_state, optimizer_state
      return carry, {
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
      logits, _ = critic.apply(
        critic_params, critic_state, observation[-1], action, is_training=False
      )
      return values(logits, atoms)

    state, policy_metrics = soft.step(
      state, hyperparams, observation[-1], q_fn, policy_key
    )
    state = state._replace(
      critic_params=critic_params,
      target_critic_params=base.move_targets(
        state.target_critic_params, critic_params, hyperparams["tau"]
      ),
      critic_state=critic_state,
      critic_optimizer_state=critic_optimizer_state,
      reward_statistics=rewards,
    )
    return state, jax.tree.map(jnp.mean, metrics) | policy_metrics | {
      "largest_value": atoms[-1]
    }

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
