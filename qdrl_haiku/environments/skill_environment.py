"""Skills as part of an environment: appended to what the agent observes."""

import math
from typing import Literal

import jax
import jax.numpy as jnp

from qdrl_haiku import prng, skills
from qdrl_haiku.environments.interface import BatchedEnvironment, State
from qdrl_haiku.types import Array, Key

Sampling = Literal["fixed", "episode"]


class SkillEnvironment:
  """An environment each of whose instances has a skill.

  The skill is appended to the observation, and stands in `info["skill"]`
  [..., K], where it is that of the observation to act on next.

  Attributes are those of `env`, the environment without skills, but for
  `observation_size`, which is O + K.
  """

  def __init__(
    self,
    env: BatchedEnvironment,
    prior: skills.SkillPrior,
    sampling: Sampling = "fixed",
  ) -> None:
    """Adds skills to an environment.

    Args:
      env: the environment without skills.
      prior: what skills are drawn from; `skills.constant_skill` needs
        "episode".
      sampling: "episode" draws a skill from the prior whenever an episode
        begins, "fixed" when the instance is first reset. Where the prior has
        num_skills skills, "fixed" deals them out: of the E instances along the
        last axis of the keys, instance i has skill i modulo num_skills, or,
        where E is less, the skills i, i + E, i + 2E, ..., one after the other.
    """
    self.env = env
    self.prior = prior
    self.sampling = sampling
    self.observation_size: int = env.observation_size + prior.size
    self.action_size = env.action_size
    self.episode_length = env.episode_length
    self.descriptor = env.descriptor
    self.on_host: bool = getattr(env, "on_host", False)

  def reset(self, key: Key) -> State:
    """Starts one episode per key [...], with skills."""
    state = self.env.reset(key)
    num_skills = self.prior.num_skills
    if self.sampling == "episode" or num_skills is None:
      skill = self._draw(state)
    else:
      last_axis = state.done.shape[-1:]
      indices = jnp.arange(math.prod(last_axis)).reshape(last_axis) % num_skills
      dealt = jax.nn.one_hot(indices, num_skills)
      skill = jnp.broadcast_to(dealt, (*state.done.shape, num_skills))
    return _with_skill(state, skill, skill)

  def step(
    self, state: State, action: Array, pool: State | None = None
  ) -> State:
    """Steps as `Environment.step` does; skills of the pool aren't read.

    In what it returns, `next_observation` has the skill of the step just taken,
    `obs` and `info["skill"]` that of the next one.
    """
    skill = state.info["skill"]
    # The inner environment reads neither observation nor skill.
    state = self.env.step(state, action, pool)
    ended = state.done[..., None] > 0
    next_skill = jnp.where(ended, self._next(state, skill), skill)
    return _with_skill(state, skill, next_skill)

  def advance(self, state: State, action: Array) -> State:
    """Steps as `Environment.advance` does, without resets; skills stay."""
    skill = state.info["skill"]
    return _with_skill(self.env.advance(state, action), skill, skill)

  def _draw(self, state: State) -> Array:
    """Returns a skill for each instance, from its own key: [..., K]."""

    def draw(key: Key) -> Array:
      key = jax.random.fold_in(key, prng.OfInstance.SKILL)
      return self.prior.sample(key)

    keys = state.info["key"]
    skill = jax.vmap(draw)(keys.reshape(math.prod(keys.shape)))
    return skill.reshape(*keys.shape, self.prior.size)

  def _next(self, state: State, skill: Array) -> Array:
    """Returns the skills of the next episodes, [..., K]."""
    if self.sampling == "episode":
      return self._draw(state)
    num_envs, num_skills = skill.shape[-2], self.prior.num_skills
    if num_skills is None or num_envs >= num_skills:
      return skill
    index = jnp.argmax(skill, axis=-1) + num_envs
    index = jnp.where(index < num_skills, index, index % num_envs)
    return jax.nn.one_hot(index, num_skills)


def _with_skill(state: State, skill: Array, next_skill: Array) -> State:
  """Appends the skill of the last step, and of the next one."""
  next_observation = state.info["next_observation"]
  return state.replace(
    obs=jnp.concatenate([state.obs, next_skill], axis=-1),
    info=state.info
    | {
      "next_observation": jnp.concatenate([next_observation, skill], axis=-1),
      "skill": next_skill,
    },
  )
