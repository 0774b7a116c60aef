"""SMERL, several ways to do one task (Kumar et al., arXiv 2010.14484)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import skills, types
from qdrl_haiku.config import setting
from qdrl_haiku.learners import base
from qdrl_haiku.learners.hyperparameters import Hyperparameter
from qdrl_haiku.learners.statistics import ObservationStatistics
from qdrl_haiku.learners.with_skills import diayn
from qdrl_haiku.learners.with_skills.skill_learner import (
  TASK_REWARD_WEIGHT,
  SkillObjective,
  SkillSteps,
  skill_learner,
)
from qdrl_haiku.losses import smerl_reward

_BEST_RETURN_RATE = 0.01
_OWN = {
  "diversity_reward_weight": Hyperparameter(
    1.0, "weight of SMERL's diversity reward, alpha"),
  "return_margin_share": Hyperparameter(
    0.1,
    "how far below SMERL's target a return may be, as a share of the target's "
    "absolute value, epsilon",
    high=1.0),
  # The task comes first.
  "task_reward_weight": dataclasses.replace(TASK_REWARD_WEIGHT, default=1.0)}


@dataclasses.dataclass(frozen=True)
class SMERLConfig(diayn.DIAYNConfig):
  """Shapes SMERL: its target return, and DIAYN's discriminator."""

  hyperparameters = diayn.DIAYNConfig.hyperparameters | _OWN
  target_return: float | None = setting(
    None,
    "Return that SMERL's skills must reach, within --return_margin_share, to "
    "be rewarded for being different; by default the mean of the episodes that "
    "do. Give one if that is about 0.")


class SMERLState(NamedTuple):
  """One SMERL agent.

  Attributes:
    agent: the base learner's state.
    diversity: the genotype of the diversity objective, without an agent.
    diversity_optimizers: the other fields of that objective's state, by name.
    best_return: [], the mean return of the best episodes, see
      `smerl_objective`; `skills.NO_RETURN` before any has ended.
    observation_statistics: of observations without their skills, or None.
  """

  agent: types.State
  diversity: types.Tree
  diversity_optimizers: dict[str, types.State]
  best_return: types.Array
  observation_statistics: ObservationStatistics | None


class SMERLGenotype(NamedTuple):
  """Holds what a repertoire stores of a SMERL agent; see `SMERLState`."""

  agent: types.Tree
  diversity: types.Tree
  best_return: types.Array
  observation_statistics: ObservationStatistics | None


