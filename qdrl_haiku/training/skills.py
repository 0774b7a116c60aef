"""Evaluating agents with skills: can they be told apart, where do they go?"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from qdrl_haiku import actors, environments, learners, types
from qdrl_haiku.training.setup import EvaluateMembersFn, Scores
from qdrl_haiku.types import Array

_COVERAGE_CELLS = 10


def skill_evaluation(
  env: environments.SkillEnvironment, discriminator: learners.Discriminator
) -> EvaluateMembersFn:
  """Makes the evaluation of a population of DIAYN agents, for a `Setup`.

  Args:
    env: the environment of evaluation.
    discriminator: made by `learners.diayn_discriminator` with the settings of
      the learner, which `learners.diayn` makes.

  Returns:
    The function. Its scores, in which the second half of an episode are the
    later half of its steps (at the start all skills are in one place):
      diayn/diversity_return: the intrinsic rewards of an episode, summed.
      diayn/mutual_information_lower_bound: the mean of log q(z|s) - log p(z)
        over the second halves, in nats; episodes count alike, however long.
      diayn/discriminator_accuracy: the share of the steps of the second halves
        whose skill q holds for the likeliest, likewise; for discrete skills.
      diayn/discriminator_accuracy_whole_episode: the same for all steps.
      diayn/chance_accuracy: what guessing would be worth.
      diayn/state_coverage: how many cells of a 10 x 10 grid over the bounds of
        the descriptor's first two axes the episodes of an agent visit; where
        there is a descriptor.
    Its trajectory has `skill` [P, N, K], `diversity_return` [P, N], and
    `descriptor` [P, N, T, D] where there is one.
  """
  prior = discriminator.prior

  def record(env_states: environments.State) -> dict[str, Array]:
    info = env_states.info
    names = {"observation": "next_observation", "skill": "skill"}
    if env.descriptor is not None:
      names["descriptor"] = "next_state_descriptor"
    return {name: info[key] for name, key in names.items()}

  def evaluate(
    learner: learners.Learner,
    states: types.State,
    env_states: environments.State,
  ) -> tuple[actors.Evaluation, Scores]:
    evaluation = actors.evaluate_from_states(
      env, learner, states, env_states, record=record
    )
    trajectory = evaluation.trajectory
    # A skill stays for an episode; beyond that it means nothing.
    skill = trajectory["skill"][:, :, 0]
    parameters = jax.vmap(discriminator.parameters)(
      states, trajectory["observation"], trajectory.get("descriptor")
    )

    def over_steps(function: Callable[..., Array]) -> Array:
      per_step = jax.vmap(function, (0, None))
      return jax.vmap(jax.vmap(per_step))(parameters, skill)

    steps = jnp.arange(parameters.shape[2])
    lived = steps < evaluation.lengths[..., None]
    late = lived & (steps >= evaluation.lengths[..., None] // 2)
    diversity = jnp.sum(over_steps(discriminator.reward), axis=2, where=lived)
    information = over_steps(lambda p, z: prior.reward(p, z, prior.log_prob(z)))
    scores = {
      "diayn/diversity_return": jnp.mean(diversity, axis=1),
      "diayn/mutual_information_lower_bound": _mean(information, late),
    }
    if prior.num_skills is not None:
      told = over_steps(lambda p, z: jnp.argmax(p) == jnp.argmax(z))
      scores |= {
        "diayn/discriminator_accuracy": _mean(told, late),
        "diayn/discriminator_accuracy_whole_episode": _mean(told, lived),
        "diayn/chance_accuracy": jnp.full(told.shape[0], 1 / prior.num_skills),
      }
    kept = {"skill": skill, "diversity_return": diversity}
    if env.descriptor is not None:
      kept["descriptor"] = trajectory["descriptor"]
      scores["diayn/state_coverage"] = _coverage(
        trajectory["descriptor"], lived, env.descriptor
      )
    return evaluation._replace(trajectory=kept), scores

  return evaluate


def _mean(x: Array, mask: Array) -> Array:
  """Means over the steps of the mask, then over episodes: [P, N, T] -> [P]."""
  per_episode = jnp.mean(x.astype(jnp.float32), axis=2, where=mask)
  return jnp.mean(per_episode, axis=1)


def _coverage(
  descriptors: Array, lived: Array, descriptor: environments.Descriptor
) -> Array:
  """Returns how many cells each agent visits: [P, N, T, D] -> [P]."""
  axes = min(2, descriptor.size)
  lower = jnp.array(descriptor.lower[:axes])
  width = jnp.array(descriptor.upper[:axes]) - lower
  share = (descriptors[..., :axes] - lower) / width
  cell = jnp.clip(
    jnp.floor(share * _COVERAGE_CELLS), 0, _COVERAGE_CELLS - 1
  ).astype(jnp.int32)
  index = cell @ (_COVERAGE_CELLS ** jnp.arange(axes))
  num_cells = _COVERAGE_CELLS**axes
  # Steps after the end are counted in a cell that there isn't.
  index = jnp.where(lived, index, num_cells).reshape(index.shape[0], -1)
  visited = jax.vmap(lambda i: jnp.zeros(num_cells + 1, bool).at[i].set(True))(
    index
  )
  return jnp.sum(visited[:, :num_cells], axis=1).astype(jnp.float32)
