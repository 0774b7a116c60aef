"""Evaluating agents with skills: how they differ, and where they go."""

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, environments, learners, types
from qdrl_haiku.training.setup import EvaluateMembersFn, Scores
from qdrl_haiku.types import Array


def skill_evaluation(
  env: environments.SkillEnvironment, objective: learners.SkillObjective,
  coverage_cells: int | None = None,
) -> EvaluateMembersFn:
  """Makes the evaluation of a population of agents with skills, for a `Setup`.

  Args:
    env: the environment of evaluation.
    objective: what rewards the skills, such as `learners.diayn_objective`.
    coverage_cells: see `actors.coverage_cells`.

  Returns:
    The function. The names of its scores, except the last, begin with the
    objective's name, such as "diayn". Some are of the second half of each
    episode's steps only, since all skills begin in one place:
      diversity_return: the sum of an episode's intrinsic rewards.
      mutual_information_lower_bound: the mean of log q(z|s) - log p(z), or of
        the objective's counterpart, over the second halves, in nats; episodes
        have equal weights, however long they are.
      discriminator_accuracy: the share of the second halves' steps whose skill
        the objective predicts, with the same weights; for discrete skills.
      discriminator_accuracy_whole_episode: the same for all steps.
      chance_accuracy: the accuracy of guessing, 1 / K.
      eval/coverage: see `coverage_evaluation`; where `coverage_cells` has any.
    Its trajectory has `skill` [P, N, K], `diversity_return` [P, N], and
    `descriptor` [P, N, T, D] where there is one.
  """
  cells = actors.coverage_cells(env, coverage_cells)

  def record(env_states: environments.State) -> dict[str, Array]:
    info = env_states.info
    found = {
      "observation": env.seen.split(info["next_observation"])[0],
      "skill": info["skill"]}
    if env.descriptor is not None:
      found["descriptor"] = info["next_state_descriptor"]
    if cells is not None:
      found["cell"] = cells(env_states)
    return found

  def evaluate(
    learner: learners.Learner, states: types.State,
    env_states: environments.State,
  ) -> tuple[actors.Evaluation, Scores]:
    evaluation = actors.evaluate_from_states(
      env, learner, states, env_states, record=record)
    seen = evaluation.trajectory
    observation, skill = seen["observation"], seen["skill"]
    first, descriptor = env_states.info, seen.get("descriptor")
    began, _ = env.seen.split(env_states.obs)
    scored = jax.vmap(objective.score)(states, learners.SkillSteps(
      jax.tree.map(_before, began, observation), observation,
      # The episode's skill for all steps; those after its end aren't counted.
      jnp.broadcast_to(skill[:, :, :1], skill.shape),
      None if descriptor is None
      else _before(first["state_descriptor"], descriptor),
      descriptor))
    diversity, scores = _scores(objective, scored, evaluation.lengths)
    if cells is not None:
      scores["eval/coverage"] = _coverage(seen["cell"], evaluation.lengths)
    kept = {"skill": skill[:, :, 0], "diversity_return": diversity}
    if descriptor is not None:
      kept["descriptor"] = descriptor
    return evaluation._replace(trajectory=kept), scores

  return evaluate


def _scores(
  objective: learners.SkillObjective, scored: dict[str, Array], lengths: Array
) -> tuple[Array, Scores]:
  """Returns diversity returns [P, N], and scores, of what was said of steps."""
  steps, lengths = jnp.arange(scored["diversity"].shape[2]), lengths[..., None]
  lived, late = steps < lengths, (lengths // 2 <= steps) & (steps < lengths)
  diversity = jnp.sum(scored["diversity"], axis=2, where=lived)
  scores = {"diversity_return": jnp.mean(diversity, axis=1)}
  if "information" in scored:
    scores["mutual_information_lower_bound"] = _mean(
      scored["information"], late)
  if "told" in scored:
    told = scored["told"]
    scores |= {
      "discriminator_accuracy": _mean(told, late),
      "discriminator_accuracy_whole_episode": _mean(told, lived),
      "chance_accuracy": jnp.full(told.shape[0], 1 / objective.prior.size)}
  prefix = objective.name
  return diversity, {f"{prefix}/{name}": x for name, x in scores.items()}


def coverage_evaluation(
  env: environments.BatchedEnvironment, coverage_cells: int
) -> EvaluateMembersFn:
  """Makes the evaluation of a population without skills, for a `Setup`.

  Args:
    env: the environment of evaluation.
    coverage_cells: see `actors.coverage_cells`.

  Returns:
    The function, whose score `eval/coverage` says how many cells the episodes
    of an agent visit.
  """
  cells = actors.coverage_cells(env, coverage_cells)

  def evaluate(
    learner: learners.Learner, states: types.State,
    env_states: environments.State,
  ) -> tuple[actors.Evaluation, Scores]:
    evaluation = actors.evaluate_from_states(
      env, learner, states, env_states, record=cells)
    coverage = _coverage(evaluation.trajectory, evaluation.lengths)
    return evaluation._replace(trajectory=None), {"eval/coverage": coverage}

  return evaluate


def _before(first: Array, after: Array) -> Array:
  """Returns what was before each step, [P, N, T, ...], of what was after."""
  return jnp.concatenate([first[:, :, None], after[:, :, :-1]], axis=2)


def _coverage(cells: Array, lengths: Array) -> Array:
  """Returns how many cells each agent visits: [P, N, T] -> [P]."""
  lived = jnp.arange(cells.shape[2]) < lengths[..., None]
  cells, lived = (x.reshape(len(x), -1) for x in (cells, lived))
  return actors.count_cells(cells, lived)


def _mean(x: Array, mask: Array) -> Array:
  """Means over the steps of the mask, then over episodes: [P, N, T] -> [P]."""
  per_episode = jnp.mean(x.astype(jnp.float32), axis=2, where=mask)
  return jnp.mean(per_episode, axis=1)
