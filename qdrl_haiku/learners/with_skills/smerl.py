"""SMERL, several ways to do one task (Kumar et al., arXiv 2010.14484)."""

import dataclasses

import jax
import jax.numpy as jnp

from qdrl_haiku import skills, specs, types
from qdrl_haiku.config import setting
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners.with_skills import diayn
from qdrl_haiku.learners.with_skills.objective import (
  TASK_REWARD_WEIGHT,
  SkillObjective,
  SkillState,
  SkillSteps,
)
from qdrl_haiku.learners.with_skills.skill_learner import learner_of_objective
from qdrl_haiku.losses import smerl_reward

_BEST, _BEST_RETURN_RATE = "best_return", 0.01
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


def smerl_objective(
  observation_size: int | specs.Observation, prior: skills.SkillPrior,
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
  over the batches' means of all returns that are within epsilon of it. The
  paper estimates R(pi) by the return of the step's own episode, which isn't
  known here: a step is stored, once, and may be learned from, while its episode
  goes on. So it's the return of the skill's latest whole episode in that
  instance of the environment.

  Args are those of `diayn_objective`, and `diversity`, the other objective, by
  default DIAYN's.

  Returns:
    The objective of `skill_learner`, for an `environments.SkillEnvironment`
    that keeps skills' returns; it learns `best_return`, [], the mean return of
    the best episodes (`skills.NO_RETURN` before any has ended), and what the
    other objective does.

  Raises:
    ValueError: if skills are continuous; see `diayn_objective`.
  """
  diversity = diversity or diayn.diayn_objective(
    observation_size, prior, descriptor_size, config)
  if prior.num_skills is None:
    raise ValueError(
      "smerl keeps a return for each skill, so skills must be discrete; take "
      "skill_type=discrete.")

  def init(key: types.Key) -> dict[str, types.Tree]:
    nothing = jnp.full((), skills.NO_RETURN, jnp.float32)
    return {**diversity.init(key), _BEST: nothing}

  def learn(
    state: SkillState, hyperparams: types.Hyperparams, steps: SkillSteps
  ) -> tuple[SkillState, types.Array, types.Metrics]:
    if steps.skill_return is None:
      raise ValueError(
        "the transitions have no skill_return in their extras; take an "
        "environment that keeps it (SkillEnvironment(..., keeps_returns=True))."
      )
    state, rewards, metrics = diversity.learn(state, hyperparams, steps)
    share, returns = hyperparams["return_margin_share"], steps.skill_return
    best = target = _best_return(state.learned[_BEST], returns, share)
    if config.target_return is not None:
      target = jnp.asarray(config.target_return, jnp.float32)
    margin = share * jnp.abs(target)
    # Before any episode has ended, no skill is near the target.
    target = jnp.where(target > skills.NO_RETURN, target, jnp.inf)
    rewards = jax.vmap(smerl_reward, in_axes=(0, 0, None, None, None))(
      rewards, returns, target, margin, hyperparams["diversity_reward_weight"])
    metrics["share_near_target"] = jnp.mean(returns >= target - margin)
    return state.with_learned(**{_BEST: best}), rewards, metrics

  return diversity._replace(
    name="smerl", declared={**diversity.declared, **_OWN}, init=init,
    learn=learn, extras=(*diversity.extras, "skill_return"),
    normalizes=config.normalize_observations)


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


smerl = learner_of_objective(smerl_objective)
"""Learns several ways to do a task; see `learner_of_objective`."""
