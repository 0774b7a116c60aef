"""Tests of policies as ONNX files, run where there is no JAX."""

import json
import pathlib
import re
import subprocess
import sys

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import (
  actors,
  environments,
  learners,
  networks,
  specs,
  types,
)
from qdrl_haiku.programs.artifacts import export

jax2onnx = pytest.importorskip("jax2onnx")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
_O, _A = 3, 2
# What a robot's computer runs.
_READER = """
import json, sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
observation = np.load(sys.argv[2])
(action,) = session.run(None, {"observation": observation})
assert not {"jax", "qdrl_haiku"} & set(sys.modules)
np.save(sys.argv[3], action)
print(session.get_modelmeta().custom_metadata_map["info"])
"""


def _learner(name):
  if name == "normalized":
    config = learners.SACConfig(normalize_observations=True)
    return learners.sac(_O, _A, config)
  if name == "own":
    own = networks.OwnNetworks(lambda x: hk.Linear(2 * _A)(jax.nn.selu(x)))
    return learners.sac(_O, _A, networks=own)
  if name.startswith("discrete_"):
    name = name.removeprefix("discrete_")
    return getattr(learners, name)(_O, specs.Discrete(4))
  return getattr(learners, name)(_O, _A)


@pytest.mark.parametrize("name", [
  "sac", "td3", "crossq", "xqc", "ppo", "normalized", "own", "discrete_ppo",
  "discrete_sac", "discrete_dqn", "discrete_pqn"])
def test_onnx_acts_as_the_agent_without_jax(tmp_path, name):
  learner = _learner(name)
  state = learner.init(jax.random.key(0))
  observation = np.random.default_rng(1).normal(size=(1000, _O))
  observation = observation.astype(np.float32)
  state = learner.observe(state, 3 * observation + 1)
  path = tmp_path / "policy.onnx"
  export.export_onnx(path, learner, state, _O, info={"env_name": "x"})
  np.save(tmp_path / "observation.npy", observation)
  done = subprocess.run(
    [sys.executable, "-c", _READER, str(path), *(
      str(tmp_path / f"{x}.npy") for x in ("observation", "action"))],
    check=True, capture_output=True, text=True)
  np.testing.assert_allclose(
    np.load(tmp_path / "action.npy"),
    learner.act_greedy(state, observation, ()).action, atol=1e-5)
  assert json.loads(done.stdout) == {"env_name": "x"}
  # What runtimes of 2023 read.
  assert _versions(path) == (18, 8)


def test_an_agents_memory_and_parts_of_observations_are_inputs(tmp_path):
  """An agent that adds up what it has seen of one part of observations."""
  path = tmp_path / "policy.onnx"

  def act_greedy(state, observation, memory):
    total = memory["total"] + observation["x"]
    pixels = observation["pixels"].astype(jnp.float32)
    bright = pixels.mean((-1, -2))[..., None]
    action = jnp.tanh(state * total[..., :_A] + bright)
    return types.Acted(action, {"total": total})

  learner = learners.sac(_O, _A)._replace(
    act_greedy=act_greedy, memory=lambda: {"total": jnp.zeros(_O)})
  observed = {
    "x": specs.Array((_O,)), "pixels": specs.Array((4, 5), np.uint8)}
  export.export_onnx(path, learner, jnp.float32(0.3), observed)
  session = onnxruntime.InferenceSession(path)
  memory, carried = {"total": jnp.zeros((6, _O))}, np.zeros((6, _O), np.float32)
  rng = np.random.default_rng(0)
  for _ in range(3):
    x = np.float32(rng.normal(size=(6, _O)))
    pixels = rng.integers(0, 3, (6, 4, 5)).astype(np.uint8)
    action, memory, _ = act_greedy(0.3, {"x": x, "pixels": pixels}, memory)
    found, carried = session.run(["action", "next_memory/total"], {
      "observation/x": x, "observation/pixels": pixels,
      "memory/total": carried})
    np.testing.assert_allclose(found, action, atol=1e-5)


@pytest.mark.parametrize("memory", ["window:3", "gru:4", "lstm:4"])
def test_a_policy_is_stepped_through_an_episode_with_its_memory(
  tmp_path, memory
):
  """Of 200 steps; what its critics remember is no part of it."""
  learner = learners.sac(_O, _A, learners.SACConfig(
    networks.ResidualNetworkConfig((16,)), memory=memory))
  state = jax.jit(learner.init)(jax.random.key(0))
  # So that the memory matters.
  state = state._replace(policy_params=jax.tree.map(
    lambda x: x + 0.3 * jnp.sin(jnp.arange(x.size)).reshape(x.shape),
    state.policy_params))
  observations = np.float32(np.random.default_rng(1).normal(size=(200, 1, _O)))
  state = learner.observe(state, 3 * observations + 1)
  path = tmp_path / "policy.onnx"
  export.export_onnx(path, learner, state, _O)
  session, act = onnxruntime.InferenceSession(path), jax.jit(learner.act_greedy)
  entry, _ = session.get_inputs()
  carried = np.zeros((1, *entry.shape[1:]), np.float32)
  first = dict(zip(("action", "carried"), session.run(None, {
    "observation": observations[-1], entry.name: carried}), strict=True))
  agents = jax.tree.map(lambda x: x[None], learner.memory())
  for observation in observations:
    expected, agents, _ = act(state, observation, agents)
    found, carried = session.run(
      ["action", f"next_{entry.name}"],
      {"observation": observation, entry.name: carried})
    np.testing.assert_allclose(found, expected, atol=1e-5)
  assert np.abs(first["action"] - found).max() > 1e-2


