"""Tests of each factor beside C MuJoCo with the same fields changed."""

import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from brax.io import mjcf

from qdrl_haiku.environments import randomizing, robots

# A table on four springs, which falls for 0.3 s, with an arm that swings above.
_LEG = """<body name="leg_{0}" pos="{1} {2} -.1">
<joint name="leg_{0}" type="slide" axis="0 0 1" stiffness="300" damping="30"
  armature=".2" {3}/>
<geom name="foot_{0}" size=".05" mass=".3"/></body>"""
_TABLE = """<mujoco><option timestep="0.004"/><worldbody>
<geom name="floor" type="plane" size="5 5 1"/>
<body name="table" pos="0 0 .6"><freejoint/>
  <inertial pos=".01 .02 .03" mass="3" diaginertia=".04 .05 .06"/>
  <geom type="box" size=".2 .2 .02" contype="0" conaffinity="0"/>{legs}
  <body name="arm" pos="0 0 .1">
    <joint name="swing" axis="0 1 0" stiffness="2" damping=".05" armature=".01"
      {friction}/>
    <geom type="capsule" size=".03" fromto="0 0 0 .1 0 .2" mass=".5"
      contype="0" conaffinity="0"/></body></body>
</worldbody><actuator>
<position name="front" joint="leg_0" kp="100" kv="5" gear="1.5"/>
<position name="back" joint="leg_2" kp="100"/>
<velocity name="swing" joint="swing" kv=".2"/>
<motor name="other" joint="leg_1" gear="2"/></actuator></mujoco>"""
_CONTROL = np.array([-0.02, 0.01, 0.5, 1.0])
# What MJX doesn't read; the last one muscles do.
_UNREAD = {"dof_M0", "geom_aabb", "actuator_length0", "actuator_acc0"}
_FLIGHT, _STEPS = 65, 1250


def _table(friction=""):
  legs = "".join(
    _LEG.format(i, x, y, friction) for i, (x, y) in enumerate(
      [(0.2, 0.2), (0.2, -0.2), (-0.2, 0.2), (-0.2, -0.2)]))
  return _TABLE.format(legs=legs, friction=friction)


def _times(*fields, where=np.s_[:]):
  """Multiplies fields of a model."""

  def change(model, value):
    for field in fields:
      getattr(model, field)[where] *= value

  return change


def _centre(axis):
  def change(model, value):
    model.body_ipos[1, axis] += value

  return change


def _slope(axis):
  def change(model, value):
    angle = np.radians(value)
    model.opt.gravity[[axis, 2]] = 9.81 * np.array(
      [-np.sin(angle), -np.cos(angle)])

  return change


def _kp(model, value):
  model.actuator_gainprm[:2, 0] *= value
  model.actuator_biasprm[:2, 1] *= value


def _kd(model, value):
  model.actuator_gainprm[2, 0] *= value
  model.actuator_biasprm[:, 2] *= value


_MASS = ("body_mass", "body_inertia")
_ROWS = (
  ("mass", 1.0, _times(*_MASS)),  # Nothing changes.
  ("mass", 3.0, _times(*_MASS)), ("mass", 10.0, _times(*_MASS)),
  ("mass/table", 10.0, _times(*_MASS, where=1)),
  ("mass/leg*", 5.0, _times(*_MASS, where=np.s_[2:6])),
  ("armature", 4.0, _times("dof_armature")),
  ("armature/swing", 4.0, _times("dof_armature", where=10)),
  ("com_x/table", 0.03, _centre(0)), ("com_y/table", -0.05, _centre(1)),
  ("com_z/table", 0.1, _centre(2)),
  ("damping", 2.0, _times("dof_damping")),
  ("friction", 0.5, _times("geom_friction")),
  ("stiffness", 2.0, _times("jnt_stiffness")),
  ("gear", 2.0, _times("actuator_gear")),
  ("actuator_gain", 2.0, _times("actuator_gainprm", "actuator_biasprm")),
  ("kp", 2.0, _kp), ("kd", 3.0, _kd),
  ("geom_size/foot_*", 1.5, _times("geom_size", where=np.s_[2:6])),
  ("gravity", 0.5, lambda model, value: _slope(0)(model, 0) or
    model.opt.gravity.__imul__(value)),
  ("slope_x", 8.0, _slope(0)), ("slope_y", -5.0, _slope(1)),
  ("joint_friction", 2.0, _times("dof_frictionloss")))


