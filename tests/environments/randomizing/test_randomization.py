"""Tests of what differs between episodes, by domain randomisation."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import randomizing, robots

_ARM = pathlib.Path(__file__).parents[1] / "robots" / "arm.xml"


# Two feet that touch a floor, one of which is smooth, and each other by a pair.
_FEET = """<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1"/>
<body pos="0 0 1"><joint name="left" type="slide" axis="0 0 1"/>
  <geom name="left" size=".1" friction=".5"/></body>
<body pos="1 0 1"><joint type="slide" axis="0 0 1"/>
  <geom name="right" size=".1" friction="2"/></body>
<body pos="2 0 1"><joint type="slide" axis="0 0 1"/>
  <geom name="skate" size=".1" condim="1" contype="2" conaffinity="2"/></body>
<body name="stone" mocap="true"><geom name="stone" size=".1" contype="0"
  conaffinity="0"/></body>
</worldbody><contact><pair geom1="left" geom2="right" friction="1 1 .1 .1 .1"/>
</contact><actuator><motor name="motor" joint="left"/><muscle name="muscle"
  joint="left" lengthrange="0 1" force="30"/></actuator></mujoco>"""


class _Counter:
  """Adds its actions up; the observation is the sum."""

  observation_size = 1
  action_size = 1

  def reset(self, key):
    del key
    zero = jnp.zeros(())
    return environments.State(jnp.zeros(1), jnp.zeros(1), zero, zero)

  def step(self, state, action):
    total = state.obs + action
    return state.replace(pipeline_state=total, obs=total)


class _WithSecret(_Counter):
  """Shows critics alone the sum, and all of it that and a whole number."""

  observation_spec = None

  def _seen(self, total):
    return {
      "privileged_state": total, "count": jnp.int32(total[0]),
      "state": jnp.append(total, total)}

  def reset(self, key):
    return super().reset(key).replace(obs=self._seen(jnp.zeros(1)))

  def step(self, state, action):
    total = state.pipeline_state + action
    return state.replace(pipeline_state=total, obs=self._seen(total))


class _Paid(_Counter):
  """Pays as many as there were steps, whatever was done."""

  def step(self, state, action):
    return super().step(state, action).replace(reward=state.reward + 1)


def _values(state):
  return state.pipeline_state.info["randomization"]["values"]


def _env(*specifications, length=5):
  return environments.create(
    _Counter(), episode_length=length, randomize=specifications)


def test_a_delayed_action_arrives_later():
  env = _env("action_delay:fixed:2")
  state, seen = env.reset(jax.random.key(0)), []
  for action in (1.0, 10.0, 100.0, 1000.0):
    state = env.step(state, jnp.array([action / 1000]))
    seen.append(float(state.obs[0]) * 1000)
  np.testing.assert_allclose(seen, [0, 0, 1, 11], rtol=1e-5)


def test_noise_on_observations_is_no_part_of_the_state():
  env = _env("observation_noise:fixed:0.5")
  state = env.reset(jax.random.split(jax.random.key(0), 2000))
  assert abs(float(jnp.std(state.obs)) - 0.5) < 0.03
  for _ in range(3):
    state = env.step(state, jnp.ones((2000, 1)))
  np.testing.assert_allclose(state.pipeline_state.pipeline_state, 3.0)
  assert abs(float(jnp.std(state.obs)) - 0.5) < 0.03


def test_what_critics_alone_see_is_exact():
  env = environments.create(
    _WithSecret(), episode_length=5, randomize=["observation_noise:fixed:0.5"])
  state = env.reset(jax.random.split(jax.random.key(0), 50))
  for steps in range(3):
    for name in ("privileged_state", "count"):
      assert (state.obs[name] == steps).all()
    assert (state.obs["state"] != steps).all()
    assert (state.obs["state"][:, 0] != state.obs["state"][:, 1]).all()
    state = env.step(state, jnp.ones((50, 1)))


def test_noise_on_actions_differs_by_step_and_stays_within_their_range():
  env = _env("action_noise:fixed:0.3", length=3)
  state = env.reset(jax.random.split(jax.random.key(0), 2000))
  first = env.step(state, jnp.zeros((2000, 1)))
  second = env.step(first, jnp.zeros((2000, 1)))
  steps = np.asarray(second.obs - first.obs)[:, 0]
  assert abs(np.std(steps) - 0.3) < 0.02
  assert abs(np.corrcoef(first.obs[:, 0], steps)[0, 1]) < 0.1
  assert (env.step(state, jnp.ones((2000, 1))).obs <= 1 + 1e-6).all()


def test_what_was_drawn_stays_for_an_episode_and_is_drawn_anew_for_the_next():
  env = _env("action_noise:uniform:0:1", length=3)
  state = env.reset(jax.random.split(jax.random.key(0), 4))
  drawn = []
  for _ in range(6):
    drawn.append(np.asarray(_values(state)["action_noise"]))
    state = env.step(state, jnp.zeros((4, 1)))
  np.testing.assert_array_equal(drawn[0], drawn[2])
  assert (drawn[2] != drawn[3]).all()
  np.testing.assert_array_equal(drawn[3], drawn[5])
  assert np.unique(drawn[0]).size == 4
  again = env.reset(jax.random.split(jax.random.key(0), 4)[2:])
  np.testing.assert_array_equal(_values(again)["action_noise"], drawn[0][2:])


def test_an_agents_own_part_of_a_range_is_tuned():
  env = _env("action_noise:uniform:0:1")
  assert env.tunables.keys() == {"action_noise/high", "boundary_share"}
  state = env.reset(jax.random.split(jax.random.key(0), 4))
  drawn = _values(state)["action_noise"]
  zero, share = jnp.zeros((4, 1)), jnp.array([0.0, 0.25, 0.5, 1.0])
  first = env.step(state, zero, None, {"action_noise/high": share})
  np.testing.assert_allclose(_values(first)["action_noise"], share * drawn)
  assert _values(first)["action_noise"][3] == drawn[3]
  # It stays for the episode, whatever becomes of the range.
  later = env.step(first, zero, None, {"action_noise/high": 0 * share})
  np.testing.assert_array_equal(
    _values(later)["action_noise"], _values(first)["action_noise"])
  # Evaluation is by whole ranges.
  np.testing.assert_array_equal(
    _values(env.advance(state, zero))["action_noise"], drawn)


def test_a_share_of_the_episodes_is_at_a_boundary_and_tells_its_return():
  env = environments.create(_Paid(), episode_length=5, randomize=[
    "action_noise:uniform:0:0.1", "observation_noise:uniform:0:0.1"])
  boundaries = env.unwrapped.boundaries
  assert boundaries == ("action_noise/high", "observation_noise/high")
  state = env.reset(jax.random.split(jax.random.key(0), 1000))
  reach = dict.fromkeys(boundaries, jnp.full(1000, 0.5))
  state = env.step(
    state, jnp.ones((1000, 1)), None, reach | {"boundary_share": 0.6})
  told, drawn = state.info["curriculum"], _values(state)
  index = np.asarray(told["boundary"])
  assert abs(np.mean(index >= 0) - 0.6) < 0.05
  assert abs(np.mean(index == 0) - 0.3) < 0.05
  for i, name in enumerate(("action_noise", "observation_noise")):
    np.testing.assert_allclose(drawn[name][index == i], 0.05, rtol=1e-6)
    others = np.asarray(drawn[name][index != i])
    assert others.max() <= 0.05 and others.std() > 0.01
  state = env.step(state, jnp.ones((1000, 1)))
  # What an episode is at stays, and its return is summed.
  np.testing.assert_array_equal(state.info["curriculum"]["boundary"], index)
  np.testing.assert_allclose(state.info["curriculum"]["return"], 3.0)


def _changed(robot, values):
  """Returns a robot with its physics multiplied."""
  factors = randomizing.randomized(
    robot, [f"{name}:uniform:0.1:20" for name in values])._factors
  return factors.change(robot, values, factors.derive(values))


@functools.cache
def _next(path, name=None):
  """Returns the arm's joints after a step, perhaps with a factor of 2."""
  robot = robots.from_mjcf(str(path), "run", backend="generalized")
  if name is not None:
    robot = _changed(robot, {name: jnp.array(2.0)})

  @jax.jit
  def step(control):
    physics = robot._pipeline.init(
      robot.sys, jnp.array([0.2, -0.5]), jnp.array([1.0, 2.0]))
    return robot._pipeline.step(robot.sys, physics, control).qd

  return np.asarray(step(jnp.array([0.5, -0.5])))


