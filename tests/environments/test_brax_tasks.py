"""Tests of tasks on brax's robots."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import brax_loading, brax_tasks
from tests import jaxprs

# Optimising what then runs for a moment takes longer than it saves.
_jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


def _robot(name, backend="spring"):
  """One of brax's robots, not wrapped."""
  with brax_loading.quiet_brax():
    return brax_loading.brax_class(name)(backend=backend)


# Where each ant starts, and the points that it is pushed to in turn. All of
# them end where they would be 3 m or more behind a wall, were it not there.
_WAYS = {
  "ahead": [(0, 0), (15, 0)],
  "sideways": [(9.5, 0), (9.5, -6)],
  "from behind": [(16, 0), (9, 0)],
  "around": [(0, 0), (3, 5.5), (14, 5.5), (16, 0)],
}
_SPEED = 2.5


@pytest.fixture(scope="module")
def paths():
  """Pushes ants about; returns their states by way, [T, ...]."""
  env = environments.create("ant_trap").unwrapped

  def push(state, target):
    """Gives all parts of an ant the velocity towards a target."""
    pipeline_state = state.pipeline_state
    way = target - pipeline_state.x.pos[0, :2]
    velocity = _SPEED * way / jnp.linalg.norm(way)
    still = jnp.zeros_like(pipeline_state.xd_i.vel)
    motion = pipeline_state.xd_i.replace(
      vel=still.at[:, :2].set(velocity), ang=still
    )
    return state.replace(pipeline_state=pipeline_state.replace(xd_i=motion))

  @_jit
  @jax.vmap
  def run(way):
    state = env.reset(jax.random.key(0))
    start = env.sys.init_q.at[:2].set(way[0])
    state = state.replace(
      pipeline_state=env.pipeline_init(start, jnp.zeros(env.sys.qd_size()))
    )

    def step(carry, _):
      state, index = carry
      to_go = jnp.linalg.norm(way[index] - state.pipeline_state.x.pos[0, :2])
      index = jnp.where(to_go < 0.5, index + 1, index).clip(max=len(way) - 1)
      state = env.step(push(state, way[index]), jnp.zeros(8))
      return (state, index), (state, index)

    return jax.lax.scan(step, (state, 1), length=220)[1]

  longest = max(map(len, _WAYS.values()))
  ways = [way + [way[-1]] * (longest - len(way)) for way in _WAYS.values()]
  with brax_loading.quiet_brax():
    states, _ = run(jnp.array(ways, jnp.float32))
  return {
    name: jax.tree.map(lambda x, i=i: np.asarray(x[i]), states)
    for i, name in enumerate(_WAYS)
  }


@pytest.mark.slow
@pytest.mark.parametrize("way, axis, side", [
  ("ahead", 0, (10.5, 11.5)),
  ("sideways", 1, (-2.5, -1.5)),
  ("from behind", 0, (12.5, 13.5)),
  ("around", 0, (15.4, 16.6)),
])
def test_an_ant_is_stopped_by_walls_and_walks_around_them(
  paths, way, axis, side
):
  state = paths[way]
  assert not state.done.any()
  assert side[0] < state.info["state_descriptor"][-1, axis] < side[1]


@pytest.mark.slow
def test_the_ant_is_rewarded_for_going_forwards_and_sees_where_it_is(paths):
  x = paths["ahead"].info["state_descriptor"][:, 0]
  velocity = np.diff(x) / 0.05
  np.testing.assert_allclose(
    paths["ahead"].reward[1:], 1 + velocity, atol=1e-3
  )
  assert velocity[:60].mean() > 1.5
  # In units of the descriptor's bounds.
  state = paths["around"]
  position = state.info["state_descriptor"].astype(np.float64)
  np.testing.assert_allclose(
    state.obs[:, :2], (position - [15, 0]) / [15, 8], atol=1e-6
  )
  assert state.obs.shape[-1] == 29


def test_the_settings_of_brax_for_the_backend_are_kept():
  env = _robot("ant", "positional")
  plain, geoms = env.sys, env.sys.mj_model.ngeom
  with brax_loading.quiet_brax():
    trapped = brax_tasks.trap(env).sys
  assert env.sys is plain
  assert trapped.mj_model.ngeom == geoms + len(brax_tasks.WALLS)
  for name in ("opt", "actuator", "link", "init_q"):
    jax.tree.map(
      np.testing.assert_array_equal, getattr(plain, name),
      getattr(trapped, name),
    )  # fmt: skip


@pytest.mark.slow
def test_an_omnidirectional_ant_tells_where_it_is_and_earns_no_speed():
  env = environments.create("ant_omni").unwrapped

  @_jit
  def run(key):
    actions = jax.random.uniform(key, (20, 8), minval=-1, maxval=1)

    def step(state, action):
      state = env.step(state, action)
      return state, (state, action)

    return jax.lax.scan(step, env.reset(key), actions)[1]

  with brax_loading.quiet_brax():
    states, actions = run(jax.random.key(0))
  assert abs(states.metrics["x_velocity"]).max() > 0.5
  expected = 1 - 0.5 * (np.asarray(actions, np.float64) ** 2).sum(-1)
  np.testing.assert_allclose(states.reward, expected, atol=1e-5)
  position = states.info["state_descriptor"]
  np.testing.assert_array_equal(position[:, 0], states.metrics["x_position"])
  np.testing.assert_array_equal(position[:, 1], states.metrics["y_position"])
  assert abs(position).max() > 0.05


