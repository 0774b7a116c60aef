"""What is traced for an accelerator: the same numbers, and no work of CPUs.

There is none here, so what was traced for one is compiled for CPUs. Without
optimisations XLA makes NaN there of what it computes with them, as jax does by
single operations.
"""

import dataclasses

import jax
import numpy as np
import pytest

from qdrl_haiku import (
  controllers,
  distributed,
  environments,
  learners,
  map_elites,
  training,
)
from qdrl_haiku.cpu import switch
from qdrl_haiku.training import population
from tests import configs, kernels
from tests.training import common

_KEY = jax.random.key(0)
_OPTIMISED = {"xla_backend_optimization_level": 2}


def _setup():
  """A small population in the maze, made as on whatever backend jax sees."""
  env = environments.create("point_maze", episode_length=20)
  config = configs.sized(
    learners.TD3Config, (8,), (8,), normalize_observations=False)
  learner = learners.td3(env.observation_size, env.action_size, config)
  space = jax.tree.map(controllers.Fixed, learner.hyperparams)
  bounds = env.descriptor.lower, env.descriptor.upper
  return common.setup(
    controllers.pbt(controllers.PBTConfig(), space), learner,
    perturbation_interval=8, num_eval_episodes=1)._replace(
    env=env,
    eval_env=env,
    mesh=distributed.population_mesh(4, jax.devices()[:1]),
    map_elites=training.MapElites(
      emitter="pbt",
      container=map_elites.cells(map_elites.Grid((4, 4), *bounds)),
      variation_fn=training.vary_elites(0.01, 0.1, lambda key, x: x),
      variation_batch_size=4, num_initial_genotypes=4))


def _train():
  """Two generations of a new repertoire."""
  setup = _setup()

  def run(key):
    state = common.init(setup, key)
    for _ in range(2):
      state, report = common.step(setup, state, key)
    return state, report

  return run


@pytest.mark.slow
def test_a_generation_traced_otherwise_has_the_same_numbers(monkeypatch):
  expected, _ = jax.jit(_train())(_KEY)
  with switch.switching_platform("gpu"):
    train = _train()
    accelerated = jax.jit(train).lower(_KEY).compile(_OPTIMISED)
  monkeypatch.setenv("QDRL_PLAIN", "1")
  as_written = jax.jit(_train()).lower(_KEY).compile(_OPTIMISED)
  for compiled in (accelerated, as_written):
    assert not kernels.num_marked(compiled)
    actual = common.leaves(compiled(_KEY)[0])
    for name, x in common.leaves(expected).items():
      np.testing.assert_allclose(actual[name], x, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_member_that_may_not_learn_yet_keeps_its_networks():
  with switch.switching_platform("gpu"):
    setup = _setup()._replace(map_elites=None)
    config = dataclasses.replace(setup.config, min_replay_size=9)
    setup = setup._replace(config=config)
    before = common.init(setup, _KEY)
    trainer = population.make_trainer(setup)
    train = jax.jit(lambda state: trainer.train(state, (), _KEY))
    after, trained = train.lower(before).compile(_OPTIMISED)(before)
  assert not trained.num_updates.any()
  jax.tree.map(
    np.testing.assert_array_equal, after.members.learner, before.members.learner
  )
