"""Tests of the repertoires that configurations ask for."""

import jax
import numpy as np

from qdrl_haiku import experiment
from qdrl_haiku.training import elites, quality_diversity


def _num_cells(**more):
  """How many of 1,024 cells the first 64 agents fill."""
  values = {
    "env_name": "arm", "learner": "td3", "emitter": "pga",
    "hidden_layer_sizes": ("8",), "num_initial_genotypes": 64,
    "num_eval_episodes": 1, "num_generations": 1,
  } | more  # fmt: skip
  setup = experiment.TRAIN_ME_PBT.configure(values).build()

  @jax.jit
  def cells(key):
    initial = quality_diversity.draw(setup, key, 0, 64)
    first = elites.random_elites(setup, jax.random.split(key, 64))
    _, evaluated = elites.judge_elites(setup, first, initial.evaluation, ())
    return setup.map_elites.tessellation.cell(evaluated.descriptors)

  return len(np.unique(cells(jax.random.key(0))))


def test_first_agents_differ_by_default():
  assert _num_cells() > 40
  assert _num_cells(policy_final_init="small") < 4
