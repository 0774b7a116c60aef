"""Agents with skills whose episodes are known beforehand, and evaluated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import environments, learners, skills
from qdrl_haiku.training import skills as training_skills
from tests import toy

NUM_CELLS = 10
NUM_SKILLS, POPULATION_SIZE, NUM_EPISODES, NUM_STEPS = 3, 2, 5, 30
_K, _P, _N, _T = NUM_SKILLS, POPULATION_SIZE, NUM_EPISODES, NUM_STEPS
_LIMIT = 4.0
PRIOR, CIRCLE = skills.categorical(_K), skills.sphere(2)
# Per member and skill: how far a step goes. Some episodes end before the
# others, and from then on all would be other than it was.
_PUSHES = np.array([[0.9, -0.5, 0.2], [0.3, 0.1, 0.6]])
# No number of steps lies on the border of two cells.
_BOUNDS = environments.Descriptor(("x", "steps"), (-10.0, -0.5), (10.0, 99.5))
WALK = environments.Environment(
  toy.Walk(_LIMIT), episode_length=_T, descriptor=_BOUNDS)


class _Line(toy.Walk):
  """A walk with a descriptor of one axis."""

  descriptor = environments.Descriptor(("x",), (-10.0,), (10.0,))

  def _state(self, *args):
    state = super()._state(*args)
    return state.replace(info={"state_descriptor": state.obs[:1]})


LINE = environments.Environment(_Line(_LIMIT), episode_length=_T)
_RESET = jax.jit(WALK.reset)


def _learner(prior, descriptor_size, config):
  """Pushes by the agent's numbers times the skill."""
  base = toy.linear_learner()._replace(
    init=lambda key: jnp.zeros(prior.size),
    act_greedy=lambda state, observation: jnp.sum(
      state * observation[..., 2:], axis=-1, keepdims=True))
  return learners.diayn(base, 2, prior, descriptor_size, config)


@functools.cache
def evaluated(prior=PRIOR, env=WALK, **config):
  """Agents with hand-set discriminators, as `evaluate` takes and sees them.

  Returns:
    The states, the evaluation and the scores.
  """
  descriptor_size = env.descriptor.size
  config = learners.DIAYNConfig(hidden_layer_sizes=(), **config)
  learner = _learner(prior, descriptor_size, config)
  states = jax.jit(jax.vmap(learner.init))(_keys())
  sines = np.arcsin(_PUSHES[:, : prior.size])
  states = states._replace(
    agent=jnp.asarray(sines, jnp.float32),
    discriminator_params=_params(states.discriminator_params))
  if config.normalize_observations:
    mean, variance = np.array([[0.5, 9.0], [-1.0, 4.0]]), np.full((2, 2), 4.0)
    states = states._replace(
      observation_statistics=learners.ObservationStatistics(
        jnp.full(2, 10.0), *map(jnp.float32, (mean, variance))))
  judge = learners.diayn_objective(2, prior, descriptor_size, config)
  env = environments.SkillEnvironment(env, prior, "fixed")
  evaluate = training_skills.skill_evaluation(env, judge, NUM_CELLS)
  keys = jax.vmap(lambda key: jax.random.split(key, _N))(_keys())
  evaluation, scores = jax.jit(functools.partial(evaluate, learner))(
    states, jax.jit(env.reset)(keys))
  return jax.device_get((states, evaluation, scores))


def _keys():
  return jax.random.split(jax.random.key(5), _P)


def _params(like):
  """Weights that make out of x and steps what isn't all right or all wrong."""
  rng = np.random.default_rng(3)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(scale=0.3, size=x.shape), x.dtype), like)


def paths(prior=PRIOR):
  """Of each member and episode: the skill and x and steps [length, 2]."""
  for member in range(_P):
    state = _RESET(jax.random.split(_keys()[member], _N))
    drawn = np.eye(_K)[np.arange(_N) % _K]
    if prior.num_skills is None:
      env = environments.SkillEnvironment(WALK, prior, "fixed")
      keys = jax.random.split(_keys()[member], _N)
      drawn = jax.jit(env.reset)(keys).info["skill"]
    for episode in range(_N):
      skill = np.asarray(drawn[episode], np.float64)
      x, path = float(state.obs[episode, 0]), []
      push = np.sin(skill @ np.arcsin(_PUSHES[member, : prior.size]))
      while len(path) < _T and x <= _LIMIT:
        x += push
        path.append((x, len(path) + 1.0))
      yield member, episode, skill, np.array(path)
