"""Tests of policies as files."""

import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, networks, skills
from qdrl_haiku.artifacts import export, numpy_policy
from tests import configs

_O, _A, _K = 5, 2, 3
_ROOT = pathlib.Path(__file__).parents[2]
_ACTIVATIONS = sorted(networks.config.ACTIVATIONS)
_BASES = {
  "sac": (learners.sac, learners.SACConfig),
  "td3": (learners.td3, learners.TD3Config),
  "crossq": (learners.crossq, learners.CrossQConfig),
  "xqc": (learners.xqc, learners.XQCConfig),
}
_KINDS = ("sac", "td3", "diayn_sac", "diayn_td3")


def _learner(
  kind,
  activation="relu",
  layer_norm=False,
  normalize=True,
  sizes=(8, 6),
  **settings,
):
  """One learner, and how many numbers it observes."""
  make, config_class = _BASES[kind.removeprefix("diayn_")]
  has_skills = kind.startswith("diayn")
  size = _O + _K if has_skills else _O
  if kind in ("crossq", "xqc"):
    return make(_O, _A, configs.sized(config_class, sizes, (4,))), _O
  learner = make(size, _A, configs.make(
    config_class,
    policy_hidden_layer_sizes=sizes,
    critic_hidden_layer_sizes=(4,),
    activation=activation,
    layer_norm=layer_norm,
    normalize_observations=normalize and not has_skills,
    **settings,
  ))
  if has_skills:
    config = learners.DIAYNConfig(
      discriminator_input="observation",
      discriminator_hidden_layer_sizes=(4,),
      normalize_observations=normalize,
    )
    learner = learners.diayn(
      learner, _O, skills.categorical(_K), config=config
    )
  return learner, size


def _observations(size, largest):
  """Observations [200, size] of every magnitude up to the largest."""
  rng = np.random.default_rng(0)
  scale = 10.0 ** rng.uniform(-2, np.log10(largest), (200, 1))
  return np.float32(rng.normal(size=(200, size)) * scale + 0.5)


def _agent(learner, scale=1.0, seed=0):
  """An agent whose numbers are drawn at random, so that all of them matter."""
  rng = np.random.default_rng(seed)

  def draw(path, x):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    numbers = scale * rng.normal(size=x.shape) / np.sqrt(max((1, *x.shape)))
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
  assert len([line for line in found[0].splitlines() if line]) <= 32
  assert set(re.findall(r"^import (\w+)", found[0], re.M)) == {"json", "numpy"}
  return found[0]


def _assert_acts_alike(act, learner, state, observation):
  """Compares actions; returns the smallest range of any entry of them."""
  expected = np.asarray(jax.jit(learner.act_greedy)(state, observation))
  np.testing.assert_allclose(act(observation), expected, rtol=0, atol=1e-5)
  return np.ptp(expected, axis=0).min()


@pytest.mark.parametrize(("kind", "settings", "largest"), [
  # Beyond, float32 itself is not exact to 1e-5 where large terms cancel.
  *[(kind, {"normalize": False}, 1e2) for kind in _KINDS],
  *[
    (kind, {"layer_norm": True, "sizes": (7, 5, 6)}, 1e6) for kind in _KINDS
  ],
  ("sac", {"sizes": ()}, 1e6),
  ("diayn_td3", {"sizes": ()}, 1e6),
  ("crossq", {}, 1e2),
  ("xqc", {}, 1e2),
  ("sac", {"sizes": (6, 6), "residual": True}, 1e2),
  ("td3", {"sizes": (6, 6), "residual": True}, 1e2),
  *[("td3", {"activation": name}, 1e2) for name in _ACTIVATIONS],
])
def test_a_policy_acts_as_its_agent(kind, settings, largest, tmp_path):
  learner, size = _learner(kind, **settings)
  state = _agent(learner)
  path = tmp_path / "policy.npz"
  export.save(path, learner, state)
  observation = _observations(size, largest)
  policy = export.load(path)
  assert _assert_acts_alike(policy, learner, state, observation) > 0.02
  has_td3 = kind.endswith("td3")
  kind_of_policy = "deterministic_tanh" if has_td3 else "normal_tanh"
  assert policy.config["policy"] == kind_of_policy
  # Without being told, the activation is found.
  if settings.get("sizes", True):
    activation = settings.get("activation", "relu")
    assert policy.config["activation"] == activation
  with np.errstate(all="raise", under="ignore"):
    assert np.isfinite(policy(_observations(size, 1e6))).all()
  # So do the lines in the recipes.
  if not settings.get("residual"):
    names: dict = {}
    exec(_reader().replace('"policy.npz"', repr(str(path))), names)
    observation = _observations(size, 1e2)
    _assert_acts_alike(names["act"], learner, state, observation)


