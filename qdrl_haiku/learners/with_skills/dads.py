"""DADS, skills whose steps can be predicted (Sharma et al., 1907.01657)."""

import dataclasses

import jax
import jax.numpy as jnp

from qdrl_haiku import losses, skills, specs, types
from qdrl_haiku.config import setting
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners import base, statistics
from qdrl_haiku.learners.with_skills.objective import (
  TASK_REWARD_WEIGHT,
  ObjectiveConfig,
  SkillObjective,
  SkillState,
  SkillSteps,
  skill_input,
)
from qdrl_haiku.learners.with_skills.skill_learner import learner_of_objective

_PARAMS, _STATISTICS = "dynamics_params", "difference_statistics"


@dataclasses.dataclass(frozen=True)
class DADSConfig(ObjectiveConfig):
  """Shapes DADS's skill dynamics and its computation."""

  hyperparameters = {
    "dynamics_learning_rate": Hyperparameter(
      1e-3, "Adam's learning rate for DADS's skill dynamics"),
    "task_reward_weight": TASK_REWARD_WEIGHT}
  dynamics_input: str = setting(
    "descriptor",
    "What DADS's dynamics predict the change of: a state's descriptor, such as "
    "x and y, or the whole observation. They always see the observation.",
    choices=("descriptor", "observation"))
  num_components: int = setting(
    4, "Gaussians that DADS's dynamics mix.", low=1, offered=False)
  num_other_skills: int = setting(
    16,
    "Skills of other steps that DADS compares a continuous one with; discrete "
    "ones are all compared.",
    low=1, offered=False)


def dads_objective(
  observation_size: int | specs.Observation, prior: skills.SkillPrior,
  descriptor_size: int | None = None, config: DADSConfig = DADSConfig(),
) -> SkillObjective:
  """Rewards skills whose steps differ from other skills' and are predictable.

  The reward is log q(s' - s|s, z) less the log of its mean over skills of the
  prior: all of them if they are discrete, else those of other steps, the
  step's own left out. The authors' code counts the own one in every mean, and
  cuts differences of log-densities to +-50; here nothing is cut.

  Args and errors are those of `diayn_objective`.

  Returns:
    The objective of `skill_learner`; it learns `dynamics_params`, and
    `difference_statistics`, of s' - s, by which it's normalised.
  """
  seen, num_components = config.dynamics_input, config.num_components
  size, see = skill_input(
    seen, observation_size, descriptor_size, "dynamics_input")
  whole_size, see_whole = skill_input(
    "observation", observation_size, None, "dynamics_input")
  network = config.make_network(
    whole_size + prior.size, num_components * (1 + size))

  def init(key: types.Key) -> dict[str, types.Tree]:
    return {
      _PARAMS: network.init(key),
      _STATISTICS: statistics.init_statistics(size)}

  def difference(state: SkillState, steps: SkillSteps) -> types.Array:
    # Raw inputs: `difference_statistics` normalise their difference.
    raw = state._replace(observation_statistics=None)
    before = see(raw, steps.observation, steps.descriptor)
    return see(raw, steps.next_observation, steps.next_descriptor) - before

  def log_prob(
    state: SkillState, steps: SkillSteps, skill: types.Array
  ) -> types.Array:
    """Returns log q [...] of steps [...] if their skills were `skill`."""
    observation = see_whole(state, steps.observation, None)
    outputs = network.apply(
      state.learned[_PARAMS], jnp.concatenate([observation, skill], axis=-1))
    logits, locations = jnp.split(outputs, [num_components], axis=-1)
    locations = locations.reshape(*logits.shape, size)
    changed = statistics.normalize_by_statistics(
      state.learned[_STATISTICS], difference(state, steps))
    return jnp.vectorize(
      losses.dads_log_prob, signature="(m),(m,g),(g)->()"
    )(logits, locations, changed)

  def others(skill: types.Array) -> types.Array:
    """Returns skills [L, ...] of the prior to compare with."""
    if prior.num_skills is not None:
      every = jnp.eye(prior.num_skills)
      shape = (prior.num_skills, *skill.shape)
      return jnp.broadcast_to(
        every.reshape(-1, *[1] * (skill.ndim - 1), prior.size), shape)
    # Skills of other steps are drawn from the prior too.
    number = min(config.num_other_skills, len(skill) - 1)
    if not number:
      raise ValueError(
        "dads compares a continuous skill with skills of other steps, and has "
        "only one step; take batch_size (of ppo num_envs) and "
        "num_eval_episodes of 2 or more.")
    return jnp.stack([jnp.roll(skill, i + 1, axis=0) for i in range(number)])

  def other_log_probs(state: SkillState, steps: SkillSteps) -> types.Array:
    """Returns log q [L, ...] of steps [...] for skills of the prior."""
    return jax.vmap(lambda skill: log_prob(state, steps, skill))(
      others(steps.skill))

  def reward(own: types.Array, of_others: types.Array) -> types.Array:
    return jnp.vectorize(losses.dads_reward, signature="(),(l)->()")(
      own, jnp.moveaxis(of_others, 0, -1))

  def learn(
    state: SkillState, hyperparams: types.Hyperparams, steps: SkillSteps
  ) -> tuple[SkillState, types.Array, types.Metrics]:
    state = state.with_learned(**{_STATISTICS: statistics.update_statistics(
      state.learned[_STATISTICS], difference(state, steps))})

    def loss_fn(params: types.Params) -> base.LossAndMore:
      now = state.with_learned(**{_PARAMS: params})
      own = log_prob(now, steps, steps.skill)
      return -jnp.mean(own), (own, params)

    after, descent = state.descend(
      _PARAMS, loss_fn, hyperparams["dynamics_learning_rate"])
    rewards = reward(descent.more, other_log_probs(state, steps))
    return after, rewards, {
      "dynamics_loss": descent.loss,
      "gradient_norm/dynamics": descent.gradient_norm}

  def score(state: SkillState, steps: SkillSteps) -> dict[str, types.Array]:
    of_others = other_log_probs(state, steps)
    rewards = reward(log_prob(state, steps, steps.skill), of_others)
    found = {"diversity": rewards, "information": rewards}
    if prior.num_skills is not None:
      likeliest = jnp.argmax(of_others, axis=0)
      found["told"] = likeliest == jnp.argmax(steps.skill, axis=-1)
    return found

  return SkillObjective(
    "dads", prior, config.hyperparameters, init, (_PARAMS,), learn, score, None,
    seen, ("descriptor", "next_descriptor") if seen == "descriptor" else (),
    config.normalize_observations)


dads = learner_of_objective(dads_objective)
"""Learns skills whose steps can be predicted; see `learner_of_objective`."""
