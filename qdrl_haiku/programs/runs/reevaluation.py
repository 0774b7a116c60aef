"""Evaluates a repertoire's elites again, to correct for lucky evaluations.

Flageat and Cully (2023), "Uncertain Quality-Diversity: Evaluation methodology
and new methods for Quality-Diversity in uncertain domains", arXiv:2302.00463.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from qdrl_haiku import map_elites, platform, types
from qdrl_haiku.distributed import sharding
from qdrl_haiku.programs.artifacts import statistics
from qdrl_haiku.programs.runs import records
from qdrl_haiku.programs.storage.strict_json import Record
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training import quality_diversity
from qdrl_haiku.training.setup import Setup

# Metrics of a repertoire that may be lower in the corrected one.
_LOST = ("qd_score", "coverage", "max_fitness")
_COLUMNS = (
  *(f"qd/{kind}_{name}" for kind in ("corrected", "lost") for name in _LOST),
  "qd/fitness_spread", "qd/descriptor_spread", "qd/reevaluation_env_steps")


class Reevaluation(NamedTuple):
  """Holds the episodes of N elites that were evaluated again, on the host."""

  cells: np.ndarray  # int32 [N], in which the elites are.
  fitness: np.ndarray  # float32 [N, M], of each of M episodes.
  descriptors: np.ndarray  # float32 [N, M, D], of each episode.
  env_steps: int  # That these episodes took together.
  # A repertoire to which the elites were added by their means. Its genotypes
  # are the cells, int32, in which the elites were before.
  corrected: map_elites.Repertoire


ReevaluateFn = Callable[
  [map_elites.Repertoire, types.Tree, types.Key], Reevaluation]
"""Evaluates all elites of a repertoire again, of the describer's state too; the
elite of cell i draws from `fold_in(key, i)`. Each of several processes has to
call it."""


def reevaluation_batch_size(setup: Setup, num_reevaluations: int) -> int:
  """Returns how many elites are evaluated at once."""
  num_cells = setup.qd.container.tessellation.num_cells
  num_devices = sharding.num_sharded_slots(setup.mesh, 1)
  num_agents = setup.sizes.evaluated
  num_episodes = num_agents * setup.config.num_eval_episodes
  at_once = min(
    num_agents, num_episodes // num_reevaluations,
    sharding.num_sharded_slots(setup.mesh, num_cells))
  return max(1, at_once // num_devices) * num_devices


def make_reevaluate(setup: Setup, num_reevaluations: int) -> ReevaluateFn:
  """Makes the function that evaluates a repertoire's elites again.

  Each is added to an empty repertoire by its mean fitness and its mean
  descriptor (the "corrected" one of Flageat and Cully, 2020). What is compiled
  fits any number of elites. A repertoire that is measured by other descriptors
  than those of its container keeps all.
  """
  mesh, container = setup.mesh, setup.qd.container
  if (places := setup.qd.measured) is not None:
    container = map_elites.one_per_place(
      places, lambda repertoire, new: jnp.arange(new.fitness.size))
  assert mesh is not None
  size = reevaluation_batch_size(setup, num_reevaluations)
  drawn_with = setup._replace(config=dataclasses.replace(
    setup.config, num_eval_episodes=num_reevaluations))
  options = platform.compiler_options(mesh.devices.flat[0].platform)
  replicated, divided = (
    NamedSharding(mesh, x) for x in (sharding.REPLICATED, sharding.SHARDED))
  compiled = functools.partial(
    jax.jit, out_shardings=replicated, compiler_options=options.once)

  @functools.partial(compiled, out_shardings=divided)
  def draw(cells: types.Array, key: types.Key) -> types.Tree:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, cells)
    return members_lib.draw_member_evaluation(drawn_with, keys)

  @functools.partial(compiled, compiler_options=options.often)
  def evaluate(
    elites: map_elites.Elite, cells: types.Array, env_states: types.Tree,
    described_by: types.Tree,
  ) -> tuple[types.Tree, types.Array]:
    chosen = jax.tree.map(lambda x: x[cells], elites)
    evaluation, evaluated = quality_diversity.judge_elites(
      setup, chosen, env_states, described_by)
    extra = {name: evaluated.extra[name] for name in container.keeps}
    return (
      evaluation.returns, evaluation.descriptors, extra), evaluation.lengths

  @compiled
  def correct(
    cells: types.Array, fitness: types.Array, descriptors: types.Array,
    extra: dict[str, types.Tree],
  ) -> map_elites.Repertoire:
    example = jax.tree.map(lambda x: x[0], (cells, extra))
    return container.show(container.add(
      container.init(*example),
      map_elites.Evaluated(
        cells, jnp.mean(fitness, 1), jnp.mean(descriptors, 1), extra)))

  def reevaluate(
    repertoire: map_elites.Repertoire, described_by: types.Tree, key: types.Key
  ) -> Reevaluation:
    occupied = np.flatnonzero(jax.device_get(repertoire.fitness) > -np.inf)
    occupied = occupied.astype(np.int32)
    # What is not finite is not added.
    num_cells, axes = repertoire.descriptors.shape
    fitness = np.full((num_cells, num_reevaluations), np.nan, np.float32)
    descriptors = np.full((*fitness.shape, axes), np.nan, np.float32)
    extra = jax.tree.map(
      lambda x: np.zeros(x.shape, x.dtype),
      {name: repertoire.extras[name] for name in container.keeps})
    env_steps = 0
    for first in range(0, occupied.size, size):
      # The last one fills up the last batch.
      cells = occupied.take(np.arange(first, first + size), mode="clip")
      (fitness[cells], descriptors[cells], again), lengths = jax.device_get(
        evaluate(
          repertoire.genotypes, cells, draw(cells, key), described_by))
      for stored, x in zip(*map(jax.tree.leaves, (extra, again)), strict=True):
        stored[cells] = x
      env_steps += int(lengths[: occupied.size - first].sum())
    corrected = correct(
      np.arange(num_cells, dtype=np.int32), fitness, descriptors, extra)
    return Reevaluation(
      cells=occupied, fitness=fitness[occupied],
      descriptors=descriptors[occupied], env_steps=env_steps,
      corrected=jax.device_get(corrected))

  return reevaluate


def reevaluation_row(
  repertoire: map_elites.Repertoire, again: Reevaluation | None, offset: float
) -> Record:
  """Returns the columns of a reevaluation, NaN if there was none.

  `again` is what was found of the elites of a `repertoire`; `offset` is that of
  the QD score.
  """
  if again is None:
    return dict.fromkeys(_COLUMNS, np.nan)
  seen, corrected = (
    records.record_numbers(jax.device_get(map_elites.metrics(x, offset)))
    for x in (repertoire, again.corrected))
  values = [corrected[f"qd/{name}"] for name in _LOST]
  values += [seen[f"qd/{x}"] - corrected[f"qd/{x}"] for x in _LOST]
  for x in (again.fitness, again.descriptors):
    spread = statistics.episode_spreads(x)
    spread = spread[np.isfinite(spread)]
    values.append(float(np.mean(spread)) if spread.size else np.nan)
  return dict(zip(_COLUMNS, [*values, again.env_steps], strict=True))
