"""Priors of skills, with the discriminator's loss and the reward of each."""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from qdrl_haiku import losses
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.types import Array, Key

NO_RETURN = -3e38
"""Stands for the return of a skill of which no episode has ended: finite, as
all numbers of states have to be."""


class SkillPrior(NamedTuple):
  """The distribution p(z) that skills are drawn from, as pure functions."""

  size: int  # K, of a skill.
  # How many skills there are, None if they are continuous.
  num_skills: int | None
  # How many numbers a discriminator puts out for this kind.
  parameter_size: int
  # (key) -> skill [K], float32. The key is consumed.
  sample: Callable[[Key], Array]
  log_prob: Callable[[Array], Array]  # (skill [K]) -> log p(z) [], in nats.
  # (parameters [parameter_size], skill [K]) -> [].
  discriminator_loss: Callable[[Array, Array], Array]
  # (parameters [parameter_size], skill [K], log_prior []) -> [], with no
  # gradient.
  reward: Callable[[Array, Array, Array], Array]
  # (parameters [..., parameter_size]) -> skills [..., K], the likeliest.
  mode: Callable[[Array], Array]
  # (numbers) -> skill [K], float32; raises ValueError where they are none of
  # this kind. Not for traced values.
  validate: Callable[[npt.ArrayLike], np.ndarray]


def categorical(num_skills: int) -> SkillPrior:
  """Returns the prior of K >= 2 one-hot skills, all equally likely.

  Eysenbach et al. (2018), "Diversity is all you need", section 3.2.

  Args:
    num_skills: K, >= 2.

  Returns:
    The prior, of one-hot skills; `validate` takes an index too.
  """

  def sample(key: Key) -> Array:
    index = jax.random.randint(key, (), 0, num_skills)
    return jax.nn.one_hot(index, num_skills, dtype=jnp.float32)

  def log_prob(skill: Array) -> Array:
    return -losses.diayn_discriminator_loss(jnp.zeros(num_skills), skill)

  def validate(skill: npt.ArrayLike) -> np.ndarray:
    array = np.asarray(skill)
    is_index = array.ndim == 0 and np.issubdtype(array.dtype, np.integer)
    for index, one_hot in enumerate(np.eye(num_skills, dtype=np.float32)):
      if np.array_equal(array, index if is_index else one_hot):
        return one_hot
    raise ValueError(
      f"skill is {skill!r}: give an index from 0 to {num_skills - 1}, or a"
      f" one-hot vector of {num_skills} numbers.")

  return SkillPrior(
    size=num_skills, num_skills=num_skills, parameter_size=num_skills,
    sample=sample, log_prob=log_prob,
    discriminator_loss=losses.diayn_discriminator_loss,
    reward=losses.diayn_reward,
    mode=lambda p: jax.nn.one_hot(jnp.argmax(p, axis=-1), num_skills),
    validate=validate)


def sphere(size: int) -> SkillPrior:
  """Returns the prior of directions, uniform on the circle or the sphere.

  Args:
    size: K, 2 for the circle or 3 for the sphere.

  Returns:
    The prior, of skills of length 1; `validate` scales skills to length 1.
  """
  if size not in (2, 3):
    raise ValueError(
      f"size must be 2 or 3 on the unit sphere, got {size}; take one of "
      "these, or in Python the prior normal (skill_prior=normal, "
      "skills.normal).")

  def sample(key: Key) -> Array:
    vector = jax.random.normal(key, (size,), jnp.float32)
    return vector / jnp.linalg.norm(vector)

  def log_prob(skill: Array) -> Array:
    # A discriminator that knows nothing is uniform, so that its reward is 0.
    return -losses.diayn_sphere_discriminator_loss(jnp.zeros(size), skill)

  def validate(skill: npt.ArrayLike) -> np.ndarray:
    vector = _vector(skill, size)
    if not np.any(vector):
      raise ValueError(
        f"skill is {skill!r}: give {size} numbers that are not all 0; only"
        " their direction counts.")
    return (vector / np.linalg.norm(vector)).astype(np.float32)

  return SkillPrior(
    size=size, num_skills=None, parameter_size=size, sample=sample,
    log_prob=log_prob,
    discriminator_loss=losses.diayn_sphere_discriminator_loss,
    reward=losses.diayn_sphere_reward, mode=direction, validate=validate)


