"""Directories of runs, written as runs write them."""

import jax
import numpy as np

from qdrl_haiku import controllers, map_elites
from qdrl_haiku.controllers import lineage
from qdrl_haiku.programs import reports
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests import planes

SETTINGS = {
  "env_name": "point_maze", "learner": "sac", "seed": 0, "search_space": [],
  "hidden_layer_sizes": ["4", "4"], "tau": 0.01, "logdir": "there"}
INTERVAL = 100
# Per generation and member.
RETURNS = np.array(
  [[1.0, 2.0, 3.0], [4.0, 2.5, 6.0], [5.0, 1.0, 7.0], [8.0, 9.0, 2.0]])
# Per generation: who takes over from whom.
_TAKEOVERS = {2: (0, 2), 3: (1, 0), 4: (2, 1)}
# So the winner, member 1, was who in each generation?
ANCESTORS = {1: 2, 2: 2, 3: 0, 4: 1}
_OPERATORS = ("survive", "perturb")
_PERTURB = 1


def write_population(path, scale=1.0, rename=None, **changes):
  """Four generations of three members, with returns scaled.

  `rename` is another name of the policy's learning rate.
  """
  directory = RunDirectory(path)
  directory.begin(SETTINGS | changes)
  hyperparams = {
    rename or "policy_learning_rate": np.array([1e-4, 1e-3, 1e-2]),
    "discount": np.array([0.9, 0.99, 0.999]),
    "tau": np.full(3, 0.01)}
  directory.append(
    "pbt_lineage.jsonl", lineage.initial_lineage_rows(hyperparams))
  for generation, returns in enumerate(scale * RETURNS, start=1):
    step = generation * INTERVAL
    metrics = {
      "generation": generation, "step": step, "walltime": 30.0 * generation,
      "eval/episode_return": returns.mean(), "pbt/best_return": returns.max(),
      "pbt/mean_return": returns.mean(), "training/critic_loss": 1 / generation,
      "training/compile_seconds": 3.0}
    directory.append("metrics.jsonl", [metrics])
    parents, operator = np.arange(3), np.zeros(3, int)
    if generation in _TAKEOVERS:
      child, parent = _TAKEOVERS[generation]
      parents[child], operator[child] = parent, _PERTURB
    new = {name: x[parents] for name, x in hyperparams.items()}
    directory.append(
      "pbt_members.jsonl",
      lineage.lineage_member_rows(generation, step, returns, hyperparams))
    decision = controllers.Decision(parents, new, operator)
    directory.append(
      "pbt_lineage.jsonl",
      lineage.lineage_rows(
        generation, step, decision, returns, hyperparams, _OPERATORS))
    hyperparams = new
  return directory


def write_seeds(path, num_seeds, **changes):
  """Seeds side by side, without a controller; returns are step + seed."""
  directory = RunDirectory(path)
  directory.begin(SETTINGS | changes)
  name = "eval/episode_return"
  for generation in range(1, 4):
    step = generation * INTERVAL
    row = {
      "generation": generation, "step": step, "walltime": 30.0 * generation}
    row[name] = step + (num_seeds - 1) / 2
    row |= {f"{name}/seed_{i}": float(step + i) for i in range(num_seeds)}
    directory.append("metrics.jsonl", [row])
  return directory


def population(path, **arguments):
  """The run of `write_population`."""
  write_population(path, **arguments)
  return reports.read_runs([str(path)])[0]


def repertoire(tessellation, share=0.7, seed=0):
  """Elites in about a share of the cells, on the host."""
  rng = np.random.default_rng(seed)
  num = tessellation.num_cells
  some = np.flatnonzero(rng.uniform(size=num) < share)
  hyperparams = {
    "discount": rng.uniform(0.9, 1.0, len(some)),
    "policy_learning_rate": 10 ** rng.uniform(-4, -2, len(some))}
  elites = map_elites.Elite(np.zeros((len(some), 2)), hyperparams)
  return _in_cells(tessellation, some, elites, rng.normal(size=len(some)))


def agents(learner, tessellation, cells):
  """New agents in some cells, the later the fitter."""
  keys = jax.random.split(jax.random.key(3), len(cells))
  new = jax.jit(jax.vmap(lambda key: learner.genotype(learner.init(key))))
  hyperparams = {
    name: np.full(len(cells), x) for name, x in learner.hyperparams.items()}
  elites = map_elites.Elite(jax.device_get(new(keys)), hyperparams)
  return _in_cells(tessellation, cells, elites, np.arange(len(cells)))


def _in_cells(tessellation, cells, elites, fitness):
  """Elites in the middles of cells."""
  middles = np.asarray(tessellation.centroids)[np.asarray(cells)]
  return planes.in_cells(tessellation, cells, elites, fitness, middles)


def write_repertoire(directory, elites, step=400):
  """Writes the file of a repertoire, with the names of its axes."""
  names = list("abcd"[: elites.tessellation.num_dimensions])
  path = directory.path / "repertoire" / f"{step}.npz"
  elites.save(path, SETTINGS | {"descriptor_names": names})
  return path


def look_again(path, cells, num_episodes):
  """Writes a second evaluation of elites; returns its returns and places."""
  rng = np.random.default_rng(1)
  fitness = rng.normal(size=(len(cells), num_episodes))
  descriptors = rng.normal(size=(*fitness.shape, 2))
  (path / "reevaluation").mkdir(exist_ok=True)
  RunDirectory(path).write_arrays(
    "reevaluation/400.npz",
    {"cells": cells, "fitness": fitness, "descriptors": descriptors})
  return fitness, descriptors
