"""Automatic domain randomisation: ranges that widen where an agent does well.

Akkaya et al. (2019), "Solving Rubik's Cube with a Robot Hand", arXiv:
1910.07113, algorithm 1. An agent's part of each range of `--randomize` begins
where nothing is changed. Some of its episodes are at a boundary of it, of one
name and side; when enough of these have ended, the boundary moves by their mean
return. Evaluation is in the whole ranges.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from qdrl_haiku import environments
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.types import Array, Metrics, Transition


@dataclasses.dataclass(frozen=True)
class CurriculumConfig(Settings):
  """Says when an agent's own ranges widen; by default they are whole."""

  title = "Environment"

  widen_above: float | None = setting(
    None,
    "Mean return of episodes at a boundary of an agent's own range, from which "
    "on it moves towards the end of that of --randomize, from where nothing is "
    "changed. By default agents have whole ranges from the beginning.",
    needs="curriculum")
  narrow_below: float | None = setting(
    None,
    "Mean return of such episodes up to which the boundary moves back; by "
    "default it never does.",
    needs="curriculum")
  boundary_step: float = setting(
    0.2, "Share of the way to the end by which a boundary moves.", above=0,
    high=1, offered=False, needs="curriculum")
  boundary_episodes: int = setting(
    3, "Episodes at a boundary before it may move.", low=1, offered=False,
    needs="curriculum")
  boundary_share: float = setting(
    0.5, "Share of the episodes that are at a boundary.", above=0, high=1,
    offered=False, needs="curriculum")

  def __post_init__(self) -> None:
    super().__post_init__()
    low, high = self.narrow_below, self.widen_above
    if low is not None and (high is None or low >= high):
      raise ValueError(
        f"narrow_below={low:g} must be below widen_above={high}; lower the "
        "first, or give the second.")
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if high is None and value != field.default:
        raise ValueError(
          f"{field.name}={value:g} has no effect without widen_above; give "
          "that too.")


class Curriculum(NamedTuple):
  """Where agents' boundaries are, leaves [P, K] of K boundaries."""

  reach: Array  # Share of the way to the end, in [0, 1].
  returns: Array  # Of episodes there since it was last judged, summed.
  episodes: Array  # Of those, int32.


def first_curriculum(size: int, num_boundaries: int) -> Curriculum:
  """Returns curricula of `size` agents, for whom nothing is changed yet."""
  shape = size, num_boundaries
  return Curriculum(
    jnp.zeros(shape), jnp.zeros(shape), jnp.zeros(shape, jnp.int32))


def curriculum_tunables(
  config: CurriculumConfig, boundaries: tuple[str, ...], reach: Array
) -> dict[str, Array]:
  """Returns what agents' curricula say of the tunables.

  Args:
    config: of the curricula.
    boundaries: K names.
    reach: [P, K], see `Curriculum`.

  Returns:
    Values [P] by name.
  """
  share = jnp.full(reach.shape[0], config.boundary_share)
  return dict(zip(boundaries, reach.T, strict=True)) | {
    environments.BOUNDARY_SHARE: share}


def boundary_returns(
  transitions: Transition, is_finite: Array, num_boundaries: int
) -> tuple[Array, Array]:
  """Sums the returns of episodes at boundaries that ended.

  An instance's first episode may have begun at any age, and is left out.

  Args:
    transitions: leaves [P, T, E, ...].
    is_finite: bool [P, T, E], where they are.
    num_boundaries: K.

  Returns:
    The sums, and how many episodes, int32, both [P, K].
  """
  told = transitions.extras[environments.CURRICULUM]
  ended = (transitions.extras["truncation"] > 0) | (transitions.discount == 0)
  ended &= is_finite & (told["episodes"] > 1)
  index = jnp.where(ended, told["boundary"], -1)
  # The index -1 is of none.
  one_hot = index[..., None] == jnp.arange(num_boundaries)
  returns = jnp.where(one_hot, told["return"][..., None], 0.0)
  return jnp.sum(returns, (1, 2)), jnp.sum(one_hot, (1, 2), dtype=jnp.int32)


def judge_boundaries(
  config: CurriculumConfig, curriculum: Curriculum, returns: Array,
  episodes: Array,
) -> Curriculum:
  """Moves boundaries at which enough episodes have ended.

  Args:
    config: of the curricula.
    curriculum: of P agents.
    returns: [P, K], those of a generation, see `boundary_returns`.
    episodes: [P, K], so many.

  Returns:
    The curricula, which forget the episodes of boundaries that were judged.
  """
  returns, episodes = (
    curriculum.returns + returns, curriculum.episodes + episodes)
  judged = episodes >= config.boundary_episodes
  mean = returns / jnp.maximum(episodes, 1)
  low = -jnp.inf if config.narrow_below is None else config.narrow_below
  high = jnp.inf if config.widen_above is None else config.widen_above
  direction = jnp.where(mean >= high, 1, -1 * (mean <= low))
  step = jnp.where(judged, config.boundary_step * direction, 0.0)
  return Curriculum(
    jnp.clip(curriculum.reach + step, 0.0, 1.0),
    jnp.where(judged, 0.0, returns), jnp.where(judged, 0, episodes))


def curriculum_metrics(
  boundaries: tuple[str, ...], curriculum: Curriculum
) -> Metrics:
  """Returns how far each of K `boundaries` reaches, [P] by name."""
  return {
    f"curriculum/{name}": curriculum.reach[:, i]
    for i, name in enumerate(boundaries)}