def _slow(*case):
  return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "old", "new"), [
  _slow("mass", "<worldbody>",
    "<default><geom density='2000'/></default><worldbody>"),
  _slow("mass/forearm", 'name="lower"', 'name="lower" density="2000"'),
  _slow("damping/elbow", '120" damping="0.5"', '120" damping="1.0"'),
  ("actuator_gain/shoulder", 'gear="10"', 'gear="20"'),
  _slow("gravity", "<option", "<option gravity='0 0 -19.62'")])
def test_a_factor_is_as_a_file_that_has_it(tmp_path, name, old, new):
  text = _ARM.read_text()
  assert old in text
  other = tmp_path / "other.xml"
  other.write_text(text.replace(old, new))
  found = _next(_ARM, name)
  np.testing.assert_allclose(found, _next(other), rtol=1e-4)
  assert np.abs(found - _next(_ARM)).max() > 1e-3


@pytest.fixture(scope="module")
def feet(tmp_path_factory):
  """The robot of feet."""
  path = tmp_path_factory.mktemp("feet") / "feet.xml"
  path.write_text(_FEET)
  return robots.from_mjcf(str(path), "run", backend="mjx")


@pytest.mark.parametrize(("name", "geoms", "pair"), [
  ("friction", [2, 2, 2, 2, 2], 2), ("friction/left", [1, 2, 1, 1, 1], 2),
  ("friction/floor", [2, 1, 1, 1, 1], 1)])