def smerl_objective(
  observation_size: int, prior: skills.SkillPrior,
  descriptor_size: int | None = None, config: SMERLConfig = SMERLConfig(),
  diversity: SkillObjective | None = None,
) -> SkillObjective:
  """Rewards skills for being different while they do the task well.

  The reward is the task's, and alpha times that of another objective where the
  policy is near the optimum (Kumar et al., section 4):

    r + alpha 1[R(pi) >= R* - epsilon] r_diversity.

  Epsilon is a share of |R*|. The paper's R* is the return of an optimal policy,
  and the authors' code is given R* - epsilon for each task. Here R* is the
  target, or else the mean return of the best episodes: an average of rate 0.01
  over the batches' means of those returns that are within epsilon of it. The
  paper estimates R(pi) by the return of the step's own episode, which isn't
  known here: a step is stored, once, and may be learned from, while its episode
  goes on. So it's the return of the skill's latest whole episode in that
  instance of the environment.

  Args:
    observation_size: O, without the skill.
    prior: what skills are drawn from, discrete ones.
    descriptor_size: D, or None where the environment has no descriptor.
    config: the target, and what shapes DIAYN's discriminator.
    diversity: the other objective; DIAYN's by default.

  Returns:
    The objective of `skill_learner`, whose states are `SMERLState`; for an
    `environments.SkillEnvironment` that keeps skills' returns.

  Raises:
    ValueError: if skills are continuous; see `diayn_objective`.
  """
  diversity = diversity or diayn.diayn_objective(
    observation_size, prior, descriptor_size, config)
  if prior.num_skills is None:
    raise ValueError(
      "smerl knows a return of each skill, and so discrete skills alone; take "
      "skill_type=discrete.")

  def inside(state: SMERLState) -> types.State:
    """Returns the state of the other objective."""
    fields = state.diversity._asdict() | state.diversity_optimizers
    statistics = {"observation_statistics": state.observation_statistics}
    return diversity.state(**fields | statistics)

  def outside(inner: types.State) -> dict[str, types.Tree]:
    """Returns the fields that hold the state of the other objective."""
    fields = inner._asdict() | {"observation_statistics": None}
    stored = {name: fields.pop(name) for name in diversity.genotype._fields}
    return {
      "diversity": diversity.genotype(**stored), "diversity_optimizers": fields}

  def init(key: types.Key) -> dict[str, types.Tree]:
    own = diversity.init(key)
    nothing = {"agent": None, "observation_statistics": None}
    return {
      "diversity": diversity.genotype(**own, **nothing),
      "best_return": jnp.full((), skills.NO_RETURN, jnp.float32)}

  def begin(genotype: SMERLGenotype) -> dict[str, types.Tree]:
    return {"diversity_optimizers": diversity.begin(genotype.diversity)}

  def learn(
    state: SMERLState, hyperparams: types.Hyperparams, steps: SkillSteps
  ) -> tuple[SMERLState, types.Array, types.Metrics]:
    if steps.skill_return is None:
      raise ValueError(
        "the transitions have no skill_return in their extras; take an "
        "environment that keeps it (SkillEnvironment(..., keeps_returns=True))."
      )
    after, rewards, metrics = diversity.learn(inside(state), hyperparams, steps)
    share, returns = hyperparams["return_margin_share"], steps.skill_return
    best = target = _best_return(state.best_return, returns, share)
    if config.target_return is not None:
      target = jnp.asarray(config.target_return, jnp.float32)
    margin = share * jnp.abs(target)
    # Before any episode has ended, no skill is near the target.
    target = jnp.where(target > skills.NO_RETURN, target, jnp.inf)
    rewards = jax.vmap(smerl_reward, in_axes=(0, 0, None, None, None))(
      rewards, returns, target, margin, hyperparams["diversity_reward_weight"])
    state = state._replace(**outside(after), best_return=best)
    metrics["share_near_target"] = jnp.mean(returns >= target - margin)
    return state, rewards, metrics

  def score(state: SMERLState, steps: SkillSteps) -> dict[str, types.Array]:
    return diversity.score(inside(state), steps)

  def goal_skill(
    state: SMERLState, observation: types.Array,
    descriptor: types.Array | None, goal: types.Array,
  ) -> types.Array:
    assert diversity.goal_skill is not None
    return diversity.goal_skill(inside(state), observation, descriptor, goal)

  return diversity._replace(
    name="smerl", declared={**diversity.declared, **_OWN}, state=SMERLState,
    genotype=SMERLGenotype, init=init, begin=begin, learn=learn, score=score,
    goal_skill=None if diversity.goal_skill is None else goal_skill,
    extras=(*diversity.extras, "skill_return"))


def _best_return(
  best: types.Array, returns: types.Array, share: types.Array
) -> types.Array:
  """Moves R* towards the mean of the returns [B] within its margin."""
  bound = jnp.where(
    best > skills.NO_RETURN, best - share * jnp.abs(best), skills.NO_RETURN)
  is_near = (returns > skills.NO_RETURN) & (returns >= bound)
  number = jnp.sum(is_near)
  mean = jnp.sum(jnp.where(is_near, returns, 0)) / jnp.maximum(number, 1)
  moved = jnp.where(
    best > skills.NO_RETURN, best + _BEST_RETURN_RATE * (mean - best), mean)
  return jnp.where(number > 0, moved, best)


def smerl(
  base_learner: base.Learner, observation_size: int, prior: skills.SkillPrior,
  descriptor_size: int | None = None, config: SMERLConfig = SMERLConfig(),
  diversity: SkillObjective | None = None,
) -> base.Learner:
  """Learns several ways to do a task.

  See `skill_learner`. The base learner is made for O + K observations; the
  other arguments, and the errors, are those of `smerl_objective`.

  Returns:
    The learner; its state is a `SMERLState`, its genotype a `SMERLGenotype`.
  """
  objective = smerl_objective(
    observation_size, prior, descriptor_size, config, diversity)
  return skill_learner(
    base_learner, observation_size, objective, config.normalize_observations)