def _versions(path):
  """A file's operator set, and the version of its format."""
  model = onnx.load(path)
  onnx.checker.check_model(model)
  (own,) = model.opset_import
  return own.version, model.ir_version


def test_a_policy_that_differs_where_the_agent_was_is_refused(
  tmp_path, monkeypatch
):
  """Though all that is near 0 is clipped, and so acts alike."""
  learner = _learner("normalized")
  observation = np.random.default_rng(0).normal(900, 1, (1000, _O))
  state, other = (
    learner.observe(learner.init(jax.random.key(0)), np.float32(x))
    for x in (observation, observation + 0.1))
  convert = jax2onnx.to_onnx
  monkeypatch.setattr(jax2onnx, "to_onnx", lambda act, *args, **kwargs: convert(
    lambda x: learner.act_greedy(other, x, ()).action, *args, **kwargs))
  with pytest.raises(ValueError, match="learner.act_greedy differ by"):
    export.export_onnx(tmp_path / "policy.onnx", learner, state, _O)


@pytest.mark.parametrize(("opset", "expected"), [
  (13, (13, 7)), (21, (21, 10)), (12, "with opset 12 .*Split")])
def test_the_operator_set_can_be_chosen(tmp_path, opset, expected):
  learner, path = _learner("sac"), tmp_path / "policy.onnx"
  state = learner.init(jax.random.key(0))
  if isinstance(expected, tuple):
    export.export_onnx(path, learner, state, _O, opset=opset)
    assert _versions(path) == expected
    return
  with pytest.raises(ValueError, match=expected) as error:
    export.export_onnx(path, learner, state, _O, opset=opset)
  assert "\n" not in str(error.value) and not path.exists()


_ROOT = pathlib.Path(__file__).parents[3]


def _walk(model):
  """The task that the recipe has for MuJoCo's data."""
  del model

  def reward(before, after, action):
    moved = after.position("torso")[0] - before.position("torso")[0]
    return moved / after.step_seconds + 0.5 - 0.05 * jnp.mean(action**2)

  return environments.Task(
    reward, is_over=lambda state: state.upright("torso") < 0.3,
    initial_noise=0.5)


def test_a_robot_does_in_plain_mujoco_what_it_does_here(tmp_path):
  """By the recipe alone; without contacts, in which MJX differs a little."""
  path = tmp_path / "tripod.xml"
  path.write_text((
    _ROOT / "tests/environments/robots/tripod.xml").read_text().replace(
      '"0.005"/>', '"0.01"><flag contact="disable"/></option>'))
  recipes = (_ROOT / "launchers/README.md").read_text()
  recipe = re.search(r"```python\n(import copy.*?)```", recipes, re.S).group(1)
  names: dict = {}
  exec(recipe, names)
  env = environments.create(
    environments.from_mjcf(str(path), _walk, backend="mjx"), episode_length=30)
  learner = learners.sac(env.observation_size, env.action_size)
  state = learner.init(jax.random.key(0))
  state = state._replace(policy_params=jax.tree.map(
    lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape),
    state.policy_params))
  begun = env.reset(jax.random.split(jax.random.key(1), (1, 64)))
  found = actors.evaluate_from_states(
    env, learner, jax.tree.map(lambda x: x[None], state), begun)
  here = np.stack([found.returns[0], found.lengths[0]], axis=-1)
  info = {"episode_length": 30, **environments.policy_interface(env)}

  def there(info, number):
    policy = tmp_path / f"{number}.onnx"
    export.export_onnx(
      policy, learner, state, env.observation_spec, info=info)
    assert json.loads(policy.with_suffix(".json").read_text()) == info
    return names["run_in_mujoco"](
      str(path), str(policy), names["forward"],
      lambda x: x.body("torso").xmat[8] < 0.3, number)

  drawn = there(info, 64)
  assert 5 < here[:, 1].mean() < 29
  error = np.hypot(here.std(axis=0), drawn.std(axis=0)) / 8
  assert (np.abs(here.mean(axis=0) - drawn.mean(axis=0)) < 3 * error).all()
  # From one state with the same noise the episodes are the same.
  physics = begun.pipeline_state.pipeline_state
  info["reset"] = info["reset"] | {
    "qpos": physics.q[0, 0].tolist(), "qvel": physics.qd[0, 0].tolist(),
    "qpos_noise": [0.0] * 13, "qvel_noise": [0.0] * 12}
  np.testing.assert_allclose(there(info, 1)[0], here[0], atol=1e-2)
