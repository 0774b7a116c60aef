"""What is traced for an accelerator: the same numbers, and no work of CPUs.

There is none here, so jax is made to believe in one while it traces.
"""

import contextlib

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
from tests import configs, jaxprs, kernels
from tests.training import common

_KEY = jax.random.key(0)


@contextlib.contextmanager
def _accelerator():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax, "default_backend", lambda: "gpu")
    yield


def _setup():
  """A small population in the maze, made as on whatever backend jax sees."""
  env = environments.create("point_maze", episode_length=20)
  config = configs.sized(
    learners.TD3Config, (8,), (8,), normalize_observations=False
  )
  learner = learners.td3(env.observation_size, env.action_size, config)
  space = jax.tree.map(controllers.Fixed, learner.hyperparams)
  bounds = env.descriptor.lower, env.descriptor.upper
  return common.setup(
    controllers.pbt(controllers.PBTConfig(), space),
    learner,
    perturbation_interval=8,
    num_eval_episodes=1,
  )._replace(
    env=env,
    eval_env=env,
    mesh=distributed.population_mesh(4, jax.devices()[:1]),
    map_elites=training.MapElites(
      emitter="pbt",
      tessellation=map_elites.Grid((4, 4), *bounds),
      variation_fn=training.vary_agents(0.01, 0.1, lambda key, x: x),
      variation_batch_size=4,
      num_initial_genotypes=4,
    ),
  )


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
  with _accelerator():
    train = _train()
    loops = jaxprs.named(train, "while", _KEY)
    accelerated = jax.jit(train).lower(_KEY).compile()
  # In each generation evaluation is one, and the replay and environments of
  # broken members are replaced in two; the first elites are evaluated as well.
  assert len(loops) == 2 * 3 + 1
  monkeypatch.setenv("QDRL_PLAIN", "1")
  as_written = jax.jit(_train()).lower(_KEY).compile()
  for compiled in (accelerated, as_written):
    assert not kernels.num_marked(compiled)
    actual = common.leaves(compiled(_KEY)[0])
    for name, x in common.leaves(expected).items():
      np.testing.assert_allclose(actual[name], x, rtol=1e-3, atol=1e-4)
