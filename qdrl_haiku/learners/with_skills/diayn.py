"""Diversity is all you need (Eysenbach et al., arXiv 1802.06070)."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import networks, skills, types
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.hyperparameters import Hyperparameter
from qdrl_haiku.learners.with_skills.skill_learner import (
  TASK_REWARD_WEIGHT,
  SkillObjective,
  skill_learner,
)

HYPERPARAMETERS = {
  "discriminator_learning_rate": Hyperparameter(
    1e-3, "Adam's learning rate for the discriminator"
  ),
  "task_reward_weight": TASK_REWARD_WEIGHT,
}
"""DIAYN's, by name, beside those of the learner that it wraps."""


@dataclasses.dataclass(frozen=True)
class DIAYNConfig(Settings):
  """Shapes DIAYN's discriminator and its computation."""

  title = "Skills"

  discriminator_input: str = setting(
    "descriptor",
    "Part of the next state that the discriminator sees: its descriptor, or "
    "the whole observation.",
    choices=("descriptor", "observation"),
  )
  discriminator_hidden_layer_sizes: tuple[int, ...] | None = setting(
    None,
    "Widths of the discriminator's hidden layers; by default "
    "--hidden_layer_sizes.",
    low=1,
    offered=False,
  )
  activation: str = setting(
    "relu", "Activation of the discriminator, see `NetworkConfig`.", flag=""
  )
  layer_norm: bool = setting(
    False, "Whether the discriminator's layers are normalised.", flag=""
  )
  # Without it living on costs something.
  subtract_log_prior: bool = setting(
    True,
    "Whether the intrinsic reward is log q(z|s) - log p(z), not log q(z|s) "
    "alone.",
    offered=False,
  )
  # The skills are left alone; the base learner is made without.
  normalize_observations: bool = setting(
    False,
    "Whether the agent, and a discriminator of observations, see them "
    "normalised by running statistics.",
    flag="",
  )


class DIAYNState(NamedTuple):
  """One DIAYN agent.

  Attributes:
    agent: the base learner's state.
    discriminator_params: the discriminator's parameters.
    discriminator_optimizer_state: Adam's moments for them.
    observation_statistics: of the O numbers of an observation that are no
      skill, or None.
  """

  agent: types.State
  discriminator_params: types.Params
  discriminator_optimizer_state: types.State
  observation_statistics: statistics.ObservationStatistics | None


class DIAYNGenotype(NamedTuple):
  """Holds what a repertoire stores of a DIAYN agent; see `DIAYNState`."""

  agent: types.Tree
  discriminator_params: types.Params
  observation_statistics: statistics.ObservationStatistics | None


class Discriminator(NamedTuple):
  """Holds the functions of a discriminator of skills.

  Attributes:
    prior: of the skills.
    init: (key) -> parameters.
    parameters: (state, observations [..., O + K], descriptors [..., D] or
      None) -> the parameters of q(z|s) for those states, as `prior` takes them.
    reward: (parameters of q [], skill [K]) -> [], the intrinsic reward.
  """

  prior: skills.SkillPrior
  init: Callable[[types.Key], types.Params]
  parameters: Callable[
    [DIAYNState, types.Array, types.Array | None], types.Array
  ]
  reward: Callable[[types.Array, types.Array], types.Array]


