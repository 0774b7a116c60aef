import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import ant_trap, brax_loading

# Where each ant starts, and the points that it is pushed to in turn. All of
# them end where they would be 3 m or more behind a wall, were it not there.
WAYS = {
  "ahead": [(0, 0), (15, 0)],
  "into a corner": [(0, 2), (15, 2)],
  "sideways": [(9.5, 0), (9.5, -6)],
  "from behind": [(16, 0), (9, 0)],
  "around": [(0, 0), (3, 5.5), (14, 5.5), (16, 0)],
}
SPEED = 2.5
# Optimising what then runs for a moment takes longer than it saves.
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def paths():
  """Pushes ants about; returns their states by way, [T, ...]."""
  env = environments.create("ant_trap").unwrapped

  def push(state, target):
    """Gives all parts of an ant the velocity towards a target."""
    pipeline_state = state.pipeline_state
    way = target - pipeline_state.x.pos[0, :2]
    velocity = SPEED * way / jnp.linalg.norm(way)
    still = jnp.zeros_like(pipeline_state.xd_i.vel)
    motion = pipeline_state.xd_i.replace(
      vel=still.at[:, :2].set(velocity), ang=still
    )
    return state.replace(pipeline_state=pipeline_state.replace(xd_i=motion))

  @functools.partial(jax.jit, compiler_options=FAST_TO_COMPILE)
  @jax.vmap
  def run(way):
    state = env.reset(jax.random.key(0))
    start = env.sys.init_q.at[:2].set(way[0])
    state = state.replace(pipeline_state=env.pipeline_init(
      start, jnp.zeros(env.sys.qd_size())
    ))

    def step(carry, _):
      state, index = carry
      to_go = jnp.linalg.norm(way[index] - state.pipeline_state.x.pos[0, :2])
      index = jnp.where(to_go < 0.5, index + 1, index).clip(max=len(way) - 1)
      state = env.step(push(state, way[index]), jnp.zeros(8))
      return (state, index), (state, index)

    return jax.lax.scan(step, (state, 1), length=220)[1]

  longest = max(map(len, WAYS.values()))
  ways = [way + [way[-1]] * (longest - len(way)) for way in WAYS.values()]
  with brax_loading.quiet_brax():
    states, _ = run(jnp.array(ways, jnp.float32))
  return {
    name: jax.tree.map(lambda x, i=i: np.asarray(x[i]), states)
    for i, name in enumerate(WAYS)
  }


def distance_to_walls(position):
  """How far positions [T, 3] are from the axis of the nearest wall, [T]."""
  distances = []
  for ends in ant_trap.WALLS.values():
    start, end = (np.array([*end, ant_trap.WALL_RADIUS]) for end in ends)
    along = (position - start) @ (end - start) / ((end - start) ** 2).sum()
    nearest = start + along.clip(0, 1)[:, None] * (end - start)
    distances.append(np.linalg.norm(position - nearest, axis=-1))
  return np.min(distances, 0)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_ant_gets_into_a_wall(paths, way):
  torso = paths[way].pipeline_state.x.pos[:, 0].astype(np.float64)
  # The torso has a radius of 0.25 m.
  assert distance_to_walls(torso).min() > ant_trap.WALL_RADIUS + 0.25 - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("way, axis, side", [
  ("ahead", 0, (10.5, 11.5)),
  ("into a corner", 0, (10.5, 11.5)),
  ("sideways", 1, (-2.5, -1.5)),
  ("from behind", 0, (12.5, 13.5)),
])
def test_an_ant_in_front_of_a_wall_is_stopped(paths, way, axis, side):
  state = paths[way]
  assert not state.done.any()
  assert side[0] < state.info["state_descriptor"][-1, axis] < side[1]


@pytest.mark.slow
def test_an_ant_can_walk_around_the_trap(paths):
  state = paths["around"]
  assert not state.done.any()
  np.testing.assert_allclose(
    state.info["state_descriptor"][-1], (16, 0), atol=0.6
  )


@pytest.mark.slow
def test_going_forwards_is_rewarded(paths):
  x = paths["ahead"].info["state_descriptor"][:, 0]
  velocity = np.diff(x) / 0.05
  np.testing.assert_allclose(
    paths["ahead"].reward[1:], 1 + velocity, atol=1e-3
  )
  assert velocity[:60].mean() > 1.5


@pytest.mark.slow
def test_the_ant_sees_where_it_is_in_units_of_the_bounds(paths):
  state = paths["around"]
  position = state.info["state_descriptor"].astype(np.float64)
  np.testing.assert_allclose(
    state.obs[:, :2], (position - [15, 0]) / [15, 8], atol=1e-6
  )
  assert state.obs.shape[-1] == 29


@pytest.mark.parametrize("backend", ["positional", "mjx"])
def test_the_settings_of_brax_for_the_backend_are_kept(backend):
  with brax_loading.quiet_brax():
    brax_env = brax_loading.brax_class("ant")(backend=backend)
    plain, geoms = brax_env.sys, brax_env.sys.mj_model.ngeom
    trapped = ant_trap.with_trap(brax_env).sys
  assert brax_env.sys is plain
  assert trapped.mj_model.ngeom == geoms + len(ant_trap.WALLS)
  for before, after in (
    (plain.opt, trapped.opt), (plain.actuator, trapped.actuator),
    (plain.link, trapped.link), (plain.init_q, trapped.init_q),
  ):
    jax.tree.map(np.testing.assert_array_equal, before, after)
