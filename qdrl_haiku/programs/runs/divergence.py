"""Reports populations in which no member is finite."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import trees, types
from qdrl_haiku.distributed import hosts, sharding
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import GenerationReport, Members

DIVERGED = 3
"""Exit code of a run whose members diverged again and again."""

_PATIENCE = 3
# Squares of larger numbers, and of returns made of them, overflow float32.
_LARGE = 1e15
_ADVICE = (
  "Lower --reward_scaling or the learning rates, or let the environment return "
  "smaller numbers")


class Diverged(Exception):
  """No member was finite, and the run was to stop then."""


class EndedDiverged(Exception):
  """The run is done, but its members diverged again and again until the end."""


def num_diverged_in_a_row(before: int, report: GenerationReport) -> int:
  """Counts generations in a row after which no member was finite.

  A generation without updates, in which new members only fill their replay
  buffers, doesn't end the row.
  """
  if not report.finite.any():
    return before + 1
  return 0 if report.num_updates.any() else before


def warn_of_divergence(num_diverged: int, reason: str) -> None:
  """Prints advice when all members have diverged the third time in a row."""
  if num_diverged == _PATIENCE and hosts.is_first_host():
    print(
      f"WARNING: all members have diverged in {num_diverged} generations in a "
      f"row{reason}.\n{_ADVICE}; if it goes on to the end, "
      f"the exit code is {DIVERGED}.",
      file=sys.stderr, flush=True)


def check_end_without_divergence(
  num_diverged: int, num_generations: int
) -> None:
  """Refuses to call a run a success that diverged until its end."""
  if num_diverged >= min(_PATIENCE, num_generations):
    raise EndedDiverged(
      f"all members have diverged in the last {num_diverged} of "
      f"{num_generations} generations in which anything was learned. {_ADVICE}."
    )


def cause_of_divergence(
  setup: Setup, members: Members, report: GenerationReport
) -> str:
  """Tells which values of the environment made all members diverge.

  `members` are those of a `setup` at the end of the generation of `report`. The
  text goes on a sentence, or is empty where the environment isn't the cause.
  """
  found = jax.device_get(_finite_and_largest(
    members.learner, members.replay.storage if members.replay else None,
    mesh=setup.mesh, size=setup.config.population_size))
  if found.pop("learner").any():
    # So it was in evaluation; training has left out and counted the same.
    counts = {
      name: int(np.sum(report.metrics.get(f"nonfinite_{name}", 0)))
      for name in ("observations", "rewards")}
    named = [f"{name} ({n} in training)" for name, n in counts.items() if n]
    named = named or ["rewards in evaluation"]
    return f": not finite in the environment are its {' and '.join(named)}"
  largest = {name: np.max(x) for name, x in found.items()}
  large = [f"{name} of {x:.0e}" for name, x in largest.items() if x > _LARGE]
  return f": the environment returns {' and '.join(large)}" if large else ""


@functools.partial(jax.jit, static_argnames=("mesh", "size"))
def _finite_and_largest(
  learners: types.State, stored: types.Transition | None, *,
  mesh: jax.sharding.Mesh | None, size: int,
) -> dict[str, types.Array]:
  """Returns whether each member is finite, and its largest stored values."""

  def largest(x: types.Array) -> types.Array:
    return jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)))

  of_members = {"learner": trees.all_finite_leaves(learners)}
  if stored is not None:
    seen = largest(stored.observation), largest(stored.next_observation)
    of_members |= {
      "observations": jnp.maximum(*seen),
      "rewards": largest(stored.reward)}
  return sharding.all_gather(mesh, of_members, size)
