"""Skills as part of an environment: beside what the agent observes."""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from qdrl_haiku import prng, skills, specs, trees
from qdrl_haiku.environments.interface import BatchedEnvironment, State
from qdrl_haiku.types import Array, Key, Tree

Sampling = Literal["fixed", "episode"] | Callable[[State], Array]


class SkillEnvironment(BatchedEnvironment):
  """An environment each of whose instances has a skill.

  The skill is put beside the observation, of a dict as the entry "skill", see
  `specs.Extended`; `info["skill"]` [..., K] is that of `obs`, for the next
  action. With `keeps_returns`, `info["skill_return"]` [...] is the return of
  the skill's latest whole episode in the instance, or `skills.NO_RETURN`. An
  episode is no whole one where a step wasn't finite, nor is an instance's first
  one, in whose middle training may begin. Attributes are those of `env`, but
  for `observation_spec` and `seen`, which says how the skill is observed.
  """

  def __init__(
    self, env: BatchedEnvironment, prior: skills.SkillPrior,
    sampling: Sampling = "fixed", keeps_returns: bool = False,
  ) -> None:
    """Adds skills to an environment.

    Args:
      env: the environment without skills.
      prior: what skills are drawn from; `skills.constant_skill` needs
        "episode".
      sampling: "episode" draws a skill from the prior whenever an episode
        begins, "fixed" when the instance is first reset. Where the prior has
        num_skills skills, "fixed" deals them out: of the E instances along the
        last axis of the keys, instance i has skill i modulo num_skills, or, if
        E < num_skills, skills i, i + E, i + 2E, ... in consecutive episodes.
        For evaluation, a function of the states of `env` [...] may choose
        skills [..., K], or one for all [K], anew in each of them.
      keeps_returns: whether states hold the returns of discrete skills.
    """
    self.env = env
    self.prior = prior
    self.sampling = sampling
    self.keeps_returns = keeps_returns
    self.seen = specs.Extended(env.observation_spec, "skill", prior.size)
    self.observation_spec = self.seen.spec
    self.action_spec, self.abilities = env.action_spec, env.abilities
    self.episode_length, self.descriptor = env.episode_length, env.descriptor
    self.objectives, self.tunables = env.objectives, env.tunables

  def reset(self, key: Key) -> State:
    """Starts one episode per key [...], with skills."""
    state = self.env.reset(key)
    num_skills = self.prior.num_skills
    if callable(self.sampling):
      skill = self._chosen(state, self.sampling)
    elif self.sampling == "episode" or num_skills is None:
      skill = self._draw(state)
    else:
      last_axis = state.done.shape[-1:]
      indices = jnp.arange(math.prod(last_axis)).reshape(last_axis) % num_skills
      dealt = jax.nn.one_hot(indices, num_skills)
      skill = jnp.broadcast_to(dealt, (*state.done.shape, num_skills))
    state = self._with_skill(state, skill, skill)
    if not self.keeps_returns:
      return state
    # Rewards are lost in its rounding.
    nothing, so_far = (
      jnp.full_like(x, skills.NO_RETURN) for x in (skill, state.reward))
    return _with_returns(state, nothing, so_far)

  def step(
    self, state: State, action: Array, pool: State | None = None, *more: Tree
  ) -> State:
    """Steps as `Environment.step` does, and draws skills for new episodes.

    In what it returns, `next_observation` has the skill of the step just taken,
    `obs` and `info["skill"]` that of the next one.

    Args:
      state: the last one, leaves [..., E, ...].
      action: [..., E, A] in [-1, 1], or one of n.
      pool: initial states of next episodes; their skills aren't read.
      *more: the values of tunables by name, if any.
    """
    before = state.info
    skill = before["skill"]
    # The inner environment reads neither observation nor skill.
    state = self.env.step(state, action, pool, *more)
    ended = state.done[..., None] > 0
    next_skill = jnp.where(ended, self._next_skills(state, skill), skill)
    state = self._with_skill(state, skill, next_skill)
    if not self.keeps_returns:
      return state
    so_far = (before["return_so_far"] + state.reward)[..., None]
    seen = state.info["next_observation"], so_far
    is_finite = trees.all_finite_leaves(seen, so_far.ndim - 1)[..., None]
    of_skills = jnp.where(
      ended & is_finite & (skill > 0), so_far, before["skill_returns"])
    return _with_returns(
      state, of_skills, jnp.where(ended, 0, so_far)[..., 0])

  def advance(self, state: State, action: Array) -> State:
    """Steps as `Environment.advance` does; skills stay, unless chosen."""
    before = state.info
    skill = next_skill = before["skill"]
    state = self.env.advance(state, action)
    if callable(self.sampling):
      next_skill = self._chosen(state, self.sampling)
    state = self._with_skill(state, skill, next_skill)
    if not self.keeps_returns:
      return state
    so_far = before["return_so_far"] + state.reward
    return _with_returns(state, before["skill_returns"], so_far)

  def restore(self, state: State) -> None:
    """Brings instances back to a stored state, see `Abilities`."""
    inner: Any = self.env
    inner.restore(state.replace(obs=self.seen.split(state.obs)[0]))

  def _with_skill(self, state: State, skill: Array, next_skill: Array) -> State:
    """Shows the skill of the last step, and of the next one."""
    seen = self.seen.join(state.info["next_observation"], skill)
    return state.replace(
      obs=self.seen.join(state.obs, next_skill),
      info=state.info | {"next_observation": seen, "skill": next_skill})

  def _chosen(self, state: State, choose: Callable[[State], Array]) -> Array:
    """Returns the skills [..., K] that a function chooses in states."""
    return jnp.broadcast_to(
      choose(state), (*state.done.shape, self.prior.size))

  def _draw(self, state: State) -> Array:
    """Returns a skill for each instance, from its own key: [..., K]."""
    keys = state.info["key"]
    skill = jax.vmap(lambda key: self.prior.sample(
      jax.random.fold_in(key, prng.OfInstance.SKILL)))(keys.reshape(-1))
    return skill.reshape(*keys.shape, self.prior.size)

  def _next_skills(self, state: State, skill: Array) -> Array:
    """Returns the skills of the next episodes, [..., K]."""
    if self.sampling == "episode":
      return self._draw(state)
    num_envs = math.prod(skill.shape[:-1][-1:])
    num_skills = self.prior.num_skills
    if num_skills is None or num_envs >= num_skills:
      return skill
    index = jnp.argmax(skill, axis=-1) + num_envs
    index = jnp.where(index < num_skills, index, index % num_envs)
    return jax.nn.one_hot(index, num_skills)


def _with_returns(state: State, of_skills: Array, so_far: Array) -> State:
  """Adds the returns [..., K] of skills, and that of the episode so far."""
  own = jnp.where(state.info["skill"] > 0, of_skills, skills.NO_RETURN)
  return state.replace(info=state.info | {
    "skill_returns": of_skills, "return_so_far": so_far,
    "skill_return": jnp.max(own, axis=-1)})
