"""Tests of robots of files: what a task is told, and what is refused."""

import json
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import robots
from qdrl_haiku.environments.robots import Task

_ARM = str(pathlib.Path(__file__).with_name("arm.xml"))
_XML = pathlib.Path(_ARM).read_text()


def _task(**changes):
  """Makes a task of nothing."""

  def make(model):
    del model
    return Task(lambda before, after, action: jnp.sum(action))._replace(
      **changes)

  return make


def _write(tmp_path, *changes):
  """Writes the arm with some of its text changed."""
  text = _XML
  for old, new in changes:
    assert old in text
    text = text.replace(old, new)
  path = tmp_path / "robot.xml"
  path.write_text(text)
  return str(path)


def _ask(path, backend, q, qd, question):
  """Answers a question about a robot's state; one program is compiled."""
  robot = robots.from_mjcf(path, _task(), backend=backend)

  def answer(q, qd):
    physics = robot._pipeline.init(robot.sys, q, qd)
    return question(
      robots.RobotState(robot.model, physics, jnp.zeros(0), robot.dt))

  return jax.jit(answer)(*jnp.array([q, qd], jnp.float32))


@pytest.fixture(scope="module")
def moving():
  """What is said of the arm in each physics, and MuJoCo's state of the same."""
  q, qd = np.array([0.3, -0.7]), np.array([1.0, 2.0])

  def told(state):
    said = [
      state.position("forearm"), state.position("tip"), state.position("lower"),
      state.rotation("forearm"), state.angular_velocity("forearm"),
      state.velocity("forearm"), state.upright("forearm"), state.joint("elbow"),
      state.joint_velocity("elbow"), state.position("target"),
      state.velocity("world")]
    if state.model.backend == "mjx":
      return said, state.sensor("elbow_angle")
    with pytest.raises(ValueError, match="give backend=mjx"):
      state.sensor("elbow_angle")
    return said, state.touches("lower")

  found = {
    backend: _ask(_ARM, backend, q, qd, told)
    for backend in ("generalized", "mjx")}
  model = mujoco.MjModel.from_xml_path(_ARM)
  data = mujoco.MjData(model)
  data.qpos[:], data.qvel[:] = q, qd
  mujoco.mj_forward(model, data)
  return found, model, data


@pytest.mark.parametrize("backend", ["generalized", "mjx"])
def test_tasks_are_told_what_mujoco_says(moving, backend):
  found, model, data = moving
  velocity = np.zeros(6)
  mujoco.mj_objectVelocity(
    model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body("forearm").id,
    velocity, 0)
  expected = [
    data.body("forearm").xpos, data.site("tip").xpos, data.geom("lower").xpos,
    data.body("forearm").xquat, velocity[:3], velocity[3:],
    data.body("forearm").xmat[8], -0.7, 2.0, [1, 2, 3], [0, 0, 0]]
  for x, y in zip(found[backend][0], expected, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)
  if backend == "mjx":  # Sensors are read in MJX alone.
    sensed = data.sensor("elbow_angle").data
    np.testing.assert_allclose(found["mjx"][1], sensed, atol=1e-6)


def test_touching_is_told_of_pairs_and_of_the_world(moving, tmp_path):
  assert not moving[0]["generalized"][1]
  path = _write(tmp_path, ('pos="0 0 1"', 'pos="0 0 0.3"'))
  # Bent down, the forearm reaches 0.05 m below the floor.
  touches = _ask(path, "generalized", [0.0, 1.0], [0.0, 0.0], lambda state: [
    state.touches("lower", *other) for other in ([], ["floor"], ["upper"])])
  assert [bool(x) for x in touches] == [True, True, False]


@pytest.mark.parametrize("axes", ["xz", "zx", "z"])
def test_a_robot_is_somewhere_if_any_of_its_roots_joints_moves_it(
  tmp_path, axes
):
  joints = "".join(
    f'<joint name="root{x}" type="slide" axis="{int(x == "x")} 0 '
    f'{int(x == "z")}"/>' for x in axes)
  path = tmp_path / "robot.xml"
  path.write_text(
    f'<mujoco><worldbody><body name="trunk">{joints}'
    '<geom size="0.1" mass="1"/></body></worldbody><actuator>'
    f'<motor joint="root{axes[0]}"/></actuator></mujoco>')
  env = environments.create(str(path), task="run", backend="generalized")
  assert (environments.robot_position(env) is None) == (axes == "z")


