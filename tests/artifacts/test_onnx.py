"""Tests of policies as ONNX files, run where there is no JAX."""

import json
import subprocess
import sys

import haiku as hk
import jax
import numpy as np
import pytest

from qdrl_haiku import learners, networks
from qdrl_haiku.artifacts import export

pytest.importorskip("jax2onnx")
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
  return getattr(learners, name)(_O, _A)


@pytest.mark.parametrize(
  "name", ["sac", "td3", "crossq", "xqc", "ppo", "normalized", "own"])
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
    np.load(tmp_path / "action.npy"), learner.act_greedy(state, observation),
    atol=1e-5)
  assert json.loads(done.stdout) == {"env_name": "x"}


def test_what_cannot_be_converted_is_told(tmp_path):
  learner = learners.sac(_O, _A)._replace(
    act_greedy=lambda state, observation: jax.pure_callback(
      lambda x: x, jax.ShapeDtypeStruct((4, _A), np.float32), observation))
  state = learner.init(jax.random.key(0))
  with pytest.raises(ValueError, match="can't be converted"):
    export.export_onnx(tmp_path / "policy.onnx", learner, state, _O)
  assert not list(tmp_path.iterdir())
