"""Tests of Gymnasium's robots on MJX, compared with Gymnasium's own."""

import inspect
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, specs
from qdrl_haiku.environments import randomizing
from qdrl_haiku.environments.suites import (
  brax_loading,
  brax_tasks,
  gym_environment,
  gym_tasks,
)

gymnasium = pytest.importorskip(
  "gymnasium", reason="Gymnasium is not installed (the extra [gymnasium])")
pytestmark = pytest.mark.usefixtures("gymnasium_shows_nothing")
_TASKS = gym_tasks.TASKS
# What may be given, and isn't its default.
_CHANGED = {
  "Ant-v5": {
    "main_body": "aux_1", "include_cfrc_ext_in_observation": False,
    "exclude_current_positions_from_observation": False,
    "contact_force_range": (-2.0, 3.0)},
  "Hopper-v5": {
    "healthy_reward": 2.0, "healthy_z_range": (1.2, 3.0),
    "terminate_when_unhealthy": False},
  "Humanoid-v5": {
    "contact_cost_weight": 1e-2, "contact_cost_range": (0.0, 0.5),
    "include_cvel_in_observation": False},
  "Pusher-v5": {"reward_near_weight": 2.0, "reward_control_weight": 3.0}}


@pytest.fixture
def gymnasium_shows_nothing(monkeypatch):
  """Lets Gymnasium's robots be imported without what shows them."""
  monkeypatch.setitem(sys.modules, "imageio", types.ModuleType("imageio"))
  brax_loading.redirect_brax_mujoco_warnings()


def _make(name, **kwargs):
  env = gymnasium.make(name, **kwargs).unwrapped
  env.reset(seed=0)
  return env


def _state(data):
  """What MuJoCo knows, as if MJX had computed it."""
  names = (
    "xpos", "xipos", "cvel", "qfrc_actuator", "qfrc_constraint", "site_xpos")
  hidden = types.SimpleNamespace(
    cinert=data.cinert.copy(), cfrc_ext=data.cfrc_ext.copy())
  return types.SimpleNamespace(
    q=data.qpos.copy(), qd=data.qvel.copy(), _impl=hidden,
    **{x: getattr(data, x).copy() for x in names})


def _robot(env, task, **arguments):
  """What tasks ask of a `GymRobot`."""
  sys_ = types.SimpleNamespace(
    mj_model=env.model, body_mass=env.model.body_mass)
  return types.SimpleNamespace(
    task=task, dt=env.dt, sys=sys_, arguments={**task.arguments, **arguments})


def _controls(env, number):
  """Draws controls within their ranges, and at times at full power."""
  low, high = env.model.actuator_ctrlrange.T
  drawn = np.random.default_rng(1).uniform(-1.5, 1.5, (number, env.model.nu))
  return low + (np.clip(drawn, -1, 1) + 1) / 2 * (high - low)


@pytest.mark.parametrize("name, arguments", [
  *((name, {}) for name in _TASKS), *_CHANGED.items()])
def test_of_one_state_all_is_as_in_gymnasium(name, arguments):
  task, env = _TASKS[name], _make(name, **arguments)
  ours, ends = _robot(env, task, **arguments), set()
  for t, control in enumerate(_controls(env, 40)):
    if t == 35:  # Too high, or turned too far.
      q = env.data.qpos.copy()
      q[2:3] += 2
      env.set_state(q, env.data.qvel)
    before = _state(env.data)
    obs, reward, terminated, _, info = env.step(control)
    after = _state(env.data)
    parts = task.observe(ours, after)
    terms = task.reward(ours, before, after, control)
    np.testing.assert_allclose(
      np.concatenate([np.ravel(x) for x in parts.values()]), obs, rtol=1e-5,
      atol=1e-5)
    assert sum(map(float, terms.values())) == pytest.approx(reward, rel=1e-5)
    for term, value in terms.items():
      if term in info:  # One of HumanoidStandup's is not.
        assert float(value) == pytest.approx(info[term], rel=1e-5, abs=1e-5)
    assert task.is_over(ours, after) == terminated
    ends.add(terminated)
  names = getattr(env, "observation_structure", {})
  assert [x for x in parts if x in names] == [
    x for x in names if names[x] and x != "skipped_qpos"]
  if "healthy_z_range" in arguments:
    assert ends == {False}
  elif "healthy_z_range" in task.arguments or "Pendulum" in name:
    assert ends == {False, True}, "no episode ends"