@pytest.fixture(scope="module", params=["mjx", "generalized"])
def table(request, tmp_path_factory):
  """The robot, its factors, their rows, and their values by name, [R]."""
  path = tmp_path_factory.mktemp("table") / "table.xml"
  has_friction = request.param == "mjx"
  path.write_text(_table('frictionloss="0.5"' if has_friction else ""))
  rows = _ROWS if has_friction else _ROWS[:-1]
  robot = robots.from_mjcf(str(path), "stand", backend=request.param)
  names = dict.fromkeys(name for name, _, _ in rows)
  made = randomizing.randomized(
    robot, [f"{name}:uniform:0.1:20" for name in names])._factors
  neutral = {
    name: float(not name.startswith(("com", "slope"))) for name in names}
  return robot, made, rows, {
    name: np.array([
      value if row == name else neutral[name] for row, value, _ in rows])
    for name in names}


def _in_mujoco(robot, row):
  """MuJoCo's model with a row's fields changed, and what follows from them."""
  model = copy.copy(robot.sys.mj_model)
  row[2](model, row[1])
  mujoco.mj_setConst(model, mujoco.MjData(model))
  return model


def test_what_is_simulated_is_as_if_read_from_the_changed_model(table):
  robot, _, rows, _ = table
  for row in rows:
    alone = randomizing.randomized(
      robot, [f"{row[0]}:fixed:{row[1]}"])._factors
    drawn = {row[0]: jnp.float32(row[1])}
    ours = alone.change(robot, drawn, alone.derive(drawn)).sys
    theirs = mjcf.load_model(_in_mujoco(robot, row))
    leaves = jax.tree.leaves_with_path(ours)
    differ = {
      jax.tree_util.keystr(path, simple=True, separator=".")
      for (path, x), y in zip(leaves, jax.tree.leaves(theirs), strict=True)
      if not np.allclose(x, y, rtol=1e-5, atol=1e-6)}
    assert differ <= _UNREAD, row[:2]


@pytest.mark.slow
def test_robots_fly_and_rest_as_in_mujoco(table):
  robot, made, rows, values = table

  @jax.jit
  @jax.vmap
  def fall(values):
    sys = made.change(robot, values, made.derive(values)).sys
    start = robot._pipeline.init(
      sys, jnp.asarray(sys.mj_model.qpos0), jnp.zeros(sys.mj_model.nv))
    return jax.lax.scan(
      lambda x, _: (robot._pipeline.step(sys, x, _CONTROL), x.q), start,
      length=_STEPS + 1)[1]

  with jax.enable_x64(True):
    q = fall({name: jnp.array(x) for name, x in values.items()})
  flown, rested = q[:, _FLIGHT], q[:, _STEPS]
  flight, rest = [], []
  for row, there, last in zip(rows, flown, rested, strict=True):
    model = _in_mujoco(robot, row)
    data = mujoco.MjData(model)
    data.ctrl = _CONTROL
    for _ in range(_FLIGHT):
      mujoco.mj_step(model, data)
    assert not data.ncon
    flight.append(np.abs(there - data.qpos).max())
    mujoco.mj_step(model, data, _STEPS - _FLIGHT)
    rest.append(abs(last[2] - data.qpos[2]))
    print(row[:2], flight[-1], last[2], data.qpos[2], np.abs(data.qvel).max())
  differs = np.abs(flown - flown[0]).max(1) + np.abs(rested - rested[0]).max(1)
  np.testing.assert_array_less(1e-4, differs[1:])
  # brax's own turns by other formulas, and lets what is heavy sink more.
  is_mjx = robot.backend == "mjx"
  np.testing.assert_array_less(flight, 1e-5 if is_mjx else 2e-4)
  np.testing.assert_array_less(rest, 1e-3 if is_mjx else 1.5e-3)
