import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import brax_loading

# Optimising what then runs for a moment takes longer than it saves.
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def walk():
  """The states [T] of an ant that jerks about."""
  env = environments.create("ant_omni").unwrapped

  @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
  def run(key):
    actions = jax.random.uniform(key, (20, 8), minval=-1, maxval=1)

    def step(state, action):
      state = env.step(state, action)
      return state, (state, action)

    return jax.lax.scan(step, env.reset(key), actions)[1]

  with brax_loading.quiet_brax():
    return run(jax.random.key(0))


def test_moving_forwards_earns_nothing(walk):
  states, actions = walk
  assert abs(states.metrics["x_velocity"]).max() > 0.5
  expected = 1 - 0.5 * (np.asarray(actions, np.float64) ** 2).sum(-1)
  np.testing.assert_allclose(states.reward, expected, atol=1e-5)


def test_the_descriptor_is_where_the_torso_is(walk):
  states, _ = walk
  position = states.info["state_descriptor"]
  np.testing.assert_array_equal(position[:, 0], states.metrics["x_position"])
  np.testing.assert_array_equal(position[:, 1], states.metrics["y_position"])
  assert abs(position).max() > 0.05


@pytest.mark.slow
def test_the_humanoid_goes_anywhere_as_well():
  env = environments.create("humanoid_omni")
  assert env.descriptor == environments.Descriptor(
    ("x", "y"), (-30.0, -30.0), (30.0, 30.0), environments.final_descriptor, 0.0
  )
  assert jnp.issubdtype(
    jax.eval_shape(env.reset, jax.random.key(0)).info["state_descriptor"].dtype,
    jnp.float32,
  )
