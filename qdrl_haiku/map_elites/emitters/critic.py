"""Emitters whose individuals learn from one critic that is shared by all.

PGA-MAP-Elites: Nilsson and Cully (2021), "Policy gradient assisted MAP-Elites",
GECCO. DCRL-MAP-Elites: Faldor, Chalumeau, Flageat and Cully (2024),
"Synergizing quality-diversity with descriptor-conditioned reinforcement
learning", arXiv:2401.08632.

In each generation the critic is trained; G parents follow its gradient, I of
its own policies are injected, and V variations of elites are made. All of them
are evaluated, and the teacher stores their transitions for later training.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.variation import VariationFn, emit_offspring
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.types import Array, Key, Metrics, Tree


class Teacher(NamedTuple):
  """Holds the pure functions of a critic that emitters call.

  `training.teacher` makes them for agents of a learner. A target is the
  descriptor that an individual was made for. Keys are consumed.

  Attributes:
    init: (key) -> state, any tree of arrays: a critic that knows nothing.
    remember: (state, evaluated, targets [B, D]) -> state, with the finite
      transitions of `evaluated.extra` stored.
    train: (state, key) -> (state, metrics by name, floats []), once before each
      generation.
    improve: (state, individuals, leaves [n, ...], targets [n, D], key) -> the
      individuals, a few steps along the critic's gradient.
    policies: (state, targets [n, D]) -> individuals, leaves [n, ...]: the
      critic's own policies for these targets.
  """

  init: Callable[[Key], Tree]
  remember: Callable[[Tree, Evaluated, Array], Tree]
  train: Callable[[Tree, Key], tuple[Tree, Metrics]]
  improve: Callable[[Tree, Tree, Array, Key], Tree]
  policies: Callable[[Tree, Array], Tree]


class TaughtState(NamedTuple):
  """Holds the state of an emitter with a shared critic."""

  teacher: Tree  # The teacher's: the critic, and what it has stored.
  targets: Array  # Of the last `ask`, without variations, [G + I, D].
  metrics: Metrics  # Of the last training, []; NaN before the first.


def pga_emitter(
  teacher: Teacher, variation_fn: VariationFn, **batch_sizes: int
) -> Emitter:
  """Makes the emitter of PGA-MAP-Elites, as `dcrl_emitter` does.

  Args:
    teacher: whose critic sees no targets; it has one policy to inject, or none.
    variation_fn: makes offspring, see `VariationFn`.
    **batch_sizes: the three of `dcrl_emitter`.

  Raises:
    ValueError: if more than one policy is to be injected.
  """
  if (number := batch_sizes["injection_batch_size"]) > 1:
    raise ValueError(
      f"injection_batch_size={number} would inject one policy more than once, "
      "since the critic has no other; give 0 or 1.")
  return dcrl_emitter(teacher, variation_fn, **batch_sizes)


def dcrl_emitter(
  teacher: Teacher, variation_fn: VariationFn, *, gradient_batch_size: int,
  injection_batch_size: int, variation_batch_size: int,
) -> Emitter:
  """Makes the emitter of DCRL-MAP-Elites.

  Parents are drawn uniformly from the occupied cells; an individual's target
  is its parent's descriptor. That of an injected one is an elite's, drawn in
  the same way, and that of a varied one is its own descriptor.

  Args:
    teacher: whose critic and policy see targets, and whose rewards are
      weighted by `dcrl_similarity`, see `Teacher`.
    variation_fn: makes offspring, see `VariationFn`.
    gradient_batch_size: G, parents that are improved, >= 0.
    injection_batch_size: I, policies for descriptors of elites, >= 0.
    variation_batch_size: V, variations, >= 0.

  Returns:
    The emitter, of G + I + V individuals in that order; its state is a
    `TaughtState`.
  """
  num_taught = gradient_batch_size + injection_batch_size

  def init(key: Key, repertoire: Repertoire) -> TaughtState:
    state = teacher.init(key)
    metrics = jax.eval_shape(teacher.train, state, key)[1]
    return TaughtState(
      teacher=state,
      targets=jnp.zeros(
        (num_taught, repertoire.descriptors.shape[1]), jnp.float32),
      # Each a buffer of its own, so that the state can be donated.
      metrics={
        name: jnp.full(x.shape, jnp.nan, x.dtype) for name, x in metrics.items()
      })

  def ask(
    state: TaughtState, repertoire: Repertoire, key: Key
  ) -> tuple[Tree, TaughtState]:
    train_key, parents_key, targets_key, improve_key, variation_key = (
      jax.random.fold_in(key, draw) for draw in (
        OfGeneration.TRAIN, OfGeneration.PARENTS, OfGeneration.TARGETS,
        OfGeneration.IMPROVE, OfGeneration.VARIATION))
    taught, metrics = teacher.train(state.teacher, train_key)
    cells = repertoire.sample_cells(parents_key, gradient_batch_size)
    others = repertoire.sample_cells(targets_key, injection_batch_size)
    targets = repertoire.descriptors[jnp.concatenate([cells, others])]
    batches = []
    if gradient_batch_size:
      parents = jax.tree.map(lambda x: x[cells], repertoire.genotypes)
      made_for = targets[:gradient_batch_size]
      batches.append(teacher.improve(taught, parents, made_for, improve_key))
    if injection_batch_size:
      batches.append(teacher.policies(taught, targets[gradient_batch_size:]))
    batches.append(emit_offspring(
      variation_key, variation_fn, repertoire.sample, variation_batch_size))
    individuals = jax.tree.map(lambda *x: jnp.concatenate(x), *batches)
    return individuals, TaughtState(taught, targets, metrics)

  def remember(
    state: TaughtState, evaluated: Evaluated, targets: Array
  ) -> TaughtState:
    return state._replace(
      teacher=teacher.remember(state.teacher, evaluated, targets))

  return Emitter(
    init=init, ask=ask,
    tell=lambda state, repertoire, evaluated, key: remember(
      state, evaluated, jnp.concatenate(
        [state.targets, evaluated.descriptors[num_taught:]])),
    batch_size=num_taught + variation_batch_size, needs=("transitions",),
    metrics=lambda state: state.metrics,
    tell_first=lambda state, repertoire, evaluated, key: remember(
      state, evaluated, evaluated.descriptors))


def dcrl_similarity(
  descriptors: Array, targets: Array, length_scale: float | Array
) -> Array:
  """Returns exp(-|d - d'| / L), equation 4 of the paper of DCRL-MAP-Elites.

  Args:
    descriptors: d, [..., D].
    targets: d', [..., D].
    length_scale: L, [], > 0, in the descriptors' units.

  Returns:
    Weights of rewards, [...], in [0, 1]: 1 where they are equal.
  """
  distance = jnp.linalg.norm(descriptors - targets, axis=-1)
  return jnp.exp(-distance / length_scale)