class _Saved(NamedTuple):
  path: pathlib.Path
  learner: learners.Learner
  state: learners.DIAYNState


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """An agent with skills, LayerNorm and statistics, and its file."""
  learner, _ = _learner("diayn_sac", "tanh", layer_norm=True)
  state = _agent(learner)
  path = tmp_path_factory.mktemp("export") / "policy.npz"
  info = {"env_name": "point_maze", "return": 1.5}
  export.save(path, learner, state, activation="tanh", info=info)
  return _Saved(path, learner, state)


def test_the_file_has_plain_names_and_says_what_it_is(saved):
  file = np.load(saved.path, allow_pickle=False)
  shapes = {name: x.shape for name, x in file.items()}
  assert shapes == {
    "config": (),
    "layer_0/w": (8, 8), "layer_0/b": (8,),
    "layer_0/scale": (8,), "layer_0/offset": (8,),
    "layer_1/w": (8, 6), "layer_1/b": (6,),
    "layer_1/scale": (6,), "layer_1/offset": (6,),
    "layer_2/w": (6, 4), "layer_2/b": (4,),
    "observation_mean": (5,), "observation_std": (5,),
  }  # fmt: skip
  assert {x.dtype.name for n, x in file.items() if n != "config"} == {"float32"}
  config = json.loads(file["config"].item())
  version = config.pop("version")
  assert f'"{version}"' in (_ROOT / "qdrl_haiku/__init__.py").read_text()
  assert config == {
    "format": 1,
    "observation_size": 8,
    "action_size": 2,
    "hidden_layer_sizes": [8, 6],
    "activation": "tanh",
    "layer_norm": True,
    "layer_norm_epsilon": 1e-5,
    "num_normalized": 5,
    "clip": 10.0,
    "policy": "normal_tanh",
    "info": {"env_name": "point_maze", "return": 1.5},
  }
  assert export.load(saved.path).config["info"]["return"] == 1.5


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_observations_have_any_leading_axes(saved, shape):
  policy = export.load(saved.path)
  observation = np.random.default_rng(0).normal(size=(*shape, _O + _K))
  action = policy(observation.tolist())
  assert action.shape == (*shape, _A)
  assert action.dtype == np.float32
  act = jax.jit(saved.learner.act_greedy)
  expected = act(saved.state, jnp.float32(observation))
  np.testing.assert_allclose(action, expected, rtol=0, atol=1e-5)
  with pytest.raises(ValueError, match="the policy's 8 numbers"):
    policy(observation[..., :-1])


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
    cwd=tmp_path, capture_output=True, text=True, check=True,
  )
  action = export.load(saved.path)([0.5] * 8)
  assert json.loads(outcome.stdout) == action.tolist()


def test_an_activation_that_is_not_the_agents_is_refused(tmp_path):
  learner, _ = _learner("sac", "relu")
  # As agents are made, their actions are near 0 whatever the activation.
  state = _agent(learner)
  state.policy_params["policy/output"]["w"] *= 3e-3
  state.policy_params["policy/output"]["b"] *= 0
  for activation in set(_ACTIVATIONS) - {"relu"}:
    with pytest.raises(ValueError, match=f"activation='{activation}'.*differ"):
      export.save(tmp_path / "x.npz", learner, state, activation=activation)
  with pytest.raises(ValueError, match="'relo' is unknown.*relu"):
    export.save(tmp_path / "x.npz", learner, state, activation="relo")
  assert not list(tmp_path.iterdir())


def test_a_learner_that_acts_otherwise_is_refused(saved, tmp_path):
  learner = saved.learner._replace(
    act_greedy=lambda s, o: 0.999 * saved.learner.act_greedy(s, o)
  )
  for activation in ("tanh", None):
    with pytest.raises(ValueError, match="'tanh' and learner.act_greedy diff"):
      export.save(
        tmp_path / "x.npz", learner, saved.state, activation=activation
      )


def test_what_is_no_policy_of_ours_is_refused(saved, tmp_path):
  agent = saved.state.agent
  odd = saved.state._replace
  cases = {
    "is a dict": {"w": 1.0, "key": jax.random.key(0)},
    "is a ndarray": jnp.ones(3),
    "of your own": odd(agent=agent._replace(policy_params={"w": 1.0})),
    "policy_params are not": odd(agent=agent._replace(policy_params=[1.0])),
    "population": jax.tree.map(lambda x: x[None], saved.state),
    "twice": odd(agent=agent._replace(
      observation_statistics=saved.state.observation_statistics
    )),
    "not finite": jax.tree.map(lambda x: x * jnp.nan, saved.state),
  }
  for message, state in cases.items():
    with pytest.raises(ValueError, match=message) as error:
      export.save(
        tmp_path / "x.npz", saved.learner, state, activation="tanh"
      )
    assert "\n" not in str(error.value)
  assert not list(tmp_path.iterdir())