_WALL = (
  "<worldbody>", "<worldbody><body name='wall'><geom size='1'/></body>"
  "</worldbody><contact><exclude body1='wall' body2='base'/></contact>"
  "<worldbody>")


def test_what_moves_is_the_robot_and_not_a_wall_before_it(tmp_path):
  path = _write(
    tmp_path, _WALL,
    ('<joint name="shoulder"', '<joint type="slide" axis="1 0 0"/>'
      '<joint name="shoulder"'))
  env = environments.create(path, task="stand")
  # Without the place: two positions, and three velocities.
  assert env.observation_size == 5
  links = types.SimpleNamespace(pos=jnp.arange(9.0).reshape(3, 3), rot=None)
  physics = types.SimpleNamespace(q=None, x=links)
  state = types.SimpleNamespace(
    pipeline_state=types.SimpleNamespace(pipeline_state=physics))
  position = environments.robot_position(env)(state)
  np.testing.assert_array_equal(position, [3, 4])


def test_nothing_touches_where_nothing_can(tmp_path):
  floor = '<geom name="floor" type="plane" size="5 5 1"/>'
  path = _write(tmp_path, (floor, ""))
  touches = _ask(
    path, "generalized", [0.0, 1.0], [0.0, 0.0],
    lambda state: state.touches("lower"))
  assert not touches


@pytest.mark.parametrize("task", ["run", "stand", "reach"])
def test_bodies_need_no_names(tmp_path, task):
  path = _write(tmp_path, ('name="base" ', ""), ('name="forearm" ', ""))
  robot = robots.from_mjcf(path, task, backend="generalized")
  state = jax.eval_shape(robot.reset, jax.random.key(0))
  assert jax.eval_shape(robot.step, state, jnp.zeros(2)).reward.shape == ()


@pytest.mark.parametrize("limited", ["", 'ctrllimited="false" '])
def test_actions_are_scaled_to_the_actuators_ranges(tmp_path, limited):
  path = _write(tmp_path, ('ctrlrange="', f'{limited}ctrlrange="'))
  robot = robots.from_mjcf(path, _task(), backend="generalized")
  np.testing.assert_allclose(robot._low, [-2, -1])
  np.testing.assert_allclose(robot._high, [6, 1])
  # Where a range doesn't limit, what leaves it isn't clipped either.
  assert np.isfinite(robot.sys.actuator.ctrl_range[0]).all() != bool(limited)