def test_the_friction_of_a_geom_is_that_of_its_pairs(feet, name, geoms, pair):
  sys = _changed(feet, {name: jnp.array(2.0)}).sys
  np.testing.assert_allclose(
    sys.geom_friction, feet.sys.geom_friction * np.array(geoms)[:, None])
  np.testing.assert_allclose(sys.pair_friction, feet.sys.pair_friction * pair)


def test_a_muscles_gain_is_its_force_and_not_its_shape(feet):
  sys = _changed(feet, {"actuator_gain": jnp.array(2.0)}).sys
  other = mujoco.MjModel.from_xml_string(
    _FEET.replace('force="30"', 'force="60" scale="400"').replace(
      '<motor ', '<general gainprm="2" '))
  np.testing.assert_allclose(sys.actuator_gainprm, other.actuator_gainprm)
  np.testing.assert_allclose(sys.actuator_biasprm, other.actuator_biasprm)


@pytest.mark.parametrize(("specification", "words"), [
  ("friction:uniform:0.5:1.5", ""),
  ("friction/left:uniform:0.5:1.5", "nothing below 2 on floor: MuJoCo takes"),
  ("friction/right:uniform:0.6:1.5", ""),
  ("friction/right:uniform:0.4:1.5", "nothing below 0.5 on floor"),
  ("friction/floor:uniform:0.4:1", "below 2 on right, 0.5 on"),
  ("friction/floor:uniform:0.6:1 friction/left:uniform:0.5:2",
    "below 2 on right, 1 on left")])
def test_a_friction_that_another_hides_is_said(feet, specification, words):
  env = randomizing.randomized(feet, specification.split())
  assert ("nothing below" in env.note) == bool(words)
  assert words in env.note
  assert env.note.startswith(feet.note)


@pytest.mark.parametrize(("specification", "words"), [
  ("friction/skate:fixed:2", "no contact has that friction"),
  ("friction/stone:fixed:2", "no contact has that friction"),
  ("damping:fixed:2", "what it multiplies is 0 in this robot"),
  ("mass/world:fixed:2", "what it multiplies is 0 in this robot"),
  ("mass/stone:fixed:2", "that body can't move"),
  ("friction/floor:uniform:0.1:0.2",
    "no effect up to 0.5: MuJoCo takes the larger of two geoms' frictions, "
    "here that of left; give larger factors, or 'friction', of all geoms"),
  ("frction:uniform:0:1", "did you mean 'friction'"),
  ("mass/ston:uniform:1:2", "did you mean 'stone'?"),
  ("mass/*leg*:uniform:1:2", "no body '*leg*'; give one of"),
  ("com_x/stone:fixed:2", "that body can't move"),
  ("geom_size/floor:fixed:2", "what it multiplies is 0"),
  ("kp:fixed:2", "what it multiplies is 0 in this robot"),
  ("slope_x:uniform:0:90", "from 0 to 90 degrees; give slopes between -90"),
  ("push_interval:fixed:2", "without a push; give 'push:uniform:0:1'"),
  ("push:fixed:2", "neither floats nor slides sideways"),
  ("push/left:fixed:2", "'push/left' is unknown"),
  ("initial_pose/lef:fixed:2", "no joint 'lef'; did you mean 'left'?"),
  ("gravity/floor:uniform:1:2", "no part of gravity 'floor'"),
  ("action_delay:uniform:-1:2", "from -1 to 2 steps"),
  ("mass:uniform:2:1", "randomize='mass:uniform:2:1'"),
  ("mass/stone:uniform:0:1", "reaches down to 0; give factors above 0"),
  ("mass:fixed:2 mass:fixed:2", "randomize has mass twice")])
def test_what_has_no_effect_or_is_not_there_is_refused(
  feet, specification, words
):
  with pytest.raises(ValueError) as error:
    randomizing.randomized(feet, specification.split())
  assert words in str(error.value)


def test_what_the_physics_leaves_out_is_refused():
  arm = robots.from_mjcf(str(_ARM), "run", backend="positional")
  with pytest.raises(ValueError, match="no effect in positional, which leaves"):
    randomizing.randomized(arm, ["damping/elbow:fixed:2"])
  randomizing.randomized(arm, ["mass:fixed:2"])
  with pytest.raises(ValueError, match="a mass of 1; give backend=generalized"):
    environments.create("ant", randomize=["mass/torso:fixed:2"])
  with pytest.raises(ValueError, match="_Counter is no robot"):
    _env("mass:uniform:1:2")