@pytest.mark.parametrize("name", _TASKS)
def test_arguments_and_limits_are_gymnasiums(name):
  task, spec = _TASKS[name], gymnasium.spec(name)
  env_class = type(_make(name))
  known = {
    x: parameter.default
    for x, parameter in inspect.signature(env_class).parameters.items()
    # One isn't read there, the other is of films.
    if x not in ("kwargs", "default_camera_config", "uph_cost_weight")}
  assert known == {
    "xml_file": task.file, "frame_skip": task.frame_skip, **task.arguments}
  assert task.episode_length == spec.max_episode_steps


@pytest.mark.parametrize("name", _TASKS)
def test_episodes_begin_as_in_gymnasium(name):
  """The ranges and the spread of 300 starts agree."""
  task, env = _TASKS[name], _make(name)
  first = env.init_qpos.copy()
  begin = jax.jit(jax.vmap(lambda key: task.begin(
    _robot(env, task), key, jnp.asarray(first, jnp.float32), env.model.nv)))
  ours = np.concatenate(begin(jax.random.split(jax.random.key(0), 300)), axis=1)
  theirs = []
  for _ in range(300):
    env.reset()
    theirs.append(np.concatenate([env.data.qpos, env.data.qvel]))
  theirs = np.array(theirs)
  spread = theirs.std(axis=0)
  np.testing.assert_allclose(ours.std(axis=0), spread, rtol=0.35, atol=1e-6)
  moved = np.abs(ours.mean(axis=0) - theirs.mean(axis=0))
  assert (moved <= 0.4 * spread + 1e-6).all()


def _equal_steps(name, number, tolerance, **kwargs):
  """Steps in both from one state, in float64; returns the last states."""
  from mujoco.mjx._src import forward

  randomize, tunables = kwargs.pop("randomize", ()), kwargs.pop("tunables", {})
  change = kwargs.pop("change", lambda model: None)
  plain = _make(name, **kwargs, **tunables)
  change(plain.model)
  plain.reset(seed=0)
  # Or jax takes a constant for the float32 one that it was before.
  forward._RK4_A = forward._RK4_A.copy()
  with jax.enable_x64(True):
    one, _ = gym_environment.make_gym_robot(name, **kwargs)
    one = randomizing.randomized(one, randomize)
    # As Gymnasium begins, whatever the key.
    start = jnp.asarray(plain.data.qpos), jnp.asarray(plain.data.qvel)
    robot = one.env if randomize else one
    robot.task = types.SimpleNamespace(
      **robot.task._asdict(), is_over=robot.task.is_over,
      begin=lambda *_: start)
    state = jax.jit(one.reset)(jax.random.key(0))
    np.testing.assert_allclose(
      state.obs, plain._get_obs(), rtol=tolerance, atol=tolerance)
    step = jax.jit(one.step)
    low, high = plain.model.actuator_ctrlrange.T
    for control in _controls(plain, number):
      state = step(state, (control - low) / (high - low) * 2 - 1, tunables)
      obs, reward, terminated, _, _ = plain.step(control)
      np.testing.assert_allclose(
        state.obs, obs, rtol=tolerance, atol=tolerance)
      np.testing.assert_allclose(
        state.reward, reward, rtol=tolerance, atol=tolerance)
      assert state.done == terminated
  return state, plain


@pytest.mark.parametrize("name, tunables", [
  ("InvertedPendulum-v5", {}), ("Reacher-v5", {"reward_control_weight": 3.0})])
def test_steps_are_gymnasiums(name, tunables):
  _equal_steps(name, 10, 1e-12, tunables=tunables)


@pytest.mark.slow
@pytest.mark.parametrize("name, number, tolerance", [
  ("Ant-v5", 1, 1e-5),  # Its shins stand steeper than MJX takes well.
  ("HalfCheetah-v5", 30, 1e-7), ("Hopper-v5", 30, 1e-10),
  ("Humanoid-v5", 2, 1e-4), ("HumanoidStandup-v5", 1, 1e-2),  # By PGS there.
  ("InvertedDoublePendulum-v5", 30, 1e-10), ("Pusher-v5", 30, 1e-10),
  ("Swimmer-v5", 30, 1e-10), ("Walker2d-v5", 30, 1e-10)])