def diayn_discriminator(
  observation_size: int,
  prior: skills.SkillPrior,
  descriptor_size: int | None = None,
  config: DIAYNConfig = DIAYNConfig(),
  network: networks.OwnNetwork | None = None,
) -> Discriminator:
  """Makes the discriminator that `diayn` trains, to be asked afterwards.

  Args:
    observation_size: O, without the skill.
    prior: what skills are drawn from.
    descriptor_size: D, or None where the environment has no descriptor.
    config: as `diayn` had it.
    network: of a user's own, inputs [..., I] -> [..., prior.parameter_size],
      without running state; see `networks.OwnNetwork`.

  Raises:
    ValueError: if it is to see a descriptor, and there is none, or if a user's
      own network makes other shapes.
  """
  input_size = observation_size
  if config.discriminator_input == "descriptor":
    if descriptor_size is None:
      raise ValueError(
        "discriminator_input=descriptor, but the environment has no state "
        "descriptor; take one that has, or discriminator_input=observation."
      )
    input_size = descriptor_size
  sizes = config.discriminator_hidden_layer_sizes
  made = networks.make_discriminator(
    input_size,
    prior.parameter_size,
    (256, 256) if sizes is None else sizes,
    activation=config.activation,
    layer_norm=config.layer_norm,
  )
  if network is not None:
    made = networks.own_network(
      "discriminator", network, (input_size,), (prior.parameter_size,)
    )
    if made.train is not None:
      raise ValueError(
        "the discriminator network has running state or differs in training; "
        "give one without."
      )

  def parameters(
    state: DIAYNState,
    observation: types.Array,
    descriptor: types.Array | None,
  ) -> types.Array:
    inputs = descriptor
    if config.discriminator_input == "descriptor" and descriptor is None:
      raise ValueError(
        "the transitions have no next_descriptor in their extras, which the "
        "discriminator is to see; store it (TrainingConfig.replay_extras)."
      )
    if config.discriminator_input == "observation":
      observation = observation[..., :observation_size]
      inputs = statistics.normalize_by_statistics(
        state.observation_statistics, observation
      )
    return made.apply(state.discriminator_params, inputs)

  def reward(parameters: types.Array, skill: types.Array) -> types.Array:
    log_prior = jnp.zeros(())
    if config.subtract_log_prior:
      log_prior = prior.log_prob(skill)
    return prior.reward(parameters, skill, log_prior)

  return Discriminator(prior, made.init, parameters, reward)


def diayn(
  base_learner: base.Learner,
  observation_size: int,
  prior: skills.SkillPrior,
  descriptor_size: int | None = None,
  config: DIAYNConfig = DIAYNConfig(),
  network: networks.OwnNetwork | None = None,
) -> base.Learner:
  """Learns skills that can be told apart by the states that they visit.

  Each batch is rewarded with log q(z|s') - log p(z), by the discriminator as it
  is then, which takes one step on it; see `skill_learner`.

  Args:
    base_learner: learns to act; made for O + K observations.
    observation_size: O, without the skill.
    prior: what skills are drawn from.
    descriptor_size: D, or None where the environment has no descriptor.
    config: what shapes the discriminator and the computation.
    network: the discriminator's, see `diayn_discriminator`.

  Returns:
    The learner; its state is a `DIAYNState`, its genotype a `DIAYNGenotype`.

  Raises:
    ValueError: see `diayn_discriminator`.
  """
  classifier = diayn_discriminator(
    observation_size, prior, descriptor_size, config, network
  )
  optimizer = base.Optimizer()

  def init(key: types.Key) -> dict[str, types.Tree]:
    return {"discriminator_params": classifier.init(key)}

  def begin(genotype: DIAYNGenotype) -> dict[str, types.Tree]:
    state = optimizer.init(genotype.discriminator_params)
    return {"discriminator_optimizer_state": state}

  def reward(
    state: DIAYNState,
    hyperparams: types.Hyperparams,
    batch: types.Transition,
    skill: types.Array,
  ) -> tuple[DIAYNState, types.Array, types.Metrics]:
    def loss_fn(params: types.Params) -> base.LossAndMore:
      parameters = classifier.parameters(
        state._replace(discriminator_params=params),
        batch.next_observation,
        batch.extras.get("next_descriptor"),
      )
      loss = jax.vmap(prior.discriminator_loss)(parameters, skill)
      return jnp.mean(loss), (parameters, params)

    descent = optimizer.descend(
      loss_fn,
      state.discriminator_params,
      state.discriminator_optimizer_state,
      hyperparams["discriminator_learning_rate"],
    )
    state = state._replace(
      discriminator_params=descent.params,
      discriminator_optimizer_state=descent.optimizer_state,
    )
    return state, jax.vmap(classifier.reward)(descent.more, skill), {
      "discriminator_loss": descent.loss,
      "gradient_norm/discriminator": descent.gradient_norm,
    }

  objective = SkillObjective(
    HYPERPARAMETERS, DIAYNState, DIAYNGenotype, init, begin, reward
  )
  return skill_learner(
    base_learner, observation_size, objective, config.normalize_observations
  )
