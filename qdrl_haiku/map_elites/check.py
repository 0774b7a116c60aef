"""Checks of an emitter, and of what it and a scoring function return."""

from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import checks
from qdrl_haiku.map_elites.emitters import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Tree


def check(
  emitter: Emitter,
  repertoire: Repertoire,
  extra: dict[str, Tree] | None = None,
) -> None:
  """Refuses an emitter whose functions don't do what `Emitter` says.

  Nothing is computed or compiled; only shapes are looked at.

  Args:
    emitter: of a user's own, perhaps.
    repertoire: for which it makes individuals; it may be empty.
    extra: what its `needs` name of an evaluation of its individuals,
      leaves [B, ...]. Without that `tell` is looked at if it needs nothing.

  Raises:
    ValueError: if something that it has or returns isn't as it should be.
  """
  checks.check_count("batch_size", emitter.batch_size, 0)
  key = jax.eval_shape(lambda: jax.random.key(0))
  state = jax.eval_shape(emitter.init, key, repertoire)
  genotypes, asked = check_asked(
    emitter, repertoire, jax.eval_shape(emitter.ask, state, repertoire, key)
  )
  _check_state("ask", asked, state)
  extra = extra or {}
  if not {*emitter.needs} <= extra.keys():
    return
  size, num_dimensions = emitter.batch_size, repertoire.descriptors.shape[1]
  evaluated = Evaluated(
    genotypes,
    jax.ShapeDtypeStruct((size,), jnp.float32),
    jax.ShapeDtypeStruct((size, num_dimensions), jnp.float32),
    extra,
  )
  told = jax.eval_shape(emitter.tell, asked, repertoire, evaluated, key)
  _check_state("tell", told, state)


def check_asked(
  emitter: Emitter, repertoire: Repertoire, asked: Any
) -> tuple[Any, Any]:
  """Refuses what an emitter's `ask` must not return."""
  if not isinstance(asked, tuple) or len(asked) != 2:
    raise ValueError(
      f"the emitter's ask returns a {type(asked).__name__}; return a pair, the "
      "genotypes and the emitter's new state."
    )
  genotypes, state = asked
  expected: Any = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      (emitter.batch_size, *x.shape[1:]), x.dtype
    ),
    repertoire.genotypes,
  )
  difference = checks.difference(genotypes, expected)
  if difference is None:
    return genotypes, state
  fix = (
    f"return batch_size={emitter.batch_size} genotypes like the repertoire's, "
    "and then the emitter's new state"
  )
  if checks.difference(state, expected) is None:
    fix = "it returns (state, genotypes): swap them"
  raise ValueError(
    f"the genotypes that the emitter's ask returns aren't {emitter.batch_size} "
    f"of the repertoire's kind: {difference}; {fix}."
  )


def check_scores(
  scores: Any,
) -> tuple[Array, Array, dict[str, Tree]]:
  """Refuses what a scoring function must not return."""
  if not isinstance(scores, (tuple, list)) or len(scores) != 3:
    count = len(scores) if isinstance(scores, (tuple, list)) else 1
    raise ValueError(
      f"the scoring function returns {count} value{'s' * (count != 1)}; return "
      "three: fitness [B], descriptors [B, D], and a dict of what emitters "
      "need, {} for nothing."
    )
  fitness, descriptors, extra_scores = scores
  if not isinstance(extra_scores, dict):
    raise ValueError(
      "the third value that the scoring function returns is a "
      f"{type(extra_scores).__name__}; return a dict of what emitters need, "
      "{} for nothing."
    )
  return fitness, descriptors, extra_scores


def _check_state(name: str, found: Any, state: Any) -> None:
  """Refuses an emitter's state that differs in kind from that of `init`."""
  if difference := checks.difference(found, state):
    raise ValueError(
      f"the state that the emitter's {name} returns differs from that of init: "
      f"{difference}; return the same tree, shapes and dtypes."
    )