def test_mjx_tells_of_where_a_robot_is_after_its_last_time_step(tmp_path):
  # What doesn't collide is compiled soon.
  path = _write(tmp_path, (
    "<worldbody>", "<default><geom contype='0' conaffinity='0'/></default>"
    "<worldbody>"), (
    "<sensor>", "<tendon><spatial name='rope'><site site='target'/><site "
    "site='tip'/></spatial></tendon><sensor><tendonvel tendon='rope'/>"
    "<framepos objtype='site' objname='tip'/><subtreelinvel body='base'/>"))
  told = robots.from_mjcf(path, _task(
    observe=lambda state: jnp.concatenate([
      state.position("forearm"), state.position("tip"),
      state.velocity("forearm"), state.angular_velocity("forearm"),
      state.upright("forearm")[None]])), backend="mjx")
  state = jax.jit(lambda key: told.step(
    told.reset(key), jnp.array([0.3, -0.7])))(jax.random.key(0))
  model = mujoco.MjModel.from_xml_path(path)
  data = mujoco.MjData(model)
  data.qpos[:] = state.pipeline_state.q
  data.qvel[:] = state.pipeline_state.qd
  mujoco.mj_forward(model, data)
  velocity = np.zeros(6)
  body = model.body("forearm").id
  mujoco.mj_objectVelocity(
    model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
  np.testing.assert_allclose(state.obs, np.concatenate([
    data.xpos[body], data.site("tip").xpos, velocity[3:], velocity[:3],
    data.xmat[body, 8:]]), atol=1e-5)
  np.testing.assert_allclose(
    state.pipeline_state.sensordata, data.sensordata, atol=1e-5)


@pytest.mark.parametrize(("seconds", "exact", "lasts"), [
  (0.05, 0.05, ""), (0.02, 0.02, ""),
  (0.034, 0.03, "0.03 s, 3 x 0.01 s, and not step_seconds=0.034"),
  (0.001, 0.01, "0.01 s, 1 x 0.01 s, and not step_seconds=0.001")])
def test_a_rounded_number_of_time_steps_is_said(seconds, exact, lasts):
  robot = robots.from_mjcf(
    _ARM, _task(step_seconds=seconds), backend="generalized")
  assert ("an action lasts" in robot.note) == bool(lasts)
  assert lasts in robot.note
  # What an export says.
  env = types.SimpleNamespace(unwrapped=robot, observation_spec=4)
  told = environments.policy_interface(env)
  assert told["step_seconds"] == exact
  number = told["physics"]["time_steps_per_action"]
  assert number * told["physics"]["time_step"] == pytest.approx(exact)


def _interface(path, task, backend, **settings):
  """What a policy sees and does, as JSON has it."""
  told = environments.policy_interface(environments.create(
    robots.from_mjcf(path, task, backend=backend), **settings))
  assert json.loads(json.dumps(told)) == told
  return told, [x["name"] for x in told["observation"]]


def test_what_a_policy_sees_and_does_is_told():
  told, seen = _interface(
    str(pathlib.Path(_ARM).with_name("tripod.xml")), "run", "positional")
  joints = [f"{x}_{i}" for i in range(3) for x in ("hip", "knee")]
  assert seen == [
    "torso position z", *(f"torso quaternion {x}" for x in "wxyz"),
    *(f"{x} angle" for x in joints), *(f"torso velocity {x}" for x in "xyz"),
    *(f"torso angular velocity {x}" for x in "xyz"),
    *(f"{x} velocity" for x in joints)]
  assert told["observation"][0] == {
    "name": "torso position z", "unit": "m", "frame": "world",
    "field": "qpos", "place": 2}
  assert told["observation"][14]["frame"] == "body"
  assert told["action"][1] == {
    "name": "knee_0", "low": -1.0, "high": 1.0, "gear": 15.0}
  assert told["physics"]["leaves_out"] == ["armature", "damping"]
  assert told["reset"]["qpos"] == [0, 0, 0.45, 1, *[0] * 9]
  assert told["reset"]["qpos_noise"] == [0] * 7 + [0.05] * 6
  (warning,) = told["warnings"]
  assert "had no damping and no armature" in warning
  assert "train with --backend=mjx" in warning


def test_of_observations_of_ones_own_the_task_tells_what_it_can():
  _, seen = _interface(_ARM, "reach", "generalized", hide=("velocity",))
  assert seen[:3] == ["shoulder angle", "elbow angle", "goal x"]
  assert seen[-1] == "from forearm to goal z" and len(seen) == 8
  own = {"observe": lambda state: state.q}
  told, seen = _interface(_ARM, _task(**own), "generalized")
  assert seen == ["observed 0", "observed 1"]
  assert "no armature" in told["warnings"][0]
  assert told["warnings"][0].endswith("add them to the file.")
  named = [environments.Observed("first angle", "rad", "joint")]
  _, seen = _interface(
    _ARM, _task(**own, observed=2 * named), "generalized")
  assert seen == 2 * ["first angle"]
  with pytest.raises(ValueError, match="observes 2 numbers .* names 1; name"):
    robots.from_mjcf(_ARM, _task(**own, observed=named))


_URDF = """<robot name="arm"><link name="base"/><link name="upper">
<inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
<collision><geometry><sphere radius="0.1"/></geometry></collision></link>
<joint name="shoulder" type="revolute"><axis xyz="0 1 0"/>
<parent link="base"/><child link="upper"/>
<limit lower="-1" upper="1" effort="7" velocity="3"/></joint></robot>"""


def test_each_joint_of_a_urdf_has_a_motor_of_its_effort(tmp_path):
  path = tmp_path / "robot.urdf"
  path.write_text(_URDF)
  robot = robots.from_mjcf(str(path), _task(), backend="generalized")
  assert robot.action_size == 1
  assert robot.model.mj_model.actuator_gear[0, 0] == 7
  path.write_text(_URDF.replace("revolute", "floating"))
  with pytest.raises(ValueError, match="no actuator"):
    robots.from_mjcf(str(path), _task())
  path.write_text(re.sub("<collision>.*</collision>", "", _URDF))
  with pytest.raises(ValueError, match="no shape that touches anything"):
    robots.from_mjcf(str(path), _task())


def test_an_episode_begins_in_the_first_keyframe(tmp_path):
  path = _write(
    tmp_path,
    ("<sensor>", '<keyframe><key qpos="0.5 0.25" qvel="3 -2" act="0.7" '
      'mpos="7 8 9" mquat="0 1 0 0"/></keyframe><sensor>'),
    ("</worldbody>", '<body name="hand" mocap="true"><geom size="0.1" '
      'contype="0" conaffinity="0"/></body></worldbody>'),
    ('<motor name="elbow" joint="elbow" gear="5"/>',
      '<intvelocity joint="elbow" actrange="-1 1"/>'))
  robot = robots.from_mjcf(path, _task(initial_noise=0.0))
  state = jax.jit(robot.reset)(jax.random.key(0))
  np.testing.assert_allclose(state.obs, [0.5, 0.25, 3, -2], atol=1e-6)
  physics = state.pipeline_state
  np.testing.assert_allclose(physics.act, [0.7])
  np.testing.assert_allclose(physics.x.pos[-1], [7, 8, 9])
  np.testing.assert_allclose(physics.x.rot[-1], [0, 1, 0, 0])


def test_gravity_may_be_switched_off_in_any_physics(tmp_path):
  path = _write(
    tmp_path, ("<option", "<option><flag gravity='disable'/></option><option"))
  assert not robots.model.read_robot(path).sys.gravity.any()


@pytest.mark.parametrize("change", [
  ('<joint name="elbow"', '<joint axis="0 0 1" pos="0 0 1"/>'
    '<joint name="elbow" ref="30"'),
  ('<site name="tip"', '<body pos="0.4 0 0"><joint type="ball"/>'
    '<geom size="0.1"/></body><site name="tip"')])
def test_goals_and_heights_are_those_of_mujoco_with_any_joints(
  tmp_path, change
):
  model = robots.model.read_robot(_write(tmp_path, change))
  data = mujoco.MjData(model.mj_model)
  low, high = robots.tasks._ranges(model)
  key = jax.random.key(0)
  data.qpos[:] = jax.random.uniform(key, low.shape, minval=low, maxval=high)
  mujoco.mj_kinematics(model.mj_model, data)
  goal = robots.reach(model).draw_goal(key)
  np.testing.assert_allclose(goal, data.xpos[-1], atol=1e-5)
  assert robots.tasks._initial_height(model) == 1


@pytest.mark.parametrize(("change", "size"), [
  # Of a robot that slides along x and z, x is left out.
  (('<joint name="shoulder"', '<joint name="x" type="slide" axis="1 0 0"/>'
    '<joint name="z" type="slide" axis="0 0 1"/><joint name="shoulder"'),
   3 + 4),
  # Of a ball beside it nothing is.
  (("</worldbody>", "<body><freejoint/><geom size='0.1'/></body></worldbody>"),
   2 + 7 + 2 + 6)])
def test_the_default_observation_leaves_out_where_a_robot_is(
  tmp_path, change, size
):
  robot = robots.from_mjcf(
    _write(tmp_path, change), _task(), backend="generalized")
  assert jax.eval_shape(robot.reset, jax.random.key(0)).obs.shape == (size,)


_TENDON = (
  "<sensor>",
  "<tendon><fixed><joint joint='elbow' coef='1'/></fixed></tendon><sensor>")
_ELBOW = '<joint name="elbow"'


@pytest.mark.parametrize(("change", "backend", "words"), [
  (("<sensor>", "<sensor>"),
   "positional", "less exact; it leaves out joints' damping, which"),
  ((_ELBOW, f'{_ELBOW} actuatorfrcrange="-1 1"'),
   "mjx", "limits of joints' forces (line 10)"),
  ((_ELBOW, f'{_ELBOW} stiffness="1" springref="9"'),
   "mjx", "springs that rest elsewhere (line 10)"),
  (("</worldbody>", "<body><freejoint name='f'/><geom size='1'/></body>"
    "</worldbody><actuator><motor joint='f' gear='0 0 1 0 0 0'/></actuator>"),
   "mjx", "actuators of free joints"),
  (("<worldbody>", "<custom><numeric name='constraint_stiffness' data='4000'/>"
    "</custom><worldbody>"), "spring", "constraint_stiffness"),
  (_TENDON, "mjx", "tendons (line 20)"),
  ((_ELBOW, f"{'<joint/>' * 3}{_ELBOW}"), "mjx", "more than three joints"),
  (_WALL, "mjx", "bodies without joints"),
  (("<option", "<option integrator='implicitfast'"), "mjx", "Only euler")])
def test_the_physics_follows_from_the_file(tmp_path, change, backend, words):
  model = robots.model.read_robot(_write(tmp_path, change))
  assert model.backend == backend
  assert words in model.reason
  assert model.root == "base"


@pytest.mark.parametrize(
  ("changes", "kwargs", "words"),
  [
    ([("<worldbody>", "<worldbodi>")], {}, "MuJoCo can't read it: XML"),
    ([('type="plane"', 'tipe="plane"')], {}, "line 4"),
    ([("<motor", "<!--"), ('gear="10"/>', "-->"), ('gear="5"/>', "-->")], {},
      "no actuator, so nothing can be learned; add one, such as <actuator>"
      "<motor joint='shoulder'/>"),
    ([("<motor", "<!--"), ('gear="10"/>', "-->"), ('gear="5"/>', "-->"),
      ('name="shoulder" axis', "axis")], {}, "<motor joint='elbow'/>"),
    ([_TENDON], {"backend": "spring"}, "tendons (line 20), which spring can't"),
    ([], {"backend": "spirng"}, "did you mean 'spring'?"),
    ([], {"task": "rnu"}, "did you mean 'run'?"),
    ([], {"task": lambda model: 3}, "returns int"),
    ([], {"task": _task(step_seconds=0.0)}, "step_seconds=0.0"),
    ([], {"task": _task(describe=lambda state: state.q)}, "give both"),
    ([], {"task": _task(observe=lambda state: state.joint("elbo"))},
      "no joint 'elbo', which the task asks for; did you mean 'elbow'?"),
    ([], {"task": _task(observe=lambda state: state.position("hand"))},
      "no body or site or geom 'hand'"),
    ([('timestep="0.01"', 'timestep="0"')], {}, "no time step (line 2); give"),
    ([], {"task": lambda: _task()}, "takes (); let it take (model)"),
    ([], {"task": _task(reward=lambda state, action: 0.0)},
      "reward takes (state, action); let it take (before, after, action)"),
    ([], {"task": _task(
      reward=lambda before, after, action: 0.0,
      tunables={"w": environments.Hyperparameter(1.0, "a weight")})},
      "let it take (before, after, action, tunables)"),
    ([], {"task": "tasks"}, "package.module:function")])
def test_broken_files_and_tasks_are_refused(tmp_path, changes, kwargs, words):
  path = _write(tmp_path, *changes)
  with pytest.raises(ValueError) as error:
    robots.from_mjcf(path, **{"task": _task(), **kwargs})
  assert words in str(error.value)


@pytest.mark.parametrize(("changes", "words"), [
  ({"reward": lambda before, after, action: action}, "reward [] -> [2]"),
  ({"describe": lambda state: state.q,
    "descriptor": environments.Descriptor(("a",), (0.0,), (1.0,))},
   "shape (2,) instead of (1,)")])
def test_what_a_task_returns_is_checked(changes, words):
  robot = robots.from_mjcf(_ARM, _task(**changes), backend="generalized")
  with pytest.raises(ValueError) as error:
    environments.create(robot)
  assert words in str(error.value)


def test_a_missing_file_is_refused():
  with pytest.raises(ValueError, match=r"'robot.xml' is no file"):
    environments.create("robot.xml")


def test_physics_that_explodes_names_the_time_step(tmp_path):
  path = _write(
    tmp_path,
    ('timestep="0.01"', 'timestep="0.5"'), ('gear="10"', 'gear="1e30"'),
    # What doesn't collide is compiled soon.
    ("<worldbody>", "<default><geom contype='0' conaffinity='0'/></default>"
      "<worldbody>"))
  with pytest.raises(ValueError, match=r"try <option timestep='0.25'/>"):
    environments.create(path, backend="spring")
