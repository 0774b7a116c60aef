"""Diversity is all you need (Eysenbach et al., arXiv 1802.06070)."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import networks, skills, specs, types
from qdrl_haiku.config import setting
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import base
from qdrl_haiku.learners.with_skills.objective import (
  TASK_REWARD_WEIGHT,
  ObjectiveConfig,
  SkillObjective,
  SkillState,
  SkillSteps,
  skill_input,
)
from qdrl_haiku.learners.with_skills.skill_learner import learner_of_objective

_PARAMS = "discriminator_params"


@dataclasses.dataclass(frozen=True)
class DIAYNConfig(ObjectiveConfig):
  """Shapes DIAYN's discriminator and its computation."""

  hyperparameters = {
    "discriminator_learning_rate": Hyperparameter(
      1e-3, "Adam's learning rate for the discriminator"),
    "task_reward_weight": TASK_REWARD_WEIGHT}
  discriminator_input: str = setting(
    "descriptor",
    "Part of the next state that the discriminator sees: its descriptor, or "
    "the whole observation.",
    choices=("descriptor", "observation"))
  # Else discrete skills' rewards are <= 0, and longer episodes earn less.
  subtract_log_prior: bool = setting(
    True,
    "Whether the intrinsic reward is log q(z|s) - log p(z), not log q(z|s) "
    "alone.",
    offered=False)


def diayn_objective(
  observation_size: int | specs.Observation, prior: skills.SkillPrior,
  descriptor_size: int | None = None, config: DIAYNConfig = DIAYNConfig(),
  network: networks.OwnNetwork | None = None,
) -> SkillObjective:
  """Rewards skills that can be told apart by the states that they visit.

  The reward is log q(z|s') - log p(z), by a discriminator q that learns from
  the same steps.

  Args:
    observation_size: O, without the skill, or the spec of observations.
    prior: what skills are drawn from.
    descriptor_size: D, or None where the environment has no descriptor.
    config: what shapes the discriminator and the computation.
    network: a user's own discriminator, inputs [..., I] ->
      [..., prior.parameter_size], without running state; see
      `networks.OwnNetwork`.

  Returns:
    The objective of `skill_learner`; it learns `discriminator_params`.

  Raises:
    ValueError: if it is to see a descriptor, and there is none, or if a user's
      own network makes other shapes.
  """
  seen = config.discriminator_input
  input_size, see = skill_input(
    seen, observation_size, descriptor_size, "discriminator_input")
  made = config.make_network(input_size, prior.parameter_size)
  if network is not None:
    made = networks.own_network(
      "discriminator", network, (input_size,), (prior.parameter_size,))
    if made.train is not None:
      raise ValueError(
        "the discriminator network has running state or differs in training; "
        "give one without.")

  def reward(parameters: types.Array, skill: types.Array) -> types.Array:
    log_prior = jnp.zeros(())
    if config.subtract_log_prior:
      log_prior = prior.log_prob(skill)
    return prior.reward(parameters, skill, log_prior)

  def learn(
    state: SkillState, hyperparams: types.Hyperparams, steps: SkillSteps
  ) -> tuple[SkillState, types.Array, types.Metrics]:
    inputs = see(state, steps.next_observation, steps.next_descriptor)

    def loss_fn(params: types.Params) -> base.LossAndMore:
      parameters = made.apply(params, inputs)
      loss = jax.vmap(prior.discriminator_loss)(parameters, steps.skill)
      return jnp.mean(loss), (parameters, params)

    state, descent = state.descend(
      _PARAMS, loss_fn, hyperparams["discriminator_learning_rate"])
    return state, jax.vmap(reward)(descent.more, steps.skill), {
      "discriminator_loss": descent.loss,
      "gradient_norm/discriminator": descent.gradient_norm}

  def score(state: SkillState, steps: SkillSteps) -> dict[str, types.Array]:
    inputs = see(state, steps.next_observation, steps.next_descriptor)
    parameters = made.apply(state.learned[_PARAMS], inputs)

    def over_steps(function: Callable[..., types.Array]) -> types.Array:
      return jax.vmap(jax.vmap(function))(parameters, steps.skill)

    found = {
      "diversity": over_steps(reward),
      "information": over_steps(
        lambda p, z: prior.reward(p, z, prior.log_prob(z)))}
    if prior.num_skills is not None:
      found["told"] = over_steps(lambda p, z: jnp.argmax(p) == jnp.argmax(z))
    return found

  def goal_skill(
    state: SkillState, observation: types.Tree, descriptor: types.Array | None,
    goal: types.Array,
  ) -> types.Array:
    del observation, descriptor
    inputs = see(state, goal, goal)
    return prior.mode(made.apply(state.learned[_PARAMS], inputs))

  return SkillObjective(
    "diayn", prior, config.hyperparameters,
    lambda key: {_PARAMS: made.init(key)}, (_PARAMS,), learn, score, goal_skill,
    seen, ("next_descriptor",) if seen == "descriptor" else (),
    config.normalize_observations)


diayn = learner_of_objective(diayn_objective)
"""Learns skills that are told apart by states; see `learner_of_objective`."""
