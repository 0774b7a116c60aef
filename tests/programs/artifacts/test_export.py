"""Tests of policies as files."""

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, skills, specs, types
from qdrl_haiku.programs.artifacts import export, numpy_policy
from tests import configs

_O, _A, _K = 5, 2, 3
_ROOT = pathlib.Path(__file__).parents[3]
_BASES = {
  "sac": (learners.sac, learners.SACConfig),
  "td3": (learners.td3, learners.TD3Config),
  "crossq": (learners.crossq, learners.CrossQConfig),
  "xqc": (learners.xqc, learners.XQCConfig),
  "ppo": (learners.ppo, learners.PPOConfig),
  "dqn": (learners.dqn, learners.DQNConfig),
  "pqn": (learners.pqn, learners.PQNConfig)}
_DISCRETE = ("ppo", "dqn", "pqn")  # Without skills.


def _learner(kind, normalize=True, sizes=(8, 6), **settings):
  """One learner, and how many numbers it observes."""
  make, config_class = _BASES[kind.removeprefix("diayn_")]
  has_skills = kind.startswith("diayn")
  size = _O + _K if has_skills else _O
  action = specs.Discrete(4) if kind in _DISCRETE else _A
  if kind in ("crossq", "xqc"):
    return make(_O, _A, configs.sized(config_class, sizes, (4,))), _O
  learner = make(size, action, configs.make(
    config_class, policy_hidden_layer_sizes=sizes,
    critic_hidden_layer_sizes=(4,),
    normalize_observations=normalize and not has_skills, **settings))
  if has_skills:
    config = learners.DIAYNConfig(
      discriminator_input="observation", hidden_layer_sizes=(4,),
      normalize_observations=normalize)
    learner = learners.diayn(learner, _O, skills.categorical(_K), config=config)
  return learner, size


def _observations(size, largest):
  """Observations [200, size] of every magnitude up to the largest."""
  rng = np.random.default_rng(0)
  scale = 10.0 ** rng.uniform(-2, np.log10(largest), (200, 1))
  return np.float32(rng.normal(size=(200, size)) * scale + 0.5)


def _agent(learner):
  """An agent whose numbers are drawn at random, so that all of them matter."""
  rng = np.random.default_rng(0)

  def draw(path, x):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    numbers = rng.normal(size=x.shape) / np.sqrt(max((1, *x.shape)))
    if "scale" in name or "variance" in name:
      numbers = 1 + numbers**2
    elif "num_observations" in name:
      numbers = np.asarray(50)
    return jnp.asarray(numbers, x.dtype)

  # Faster than to compile `init`.
  like = jax.eval_shape(learner.init, jax.random.key(0))
  return jax.tree_util.tree_map_with_path(draw, like)


def _reader():
  """The thirty lines of the recipes that read a policy."""
  recipes = (_ROOT / "launchers" / "README.md").read_text()
  blocks = re.findall(r"```python\n(.*?)```", recipes, re.DOTALL)
  found = [block for block in blocks if '"observation_mean"' in block]
  assert set(re.findall(r"^import (\w+)", found[0], re.M)) == {"json", "numpy"}
  return found[0]


@pytest.mark.parametrize(("kind", "settings", "largest"), [
  # Beyond, float32 itself is not exact to 1e-5 where large terms cancel.
  ("diayn_sac", {"normalize": False, "activation": "tanh"}, 1e2),
  ("sac", {"layer_norm": True, "sizes": (7, 5, 6)}, 1e6),
  ("sac", {"sizes": ()}, 1e6), ("crossq", {}, 1e2), ("diayn_ppo", {}, 1e2),
  ("ppo", {}, 1e2), ("dqn", {"layer_norm": True}, 1e2), ("pqn", {}, 1e2),
  ("crossq", {"sizes": ()}, 1e2), ("xqc", {}, 1e2),
  ("td3", {"sizes": (6, 6), "residual": True, "activation": "gelu"}, 1e2),
  *[("td3", {"activation": x}, 1e2) for x in ("elu", "leaky_relu", "swish")]])
def test_a_policy_acts_as_its_agent(kind, settings, largest, tmp_path):
  learner, size = _learner(kind, **settings)
  state = _agent(learner)
  path = tmp_path / "policy.npz"
  export.export_policy(path, learner, state)
  policy = export.load(path)
  # Of every shape, and beyond what float32 tells exactly.
  observation = _observations(size, largest)
  act = jax.jit(lambda *args: learner.act_greedy(*args, ()).action)
  expected = np.asarray(act(state, observation))
  np.testing.assert_allclose(policy(observation), expected, rtol=0, atol=1e-5)
  assert np.ptp(expected, axis=0).min() > 0.02
  np.testing.assert_allclose(
    policy(observation[0].tolist()), expected[0], rtol=0, atol=1e-5)
  with np.errstate(all="raise", under="ignore"):
    assert np.isfinite(policy(_observations(size, 1e6))).all()
  # So do the lines in the recipes.
  if not settings.get("residual"):
    names: dict = {}
    exec(_reader().replace('"policy.npz"', repr(str(path))), names)
    small = _observations(size, 1e2)
    np.testing.assert_allclose(
      names["act"](small), act(state, small), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "memory"), [
  ("td3", "window:3"), ("sac", "lstm:4"), ("sac", "gru:4")])
