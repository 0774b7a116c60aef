"""Emitters whose individuals learn from one critic that is shared by all.

Individuals are made in three ways: parents are improved by the critic, the
critic's own policies are put among them, and elites are varied. All of them
are evaluated, and the critic learns from all that they did.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.checks import check_count
from qdrl_haiku.map_elites.emitters import Emitter, Evaluated, breed
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.variation import VariationFn
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key, Metrics


class Teacher(NamedTuple):
  """Holds the pure functions of a critic that emitters call.

  A target is the descriptor that an individual was made for. Keys are
  consumed.

  Attributes:
    init: (key) -> its state: a critic that knows nothing.
    remember: (state, evaluated, targets [B, D]) -> state, with what happened
      in all of the evaluation that is finite.
    train: (state, key) -> (state, metrics by name, floats []).
    improve: (state, individuals [n, ...], targets [n, D], key) ->
      individuals.
    policies: (state, targets [n, D]) -> individuals, the critic's own for each
      of the targets.
    needs: names of what `remember` looks at in `evaluated.extra`.
  """

  init: Callable[[Key], Any]
  remember: Callable[[Any, Evaluated, Array], Any]
  train: Callable[[Any, Key], tuple[Any, Metrics]]
  improve: Callable[[Any, Any, Array, Key], Any]
  policies: Callable[[Any, Array], Any]
  needs: tuple[str, ...] = ("transitions",)


class TaughtState(NamedTuple):
  """Holds the state of an emitter with a shared critic.

  Attributes:
    teacher: the critic's, and what it remembers.
    targets: [G + I, D], of the last individuals that weren't varied.
    metrics: of the last training, [] by name; NaN before the first.
  """

  teacher: Any
  targets: Array
  metrics: Metrics


def taught_emitter(
  teacher: Teacher,
  variation_fn: VariationFn,
  *,
  gradient_batch_size: int,
  injection_batch_size: int,
  variation_batch_size: int,
) -> Emitter:
  """Makes the emitter: individuals improved, injected and varied, in order.

  Parents are drawn uniformly from the occupied cells; an individual's target
  is its parent's descriptor, an injected one's that of an elite drawn
  likewise, and a varied one's whatever it turned out to be.
  """
  check_count("gradient_batch_size", gradient_batch_size, 0)
  check_count("injection_batch_size", injection_batch_size, 0)
  check_count("variation_batch_size", variation_batch_size, 0)
  num_taught = gradient_batch_size + injection_batch_size

  def init(key: Key, repertoire: Repertoire) -> TaughtState:
    state = teacher.init(key)
    metrics = jax.eval_shape(teacher.train, state, key)[1]
    size = repertoire.descriptors.shape[1]
    return TaughtState(
      teacher=state,
      targets=jnp.zeros((num_taught, size)),
      # Each a buffer of its own, so that the state can be donated.
      metrics={
        name: jnp.full(x.shape, jnp.nan, x.dtype) for name, x in metrics.items()
      },
    )

  def ask(
    state: TaughtState, repertoire: Repertoire, key: Key
  ) -> tuple[Any, TaughtState]:
    train_key, improve_key, parents_key, targets_key = (
      jax.random.fold_in(key, draw)
      for draw in (
        OfGeneration.TRAIN,
        OfGeneration.IMPROVE,
        OfGeneration.PARENTS,
        OfGeneration.TARGETS,
      )
    )
    taught, metrics = teacher.train(state.teacher, train_key)
    parents = repertoire.sample_cells(parents_key, gradient_batch_size)
    others = repertoire.sample_cells(targets_key, injection_batch_size)
    targets = repertoire.descriptors[jnp.concatenate([parents, others])]
    batches = []
    if gradient_batch_size:
      batches.append(
        teacher.improve(
          taught,
          jax.tree.map(lambda x: x[parents], repertoire.genotypes),
          targets[:gradient_batch_size],
          improve_key,
        )
      )
    if injection_batch_size:
      batches.append(teacher.policies(taught, targets[gradient_batch_size:]))
    batches.append(
      breed(
        jax.random.fold_in(key, OfGeneration.VARIATION),
        variation_fn,
        repertoire.sample,
        variation_batch_size,
      )
    )
    individuals = jax.tree.map(lambda *x: jnp.concatenate(x), *batches)
    return individuals, TaughtState(taught, targets, metrics)

  def tell(
    state: TaughtState,
    repertoire: Repertoire,
    evaluated: Evaluated,
    key: Key,
  ) -> TaughtState:
    del repertoire, key
    targets = jnp.concatenate(
      [state.targets, evaluated.descriptors[num_taught:]]
    )
    return state._replace(
      teacher=teacher.remember(state.teacher, evaluated, targets)
    )

  def tell_first(
    state: TaughtState,
    repertoire: Repertoire,
    evaluated: Evaluated,
    key: Key,
  ) -> TaughtState:
    del repertoire, key
    return state._replace(
      teacher=teacher.remember(
        state.teacher, evaluated, evaluated.descriptors
      )
    )

  return Emitter(
    init=init,
    ask=ask,
    tell=tell,
    batch_size=num_taught + variation_batch_size,
    needs=teacher.needs,
    metrics=lambda state: state.metrics,
    tell_first=tell_first,
  )
