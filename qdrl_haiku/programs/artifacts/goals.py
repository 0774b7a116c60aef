"""Agents with skills on their way to goals that no reward has told them."""

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, environments, learners, types
from qdrl_haiku.types import Array, Key


def goal_environment(
  env: environments.BatchedEnvironment, objective: learners.SkillObjective,
  state: types.State, goals: Array,
) -> environments.SkillEnvironment:
  """Returns an environment in which skills lead to goals.

  The skill is chosen again in each state: METRA's is the direction of
  phi(goal) - phi(s), DIAYN's the likeliest by its discriminator.

  Args:
    env: the environment, without skills.
    objective: what rewarded the skills.
    state: of the agent that has learned them.
    goals: [G], or for each of N episodes [N, G], as `objective.goal_input` sees
      states: descriptors, or observations.

  Raises:
    ValueError: if the objective can't tell which skill leads to a goal, or if
      goals have another size.
  """
  choose = objective.goal_skill
  if choose is None:
    raise ValueError(
      f"{objective.name} doesn't tell which skill leads to a goal; diayn, "
      "metra and smerl do.")
  if objective.goal_input == "descriptor":
    assert env.descriptor is not None
    size = env.descriptor.size
  else:
    size = env.observation_size
  if goals.shape[-1] != size:
    raise ValueError(
      f"a goal of {goals.shape[-1]} numbers is given, but skills were rewarded "
      f"by the {objective.goal_input}, which has {size}; give that many.")
  return environments.SkillEnvironment(
    env, objective.prior,
    lambda states: choose(
      state, states.obs, states.info.get("state_descriptor"), goals))


def reach_goals(
  env: environments.BatchedEnvironment, learner: learners.Learner,
  objective: learners.SkillObjective, state: types.State, key: Key,
  goals: Array,
) -> Array:
  """Runs an episode to each goal, in `goal_environment`.

  Args:
    env: the environment, without skills.
    learner: the agent's.
    objective: what rewarded the skills.
    state: of the agent that has learned them.
    key: from which the episodes begin; consumed.
    goals: [N, G].

  Returns:
    [N], how far from its goal each episode ended, in the goals' unit.
  """
  chosen = goal_environment(env, objective, state, goals)

  def place(env_states: environments.State) -> Array:
    info = env_states.info
    if objective.goal_input == "descriptor":
      return info["next_state_descriptor"]
    return chosen.seen.split(info["next_observation"])[0]

  states = jax.tree.map(lambda x: x[None], state)
  evaluation = actors.evaluate(
    chosen, learner, states, key, len(goals), record=place)
  last = evaluation.lengths[0] - 1
  ends = evaluation.trajectory[0][jnp.arange(len(goals)), last]
  return jnp.linalg.norm(ends - goals, axis=-1)
