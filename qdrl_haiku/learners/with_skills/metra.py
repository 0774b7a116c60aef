"""METRA, skills that go far (Park et al., arXiv 2310.08887)."""

import dataclasses

import jax
import jax.numpy as jnp

from qdrl_haiku import losses, skills, specs, types
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

_PARAMS, _MULTIPLIER = "representation_params", "log_multiplier"


@dataclasses.dataclass(frozen=True)
class METRAConfig(ObjectiveConfig):
  """Shapes METRA's representation and its computation."""

  hyperparameters = {
    "representation_learning_rate": Hyperparameter(
      1e-3, "Adam's learning rate for METRA's representation"),
    "multiplier_learning_rate": Hyperparameter(
      3e-3, "Adam's learning rate for METRA's multiplier, lambda"),
    "constraint_slack": Hyperparameter(
      1e-3, "most that a short step counts for METRA's constraint, epsilon"),
    "task_reward_weight": TASK_REWARD_WEIGHT}
  representation_input: str = setting(
    "observation",
    "Part of a state that METRA's representation sees: its descriptor, or the "
    "whole observation.",
    choices=("descriptor", "observation"))
  initial_multiplier: float = setting(
    30.0, "METRA's lambda at first.", low=1e-30, high=1e30, offered=False)


def metra_objective(
  observation_size: int | specs.Observation, prior: skills.SkillPrior,
  descriptor_size: int | None = None, config: METRAConfig = METRAConfig(),
) -> SkillObjective:
  """Rewards skills that lead far apart, by a distance that it learns.

  A representation phi of states is trained to move along the skill z, at most
  by 1 in a step, which a multiplier enforces; the reward is
  (phi(s') - phi(s)) . z. Discrete skills are centred: (K onehot - 1) / (K - 1).

  Args and errors are those of `diayn_objective`.

  Returns:
    The objective of `skill_learner`; it learns `representation_params`, those
    of phi, and `log_multiplier`.
  """
  seen = config.representation_input
  size, see = skill_input(
    seen, observation_size, descriptor_size, "representation_input")
  network = config.make_network(size, prior.size)

  def init(key: types.Key) -> dict[str, types.Tree]:
    multiplier = jnp.asarray(config.initial_multiplier, jnp.float32)
    return {_PARAMS: network.init(key), _MULTIPLIER: jnp.log(multiplier)}

  def direction(skill: types.Array) -> types.Array:
    if prior.num_skills is None:
      return skill
    return (prior.num_skills * skill - 1) / (prior.num_skills - 1)

  def phis(
    params: types.Params, state: SkillState, steps: SkillSteps
  ) -> list[types.Array]:
    """Returns phi of the states before and after steps, two of [..., K]."""
    seen_states = (
      (steps.observation, steps.descriptor),
      (steps.next_observation, steps.next_descriptor))
    return [network.apply(params, see(state, *x)) for x in seen_states]

  def learn(
    state: SkillState, hyperparams: types.Hyperparams, steps: SkillSteps
  ) -> tuple[SkillState, types.Array, types.Metrics]:
    skill = direction(steps.skill)
    slack = jnp.asarray(hyperparams["constraint_slack"], jnp.float32)
    multiplier = jnp.exp(state.learned[_MULTIPLIER])

    def loss_fn(params: types.Params) -> base.LossAndMore:
      phi, next_phi = phis(params, state, steps)
      loss = jax.vmap(
        losses.metra_representation_loss, in_axes=(0, 0, 0, None, None)
      )(phi, next_phi, skill, multiplier, slack)
      return jnp.mean(loss), ((phi, next_phi), params)

    after, descent = state.descend(
      _PARAMS, loss_fn, hyperparams["representation_learning_rate"])
    phi, next_phi = descent.more
    room = jnp.mean(
      jax.vmap(losses.metra_slack, in_axes=(0, 0, None))(phi, next_phi, slack))
    after, _ = after.descend(
      _MULTIPLIER, lambda x: (losses.metra_multiplier_loss(x, room), ((), x)),
      hyperparams["multiplier_learning_rate"])
    return after, jax.vmap(losses.metra_reward)(phi, next_phi, skill), {
      "representation_loss": descent.loss, "constraint_slack": room,
      "multiplier": multiplier,
      "gradient_norm/representation": descent.gradient_norm}

  def score(state: SkillState, steps: SkillSteps) -> dict[str, types.Array]:
    phi, next_phi = phis(state.learned[_PARAMS], state, steps)
    per_step = jax.vmap(jax.vmap(losses.metra_reward))
    found = {"diversity": per_step(phi, next_phi, direction(steps.skill))}
    if prior.num_skills is not None:
      # The skill is told from phi's displacement since the episode began.
      likeliest = jnp.argmax(next_phi - phi[:, :1], axis=-1)
      found["told"] = likeliest == jnp.argmax(steps.skill, axis=-1)
    return found

  def goal_skill(
    state: SkillState, observation: types.Tree, descriptor: types.Array | None,
    goal: types.Array,
  ) -> types.Array:
    steps = SkillSteps(observation, goal, goal, descriptor, goal)
    phi, goal_phi = phis(state.learned[_PARAMS], state, steps)
    towards = goal_phi - phi
    is_discrete = prior.num_skills is not None
    return prior.mode(towards) if is_discrete else skills.direction(towards)

  return SkillObjective(
    "metra", prior, config.hyperparameters, init, (_PARAMS, _MULTIPLIER), learn,
    score, goal_skill, seen,
    ("descriptor", "next_descriptor") if seen == "descriptor" else (),
    config.normalize_observations)


metra = learner_of_objective(metra_objective)
"""Learns skills that lead far apart; see `learner_of_objective`."""