def normal(size: int) -> SkillPrior:
  """Returns the prior of K >= 1 independent standard normal numbers."""

  def sample(key: Key) -> Array:
    return jax.random.normal(key, (size,), jnp.float32)

  def log_prob(skill: Array) -> Array:
    chex.assert_shape(skill, (size,))
    return jnp.sum(jax.scipy.stats.norm.logpdf(skill))

  return SkillPrior(
    size=size, num_skills=None, parameter_size=2 * size, sample=sample,
    log_prob=log_prob,
    discriminator_loss=losses.diayn_normal_discriminator_loss,
    reward=losses.diayn_normal_reward, mode=lambda p: p[..., :size],
    validate=lambda skill: _vector(skill, size).astype(np.float32))


def constant_skill(prior: SkillPrior, skill: npt.ArrayLike) -> SkillPrior:
  """Returns a prior that draws one given skill every time.

  Args:
    prior: the prior that the agent was trained with.
    skill: the skill, K numbers; for categorical skills also its index, from 0.
      On the sphere only its direction counts.

  Returns:
    The prior that draws this skill, with the given prior's other functions.
  """
  value = prior.validate(skill)
  return prior._replace(sample=lambda key: jnp.asarray(value))


def direction(vector: Array) -> Array:
  """Scales vectors [..., K] to length 1; 0 becomes the first unit vector."""
  norm = jnp.linalg.norm(vector, axis=-1, keepdims=True)
  first = jax.nn.one_hot(0, vector.shape[-1])
  return jnp.where(norm > 0, vector / jnp.where(norm > 0, norm, 1.0), first)


def _vector(skill: npt.ArrayLike, size: int) -> np.ndarray:
  """Returns a skill as `size` float64 numbers, or says what is wrong."""
  vector = np.asarray(skill, np.float64)
  largest = np.finfo(np.float32).max
  if vector.shape != (size,) or not np.all(np.abs(vector) <= largest):
    raise ValueError(f"skill is {skill!r}: give {size} finite numbers.")
  return vector


@dataclasses.dataclass(frozen=True)
class SkillConfig(Settings):
  """Says which skills there are, and when agents get new ones."""

  title = "Skills"

  skill_type: str = setting(
    "discrete",
    "Kind of skills: discrete, one of --num_skills, or continuous, the default "
    "of metra.",
    choices=("discrete", "continuous"))
  num_skills: int = setting(
    8, "How many discrete skills there are.", low=2,
    only={"skill_type": ("discrete",)})
  skill_prior: str = setting(
    "sphere",
    "Distribution of continuous skills: sphere (directions) or normal.",
    choices=("sphere", "normal"), only={"skill_type": ("continuous",)},
    offered=False)
  skill_size: int = setting(
    2, "Numbers in a continuous skill; 2 or 3 of directions.", low=1,
    only={"skill_type": ("continuous",)})
  skill_sampling: str | None = setting(
    None,
    "When an environment gets a skill: fixed, once and for all, the default of "
    "discrete skills; episode, anew at each episode, that of continuous ones.",
    choices=("fixed", "episode"), offered=False)

  def prior(self) -> SkillPrior:
    """Returns the distribution that skills are drawn from."""
    if self.skill_type == "discrete":
      return categorical(self.num_skills)
    kind = {"sphere": sphere, "normal": normal}[self.skill_prior]
    try:
      return kind(self.skill_size)
    except ValueError as error:
      raise ValueError(f"skill_size={self.skill_size}: {error}") from error

  @property
  def sampling(self) -> Literal["fixed", "episode"]:
    """Sampling of skills while agents train."""
    default = "fixed" if self.skill_type == "discrete" else "episode"
    return "fixed" if (self.skill_sampling or default) == "fixed" else "episode"

  @property
  def num_eval_episodes(self) -> int:
    """Episodes that show all skills, or enough of continuous ones."""
    return 2 * self.num_skills if self.skill_type == "discrete" else 64
