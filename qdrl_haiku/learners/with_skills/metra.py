"""METRA, skills that go far (Park et al., arXiv 2310.08887)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import losses, skills, types
from qdrl_haiku.config import setting
from qdrl_haiku.learners import base
from qdrl_haiku.learners.hyperparameters import Hyperparameter
from qdrl_haiku.learners.statistics import ObservationStatistics
from qdrl_haiku.learners.with_skills.skill_learner import (
  TASK_REWARD_WEIGHT,
  ObjectiveConfig,
  SkillObjective,
  SkillSteps,
  skill_input,
  skill_input_size,
  skill_learner,
)


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


class METRAState(NamedTuple):
  """One METRA agent.

  Attributes:
    agent: the base learner's state.
    representation_params: of phi.
    log_multiplier: [], log lambda.
    representation_optimizer_state: Adam's moments for phi.
    multiplier_optimizer_state: Adam's moments for log lambda.
    observation_statistics: of observations without their skills, or None.
  """

  agent: types.State
  representation_params: types.Params
  log_multiplier: types.Array
  representation_optimizer_state: types.State
  multiplier_optimizer_state: types.State
  observation_statistics: ObservationStatistics | None


class METRAGenotype(NamedTuple):
  """Holds what a repertoire stores of a METRA agent; see `METRAState`."""

  agent: types.Tree
  representation_params: types.Params
  log_multiplier: types.Array
  observation_statistics: ObservationStatistics | None


def metra_objective(
  observation_size: int, prior: skills.SkillPrior,
  descriptor_size: int | None = None, config: METRAConfig = METRAConfig(),
) -> SkillObjective:
  """Rewards skills that lead far apart, by a distance that it learns.

  A representation phi of states is trained to move along the skill z, at most
  by 1 in a step, which a multiplier enforces; the reward is
  (phi(s') - phi(s)) . z. Discrete skills are centred: (K onehot - 1) / (K - 1).

  Args:
    observation_size: O, without the skill.
    prior: what skills are drawn from: directions (`skills.sphere`), numbers
      (`skills.normal`), or discrete ones.
    descriptor_size: D, or None where the environment has no descriptor.
    config: what shapes the representation and the computation.

  Returns:
    The objective of `skill_learner`, whose states are `METRAState`.

  Raises:
    ValueError: if it is to see a descriptor, and there is none.
  """
  seen = config.representation_input
  size = skill_input_size(
    seen, observation_size, descriptor_size, "representation_input")
  network = config.make_network(size, prior.size)
  optimizer = base.Optimizer()

  def init(key: types.Key) -> dict[str, types.Tree]:
    multiplier = jnp.asarray(config.initial_multiplier, jnp.float32)
    return {
      "representation_params": network.init(key),
      "log_multiplier": jnp.log(multiplier)}

  def begin(genotype: METRAGenotype) -> dict[str, types.Tree]:
    return {
      "representation_optimizer_state": optimizer.init(
        genotype.representation_params),
      "multiplier_optimizer_state": optimizer.init(genotype.log_multiplier)}

  def direction(skill: types.Array) -> types.Array:
    if prior.num_skills is None:
      return skill
    return (prior.num_skills * skill - 1) / (prior.num_skills - 1)

  def before_and_after(
    state: METRAState, steps: SkillSteps
  ) -> tuple[types.Array, types.Array]:
    return (
      skill_input(seen, state, steps.observation, steps.descriptor),
      skill_input(seen, state, steps.next_observation, steps.next_descriptor))

  def learn(
    state: METRAState, hyperparams: types.Hyperparams, steps: SkillSteps
  ) -> tuple[METRAState, types.Array, types.Metrics]:
    inputs = before_and_after(state, steps)
    skill = direction(steps.skill)
    slack = jnp.asarray(hyperparams["constraint_slack"], jnp.float32)
    multiplier = jnp.exp(state.log_multiplier)

    def loss_fn(params: types.Params) -> base.LossAndMore:
      phi, next_phi = (network.apply(params, x) for x in inputs)
      loss = jax.vmap(
        losses.metra_representation_loss, in_axes=(0, 0, 0, None, None)
      )(phi, next_phi, skill, multiplier, slack)
      return jnp.mean(loss), ((phi, next_phi), params)

    descent = optimizer.descend(
      loss_fn, state.representation_params,
      state.representation_optimizer_state,
      hyperparams["representation_learning_rate"])
    phi, next_phi = descent.more
    room = jnp.mean(
      jax.vmap(losses.metra_slack, in_axes=(0, 0, None))(phi, next_phi, slack))
    gradient = jax.grad(losses.metra_multiplier_loss)(
      state.log_multiplier, room)
    log_multiplier, multiplier_optimizer_state = optimizer.update(
      gradient, state.multiplier_optimizer_state, state.log_multiplier,
      hyperparams["multiplier_learning_rate"])
    state = state._replace(
      representation_params=descent.params,
      representation_optimizer_state=descent.optimizer_state,
      log_multiplier=log_multiplier,
      multiplier_optimizer_state=multiplier_optimizer_state)
    return state, jax.vmap(losses.metra_reward)(phi, next_phi, skill), {
      "representation_loss": descent.loss, "constraint_slack": room,
      "multiplier": multiplier,
      "gradient_norm/representation": descent.gradient_norm}

  def score(state: METRAState, steps: SkillSteps) -> dict[str, types.Array]:
    phi, next_phi = (
      network.apply(state.representation_params, x)
      for x in before_and_after(state, steps))
    per_step = jax.vmap(jax.vmap(losses.metra_reward))
    found = {"diversity": per_step(phi, next_phi, direction(steps.skill))}
    if prior.num_skills is not None:
      # The skill is told from phi's displacement since the episode began.
      likeliest = jnp.argmax(next_phi - phi[:, :1], axis=-1)
      found["told"] = likeliest == jnp.argmax(steps.skill, axis=-1)
    return found

  def goal_skill(
    state: METRAState, observation: types.Array, descriptor: types.Array | None,
    goal: types.Array,
  ) -> types.Array:
    here = skill_input(seen, state, observation, descriptor)
    there = skill_input(seen, state, goal, goal)
    phi, goal_phi = (
      network.apply(state.representation_params, x) for x in (here, there))
    towards = goal_phi - phi
    is_discrete = prior.num_skills is not None
    return prior.mode(towards) if is_discrete else skills.direction(towards)

  return SkillObjective(
    "metra", prior, config.hyperparameters, METRAState, METRAGenotype, init,
    begin, learn, score, goal_skill, seen,
    ("descriptor", "next_descriptor") if seen == "descriptor" else ())


def metra(
  base_learner: base.Learner, observation_size: int, prior: skills.SkillPrior,
  descriptor_size: int | None = None, config: METRAConfig = METRAConfig(),
) -> base.Learner:
  """Learns skills that lead far apart, by a distance that it learns.

  See `skill_learner`. The base learner is made for O + K observations; the
  other arguments, and the errors, are those of `metra_objective`.

  Returns:
    The learner; its state is a `METRAState`, its genotype a `METRAGenotype`.
  """
  objective = metra_objective(observation_size, prior, descriptor_size, config)
  return skill_learner(
    base_learner, observation_size, objective, config.normalize_observations)