@pytest.mark.slow
def test_feet_read_0_in_the_air_and_1_at_rest():
  """A cheetah falls from 1 m, and then stands still."""
  env = environments.create("halfcheetah_uni", backend="spring").unwrapped

  @_jit
  def run(key):
    state = env.reset(key)
    state = state.replace(pipeline_state=env.pipeline_init(
      env.sys.init_q.at[1].set(1), jnp.zeros(env.sys.qd_size())
    ))  # fmt: skip

    def step(state, _):
      state = env.step(state, jnp.zeros(6))
      return state, state.info["state_descriptor"]

    return jax.lax.scan(step, state, length=80)[1]

  with brax_loading.quiet_brax():
    touches = run(jax.random.key(3))
  assert not touches[:3].any()
  assert touches[-5:].all()


def _rotate(quaternion, vector):
  """Rotates vectors [..., 3] by quaternions [..., 4]."""
  w, u = quaternion[..., :1], quaternion[..., 1:]
  return vector + 2 * np.cross(u, np.cross(u, vector) + w * vector)


def _geom_points(model, x, name):
  """The centres [..., 2, 3] of a geom's two ends, in float64, and its radius.

  A capsule's axis is its z axis; a sphere is one of length 0.
  """
  geom = model.geom(name)
  pos, rot = (
    np.asarray(a, np.float64)[..., None, geom.bodyid[0] - 1, :]
    for a in (x.pos, x.rot)
  )
  half = geom.size[1] if geom.type[0] == 3 else 0
  axis = np.array([[0, 0, -1], [0, 0, 1.0]])
  ends = geom.pos + _rotate(geom.quat, half * axis)
  return pos + _rotate(rot, ends), geom.size[0]


def _heights(model, x, geoms):
  """How high each geom is above the ground, [..., D]."""
  points = [_geom_points(model, x, name) for name in geoms]
  return np.stack(
    [ends[..., 2].min(-1) - radius for ends, radius in points], -1
  )


# Spheres and capsules, fixed and jointed; the cheetah and the hopper have two
# capsules and one.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant", "humanoid", "walker2d"])
def test_each_foot_is_told_apart_and_is_where_its_name_says(name):
  from brax import kinematics

  brax_env = _robot(name)
  sys, feet = brax_env.sys, brax_tasks.UNI_ROBOTS[name].feet
  env = brax_tasks.uni(brax_env, name)
  assert env.descriptor.names == tuple(feet)
  touching = brax_tasks.ground_contact(sys, list(feet.values()))

  @_jit
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
  for foot, geom in feet.items():
    points, _ = _geom_points(sys.mj_model, x, geom)
    place = points[0].mean(0) - x.pos[0, 0]
    for word, side in (
      ("front", place[0]), ("back", -place[0]),
      ("left", place[1]), ("right", -place[1]),
    ):  # fmt: skip
      # The walker is flat: both of its feet are in the middle.
      assert word not in foot or name == "walker2d" or side > 0.02, foot
  # Each pose is moved to where its lowest foot is 0.5 or 1.5 mm above 0.
  lowest = _heights(sys.mj_model, x, feet.values()).min(-1)
  up = 2 if sys.link_types[0] == "f" else 1
  offset = np.where(np.arange(50) % 2, 1.5e-3, 0.5e-3)
  x, touches = pose(q.at[:, up].add(offset - lowest))
  height = _heights(sys.mj_model, x, feet.values())
  np.testing.assert_array_equal(touches, height < 1e-3)
  np.testing.assert_array_equal(touches.any(1), offset < 1e-3)
  assert np.unique(touches, axis=1).shape[1] == len(feet)
  assert touches.any(0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend", "descriptor"), [
  *(
    (
      "hopper_uni",
      backend,
      environments.Descriptor(
        ("foot",), (0.0,), (1.0,), environments.mean_descriptor, 0.9
      ),
    )
    for backend in ("positional", "mjx")
  ),
  (
    "humanoid_omni",
    "spring",
    environments.Descriptor(("x", "y"), (-30.0, -30.0), (30.0, 30.0)),
  ),
])
def test_every_backend_fits_the_interface(name, backend, descriptor):
  env = environments.create(
    name, backend=backend, episode_length=7, healthy_reward=2.0
  )
  assert env.unwrapped.backend == backend
  assert env.unwrapped._healthy_reward == 2
  assert (env.episode_length, env.descriptor) == (7, descriptor)


@pytest.mark.slow
def test_contacts_are_not_looked_for_in_every_substep():
  def substeps(env):
    with brax_loading.quiet_brax():
      state = jax.eval_shape(env.reset, jax.random.key(0))
      scans = jaxprs.named(env.step, "scan", state, jnp.zeros(env.action_size))
    return max(len(scan.params["jaxpr"].eqns) for scan in scans)

  env = _robot("hopper")
  assert substeps(brax_tasks.uni(env, "hopper")) == substeps(env)
