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


def _setup(kind, with_repertoire):
  """A small population in the maze, made as on whatever backend jax sees."""
  env = environments.create("point_maze", episode_length=20)
  make, config = {
    "sac": (learners.sac, learners.SACConfig),
    "td3": (learners.td3, learners.TD3Config),
  }[kind]
  sizes = (env.observation_size, env.action_size)
  config = configs.sized(config, (8,), (8,), normalize_observations=False)
  learner = make(*sizes, config)
  space = jax.tree.map(controllers.Fixed, learner.hyperparams)
  setup = common.setup(
    controllers.pbt(controllers.PBTConfig(), space),
    learner,
    perturbation_interval=8,
    num_eval_episodes=1,
  )._replace(
    env=env,
    eval_env=env,
    mesh=distributed.population_mesh(4, jax.devices()[:1]),
  )
  if not with_repertoire:
    return setup
  bounds = env.descriptor.lower, env.descriptor.upper
  return setup._replace(
    map_elites=training.MapElites(
      emitter="pbt",
      tessellation=map_elites.Grid((4, 4), *bounds),
      variation_fn=training.vary_agents(0.01, 0.1, lambda key, x: x),
      variation_batch_size=4,
      num_initial_genotypes=4,
    )
  )


def _train(*args):
  """Two generations of a new population, or repertoire."""
  setup = _setup(*args)

  def run(key):
    state = common.init(setup, key)
    for _ in range(2):
      state, report = common.step(setup, state, key)
    return state, report

  return run


def _assert_close(actual, expected):
  """The same numbers but for rounding, keys included."""
  actual, expected = common.leaves(actual), common.leaves(expected)
  for name, x in expected.items():
    np.testing.assert_allclose(actual[name], x, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
  "args", [("sac", False), ("td3", True)], ids=["population", "repertoire"]
)
def test_a_generation_traced_for_an_accelerator_has_the_same_numbers(args):
  expected, _ = jax.jit(_train(*args))(_KEY)
  with _accelerator():
    train = _train(*args)
    loops = jaxprs.named(train, "while", _KEY)
    compiled = jax.jit(train).lower(_KEY).compile()
  assert not kernels.num_marked(compiled)
  actual, _ = compiled(_KEY)
  _assert_close(actual, expected)
  # In each generation evaluation is one, and the replay and environments of
  # broken members are replaced in two; the first elites are evaluated as well.
  assert len(loops) == 2 * 3 + args[1]


@pytest.mark.slow
def test_a_generation_as_it_is_written_has_the_same_numbers(monkeypatch):
  expected, _ = jax.jit(_train("sac", False))(_KEY)
  monkeypatch.setenv("QDRL_PLAIN", "1")
  compiled = jax.jit(_train("sac", False)).lower(_KEY).compile()
  assert not kernels.num_marked(compiled)
  actual, _ = compiled(_KEY)
  _assert_close(actual, expected)
