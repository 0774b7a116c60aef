import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import brax_loading, feet_contact
from tests import jaxprs

# Optimising what then runs for a moment takes longer than it saves.
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}
FALLING, STANDING, JERKING = 3, 80, 30


def robot(name):
  """One of brax's robots, not wrapped."""
  with brax_loading.quiet_brax():
    return brax_loading.brax_class(name)(backend="spring")


@pytest.fixture(scope="module")
def cheetah():
  """A cheetah that falls from 1 m, stands still, and then jerks about.

  Returns brax's environment, the link transforms [T, ...] and the state
  descriptors [T, 2].
  """
  env = environments.create("halfcheetah_uni").unwrapped

  @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
  def run(key):
    state = env.reset(key)
    state = state.replace(pipeline_state=env.pipeline_init(
      env.sys.init_q.at[1].set(1), jnp.zeros(env.sys.qd_size())
    ))
    actions = jax.random.uniform(
      key, (STANDING + JERKING, 6), minval=-1, maxval=1
    ).at[:STANDING].set(0)

    def step(state, action):
      state = env.step(state, action)
      return state, (state.pipeline_state.x, state.info["state_descriptor"])

    return jax.lax.scan(step, state, actions)[1]

  with brax_loading.quiet_brax():
    x, descriptors = run(jax.random.key(3))
  return env, x, np.asarray(descriptors)


def rotate(quaternion, vector):
  """Rotates vectors [..., 3] by quaternions [..., 4]."""
  w, u = quaternion[..., :1], quaternion[..., 1:]
  return vector + 2 * np.cross(u, np.cross(u, vector) + w * vector)


def geom_points(model, x, name):
  """The centres [..., 2, 3] of a geom's two ends, in float64, and its radius.

  A capsule's axis is its z axis; a sphere is one of length 0.
  """
  geom = model.geom(name)
  pos, rot = (np.asarray(a, np.float64)[..., None, geom.bodyid[0] - 1, :]
              for a in (x.pos, x.rot))
  half = geom.size[1] if geom.type[0] == 3 else 0
  ends = geom.pos + rotate(geom.quat, half * np.array([[0, 0, -1], [0, 0, 1.]]))
  return pos + rotate(rot, ends), geom.size[0]


def heights(model, x, geoms):
  """How high each geom is above the ground, [..., D]."""
  points = [geom_points(model, x, name) for name in geoms]
  return np.stack(
    [ends[..., 2].min(-1) - radius for ends, radius in points], -1
  )


def test_feet_read_1_within_a_millimetre_of_the_ground(cheetah):
  env, x, descriptors = cheetah
  height = heights(env.sys.mj_model, x, ["bfoot", "ffoot"])
  clear = abs(height - 1e-3) > 1e-5
  assert clear.mean() > 0.9
  np.testing.assert_array_equal(descriptors[clear], height[clear] < 1e-3)


def test_a_robot_reads_0_in_the_air_and_1_at_rest(cheetah):
  _, _, descriptors = cheetah
  assert not descriptors[:FALLING].any()
  assert descriptors[STANDING - 5:STANDING].all()
  assert 0 < descriptors[STANDING:].mean() < 1


# Spheres and capsules, fixed and jointed; the cheetah and the hopper have two
# capsules and one.
@pytest.mark.parametrize("name", ["ant", "humanoid", "walker2d"])
def test_each_foot_is_told_apart_and_is_where_its_name_says(name):
  from brax import kinematics

  brax_env = robot(name)
  sys, feet = brax_env.sys, feet_contact.ROBOTS[name].feet
  env = feet_contact.with_feet_contact(brax_env, name)
  assert env.descriptor.names == tuple(feet)
  touching = feet_contact.ground_contact(sys, list(feet.values()))

  @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
  @jax.vmap
  def pose(q):
    x, _ = kinematics.forward(sys, q, jnp.zeros(sys.qd_size()))
    state = types.SimpleNamespace(pipeline_state=types.SimpleNamespace(x=x))
    return x, touching(state)

  noise = 0.3 * np.random.default_rng(0).normal(size=(50, sys.q_size()))
  noise[0] = 0
  q = jnp.asarray(sys.init_q + noise, jnp.float32)
  with brax_loading.quiet_brax():
    x, _ = pose(q)
  places = [
    geom_points(sys.mj_model, x, geom)[0][0].mean(0) - x.pos[0, 0]
    for geom in feet.values()
  ]
  for foot, place in zip(feet, places, strict=True):
    for word, side in (
      ("front", place[0]), ("back", -place[0]),
      ("left", place[1]), ("right", -place[1]),
    ):
      # The walker is flat: both of its feet are in the middle.
      assert word not in foot or name == "walker2d" or side > 0.02, foot
  # Each pose is moved to where its lowest foot is 0.5 or 1.5 mm above 0.
  lowest = heights(sys.mj_model, x, feet.values()).min(-1)
  up = 2 if sys.link_types[0] == "f" else 1
  offset = np.where(np.arange(50) % 2, 1.5e-3, 0.5e-3)
  x, touches = pose(q.at[:, up].add(offset - lowest))
  height = heights(sys.mj_model, x, feet.values())
  np.testing.assert_array_equal(touches, height < 1e-3)
  np.testing.assert_array_equal(touches.any(1), offset < 1e-3)
  assert np.unique(touches, axis=1).shape[1] == len(feet)
  assert touches.any(0).all()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["positional", "mjx"])
def test_every_backend_fits_the_interface(backend):
  env = environments.create("hopper_uni", backend=backend)
  assert env.unwrapped.backend == backend
  assert env.descriptor == environments.Descriptor(
    ("foot",), (0.0,), (1.0,), environments.mean_descriptor, 0.9
  )


def test_contacts_are_not_looked_for_in_every_substep():
  def substeps(env):
    with brax_loading.quiet_brax():
      state = jax.eval_shape(env.reset, jax.random.key(0))
      scans = jaxprs.named(env.step, "scan", state, jnp.zeros(env.action_size))
    return max(len(scan.params["jaxpr"].eqns) for scan in scans)

  env = robot("hopper")
  wrapped = feet_contact.with_feet_contact(env, "hopper")
  assert substeps(wrapped) == substeps(env)