def test_a_policy_with_a_memory_acts_as_its_agent(kind, memory, tmp_path):
  learner, size = _learner(kind, memory=memory)
  state, path = _agent(learner), tmp_path / "policy.npz"
  export.export_policy(path, learner, state)
  policy = export.load(path)
  act, own, agents = jax.jit(learner.act_greedy), None, learner.memory()
  agents = jax.tree.map(lambda x: jnp.stack([x, x]), agents)
  for observation in _observations(size, 1e2).reshape(-1, 2, size):
    expected, agents, _ = act(state, observation, agents)
    found, own = policy.step(observation, own)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
  assert np.abs(policy(observation) - expected).max() > 1e-3
  # One that is told to have another memory is none of its agent.
  other = learner._replace(policy=lambda state: learner.policy(state)._replace(
    memory="none"))
  with pytest.raises(ValueError, match="or has a memory of your own"):
    export.export_policy(tmp_path / "other.npz", other, state)


class _Saved(NamedTuple):
  path: pathlib.Path
  learner: learners.Learner
  state: learners.SkillState


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """An agent with skills, LayerNorm and statistics, and its file."""
  learner, _ = _learner("diayn_sac", activation="tanh", layer_norm=True)
  state = _agent(learner)
  path = tmp_path_factory.mktemp("export") / "policy.npz"
  info = {"env_name": "point_maze", "return": 1.5}
  export.export_policy(path, learner, state, info=info)
  return _Saved(path, learner, state)


def test_a_copy_of_the_module_reads_without_jax(saved, tmp_path):
  code = f"""
import sys
for name in ("jax", "haiku", "qdrl_haiku", "scipy"):
  sys.modules[name] = None
import robot
print(robot.load({str(saved.path)!r})([0.5] * 8).tolist())
"""
  text = pathlib.Path(numpy_policy.__file__).read_text()
  (tmp_path / "robot.py").write_text(text)
  outcome = subprocess.run(
    [sys.executable, "-c", code],
    cwd=tmp_path, capture_output=True, text=True, check=True)
  policy = export.load(saved.path)
  assert policy.config["info"] == {"env_name": "point_maze", "return": 1.5}
  assert json.loads(outcome.stdout) == policy([0.5] * 8).tolist()
  with pytest.raises(ValueError, match="the policy's 8 numbers"):
    policy([0.5] * 7)


def test_what_can_not_be_exported_is_refused(saved, tmp_path, monkeypatch):
  path = tmp_path / "x.npz"
  otherwise = saved.learner._replace(
    act_greedy=lambda *args: types.Acted(
      0.999 * saved.learner.act_greedy(*args).action))
  known = saved.learner
  for message, learner, state in (
    ("learner.act_greedy differ", otherwise, saved.state),
    ("of your own", known._replace(policy=None), saved.state),
    ("a memory", known._replace(memory=lambda: jnp.zeros(2)), saved.state),
    ("population", known, jax.tree.map(lambda x: x[None], saved.state)),
    ("not finite", known, jax.tree.map(lambda x: x * jnp.nan, saved.state)),
    ("not JSON", known, saved.state),
  ):
    info = {"x": float("nan")} if message == "not JSON" else None
    with pytest.raises(ValueError, match=message) as error:
      export.export_policy(path, learner, state, info=info)
    assert "\n" not in str(error.value)
  monkeypatch.setattr(os, "replace", None)
  with pytest.raises(TypeError):
    export.export_policy(path, saved.learner, saved.state)
  assert not list(tmp_path.iterdir())
  before = saved.path.read_bytes()
  with pytest.raises(ValueError, match="is there already"):
    export.export_policy(saved.path, saved.learner, saved.state)
  assert saved.path.read_bytes() == before


def test_what_is_no_whole_file_is_refused(saved, tmp_path):
  content, path = saved.path.read_bytes(), tmp_path / "half.npz"
  flipped = bytearray(content)
  # In the weights of the first layer.
  flipped[content.index(b"layer_0/w.npy") + 200] ^= 1
  for broken in (b"", content[: len(content) // 2], content[:-1], flipped):
    path.write_bytes(broken)
    with pytest.raises(ValueError, match="half.npz can't be read as a policy"):
      export.load(path)


@pytest.mark.parametrize(("message", "arrays", "settings"), [
  ("its format is 2 .* reads 1", {}, {"format": 2}),
  ("mismatch|broadcast", {"layer_0/w": np.ones((8, 7))}, {}),
  ("layer_2/scale", {}, {"hidden_layer_sizes": [8, 6, 6]}),
  ("not finite", {"layer_1/b": np.full(6, np.nan)}, {}),
  ("allow_pickle", {"layer_0/b": np.array([{}], object)}, {})])
def test_another_kind_is_refused(saved, tmp_path, message, arrays, settings):
  found = dict(np.load(saved.path))
  config = json.loads(found["config"].item()) | settings
  found |= {"config": np.asarray(json.dumps(config))} | arrays
  np.savez(tmp_path / "x.npz", **found)
  with pytest.raises(ValueError, match=f"x.npz can't be read.*{message}"):
    export.load(tmp_path / "x.npz")