def test_steps_of_others_are_gymnasiums(name, number, tolerance):
  state, plain = _equal_steps(name, number, tolerance)
  feet = _TASKS[name].robot and state.info["state_descriptor"]
  if feet is not None:
    touched = {
      x for contact in plain.data.contact if 0 in contact.geom
      for x in contact.geom}
    model = plain.model
    names = brax_tasks.UNI_ROBOTS[_TASKS[name].robot][0].values()
    assert [float(x) for x in feet] == [
      model.geom(x.replace("_foot_geom", "_ankle_geom")).id in touched
      for x in names]


def test_a_mass_is_changed_as_in_mujoco():
  import mujoco

  def change(model):
    model.body_mass[:] *= 3
    model.body_inertia[:] *= 3
    mujoco.mj_setConst(model, mujoco.MjData(model))

  _equal_steps(
    "InvertedPendulum-v5", 5, 1e-6, change=change,
    randomize=("mass:fixed:3",))


def test_a_command_line_makes_it_and_agents_see_a_part():
  config = environments.EnvironmentConfig(
    env_name="gym:InvertedPendulum-v5", hide=("velocity",),
    env_arguments=("reset_noise_scale=0.0",))
  env = config.make()
  assert env.episode_length == 1000
  assert env.observation_spec == specs.Array((2,))
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  np.testing.assert_array_equal(state.obs, np.zeros((2, 2)))
  there = config.in_gymnasium().make()
  assert there.observation_spec == env.observation_spec
  assert there.action_spec == env.action_spec
  assert there.episode_length == env.episode_length


@pytest.mark.parametrize("name, kwargs, names, size", [
  ("HalfCheetah-v5", {}, ("back_foot", "front_foot"), 9),
  ("Ant-v5", {"descriptor": "position"}, ("x", "y"), 14)])
def test_robots_are_described_and_have_objectives(name, kwargs, names, size):
  one, _ = gym_environment.make_gym_robot(name, **kwargs)
  assert one.descriptor.names == names
  assert one.objectives.names == ("forward", "control")
  assert len(one.observation_names["velocity"]) == size
  assert one.dt == pytest.approx(0.05)
  state = jax.eval_shape(one.reset, jax.random.key(0))
  assert state.info["state_descriptor"].shape == (len(names),)
  assert {*state.metrics} >= {"reward_forward", "reward_ctrl"}


@pytest.mark.parametrize("name, kwargs, message", [
  ("Hoper-v5", {}, "did you mean 'Hopper-v5'.* 'gymnasium:Hoper-v5'"),
  ("Hopper-v5", {"ctrl_cost_wight": 1}, "did you mean 'ctrl_cost_weight'"),
  ("Hopper-v5", {"ctrl_cost_weight": "a"}, "ctrl_cost_weight='a'; .*0.001"),
  ("Hopper-v5", {"healthy_z_range": 2}, r"_range=2; give one like \(0.7, inf"),
  ("Hopper-v5", {"frame_skip": 0}, "frame_skip=0; give one like 4"),
  ("Ant-v5", {"main_body": "trso"}, "Invalid name 'trso'"),
  ("Reacher-v5", {"descriptor": "feet"}, "descriptor='feet'; give one of"),
  ("Hopper-v5", {"xml_file": "/no.xml"}, "'/no.xml' can't be simulated: .*op"),
  ("Hopper-v5", {"backend": "spring"}, "backend='spring' is not one of")])
def test_nonsense_is_refused_in_one_line(name, kwargs, message):
  with pytest.raises(ValueError, match=message) as error:
    environments.create(f"gym:{name}", **kwargs)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("name, randomize, message", [
  ("gymnasium:Hopper-v5", (), "'gymnasium:Hopper-v5' is no task .* 'gym:<id>'"),
  ("gym:Hopper-v5", ("mass:fixed:2",), "mass:fixed:2.*; give --randomize=")])
def test_what_gymnasium_lacks_is_refused(name, randomize, message):
  config = environments.EnvironmentConfig(env_name=name, randomize=randomize)
  with pytest.raises(ValueError, match=message):
    config.in_gymnasium()


def test_what_describes_a_robot_is_no_argument_of_gymnasiums():
  config = environments.EnvironmentConfig(
    env_name="gym:Ant-v5",
    env_arguments=("descriptor=position", "healthy_reward=2"))
  there = config.in_gymnasium()
  assert there.env_name == "gymnasium:Ant-v5"
  assert there.env_arguments == ("healthy_reward=2",)