def test_info_that_is_not_json_is_refused_and_no_file_overwritten(
  saved, tmp_path
):
  for info in ({"x": np.ones(2)}, {"x": float("nan")}):
    with pytest.raises(ValueError, match="info=.*not JSON"):
      export.save(
        tmp_path / "x.npz", *saved[1:], activation="tanh", info=info
      )
  assert not list(tmp_path.iterdir())
  before = saved.path.read_bytes()
  with pytest.raises(ValueError, match=re.escape(str(saved.path))):
    export.save(saved.path, *saved[1:], activation="tanh")
  assert saved.path.read_bytes() == before


def test_a_file_is_written_whole_or_not_at_all(saved, tmp_path, monkeypatch):
  def fail(*args):
    raise OSError("no space left")

  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
      export.save(tmp_path / "x.npz", *saved[1:], activation="tanh")
  assert not list(tmp_path.iterdir())
  export.save(tmp_path / "new" / "x", *saved[1:], activation="tanh")
  assert [path.name for path in (tmp_path / "new").iterdir()] == ["x"]


def test_a_flipped_bit_changes_no_action(saved, tmp_path):
  content = bytearray(saved.path.read_bytes())
  expected = export.load(saved.path)([0.5] * 8)
  path = tmp_path / "flipped.npz"
  num_refused = 0
  for i in range(0, len(content), 31):
    content[i] ^= 1 << i % 8
    path.write_bytes(content)
    content[i] ^= 1 << i % 8
    try:
      action = export.load(path)([0.5] * 8)
    except ValueError as error:
      assert "flipped.npz can't be read" in str(error)  # noqa: PT017
      num_refused += 1
    else:
      np.testing.assert_array_equal(action, expected)
  assert num_refused > len(content) // 31 // 2


def _rewritten(saved, path, arrays=None, **settings):
  """The file with other arrays, None for none, and other settings."""
  found = dict(np.load(saved.path))
  config = json.loads(found["config"].item())
  config = {k: v for k, v in (config | settings).items() if v is not None}
  found |= {"config": np.asarray(json.dumps(config))} | (arrays or {})
  with path.open("wb") as file:
    np.savez(file, **{k: v for k, v in found.items() if v is not None})
  return path


@pytest.mark.parametrize(
  ("message", "arrays", "settings"),
  [
    ("its format is 2 .* reads 1", {}, {"format": 2}),
    ("config has no 'clip'", {}, {"clip": None}),
    ("activation='sin' is unknown", {}, {"activation": "sin"}),
    ("policy='beta' is unknown", {}, {"policy": "beta"}),
    ("layer_1/b is .6,. where", {}, {"hidden_layer_sizes": [8, 7]}),
    ("layer_2/b is .4,. where", {}, {"policy": "deterministic_tanh"}),
    ("layer_0/offset is .8,. where", {}, {"layer_norm": False}),
    ("layer_0/b is absent", {"layer_0/b": None}, {}),
    ("extra is .1,. where", {"extra": np.ones(1)}, {}),
    ("layer_0/b has numbers", {"layer_0/b": np.full(8, np.inf)}, {}),
    ("numbers that are not above 0", {"observation_std": np.zeros(5)}, {}),
    ("config", {"config": None}, {}),
    ("Expecting value", {"config": np.asarray("no JSON")}, {}),
    ("allow_pickle", {"layer_0/b": np.array([{}], object)}, {}),
  ],
)
def test_a_file_of_another_kind_is_refused(
  saved, tmp_path, message, arrays, settings
):
  path = _rewritten(saved, tmp_path / "x.npz", arrays, **settings)
  with pytest.raises(ValueError, match=f"x.npz can't be read.*{message}"):
    export.load(path)


def test_what_is_no_whole_file_is_refused(saved, tmp_path):
  content, path = saved.path.read_bytes(), tmp_path / "half.npz"
  for size in (0, 10, len(content) // 2, len(content) - 1):
    path.write_bytes(content[:size])
    with pytest.raises(ValueError, match="half.npz can't be read as a policy"):
      export.load(path)
  with zipfile.ZipFile(path, "w") as file:
    file.writestr("config", "{}")
  with pytest.raises(ValueError, match="can't be read as a policy"):
    export.load(path)
