"""Policies as files for machines without JAX: one `.npz`, no pickle in it.

    layer_<i>/w [I, J], layer_<i>/b [J]        of each layer, the output's last
    layer_<i>/scale [J], layer_<i>/offset [J]  of hidden layers, with LayerNorm
    observation_mean [n], observation_std [n]  with normalisation
    config, JSON: what stands below, beside format and version

    of N residual blocks (`networks.ResidualMLP`), instead of the layers above:
    layer_0, expand_<i>, project_<i>, output with w and b, and layer_norm_<i>,
    the last of them before the output, with scale and offset

    memory/w_i [O, 3H], memory/w_h [H, 3H], memory/b [3H]   of a GRU
    memory/w [O + H, 4H], memory/b [4H]                     of an LSTM

    observation_size, action_size, hidden_layer_sizes, activation
    memory          "window:K", "gru:H" or "lstm:H", else absent: the network
                    sees K observations, or H numbers after an observation
    layer_norm, layer_norm_epsilon
    residual        true with residual blocks, else absent
    num_normalized  n: how many numbers of an observation are normalised, from
                    the first on; the others, such as a skill, are left alone
    clip            normalised numbers lie in [-clip, clip]
    policy          "normal_tanh": outputs are A locations, then A raw scales;
                    "deterministic_tanh": A outputs. The greedy action is the
                    tanh of the first A in either case. "categorical": A
                    outputs; it is the index of the largest, from 0.
    info            what was given to `export.export_policy`

Numbers are float32. `load` needs NumPy alone, and so does a copy of this file
without the rest of the package; launchers/README.md has a reader of 30 lines.
"""

import dataclasses
import json
import math
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT = 1
OUTPUTS_PER_ACTION = {
  "normal_tanh": 2, "deterministic_tanh": 1, "categorical": 1}
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
  "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
  # The approximation that `jax.nn.gelu` is by default.
  "gelu": lambda x: x
  * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
  "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
  "relu": lambda x: np.maximum(x, 0),
  # Beyond 80, exp would overflow in float32, and the result is 0 anyway.
  "swish": lambda x: x / (1 + np.exp(np.minimum(-x, 80))),
  "tanh": np.tanh}

_GRU = ("w_i", "w_h", "b")


def _sigmoid(x: np.ndarray) -> np.ndarray:
  """Returns 1 / (1 + exp(-x)), which doesn't overflow."""
  return 0.5 * (1 + np.tanh(0.5 * x))


@dataclasses.dataclass(frozen=True)
class Policy:
  """The greedy policy of one agent, in NumPy: a function of observations.

  Attributes:
    config: what shapes it, and where it comes from; see the module.
    parameters: arrays by name; see the module.
  """

  config: dict[str, Any]
  parameters: dict[str, np.ndarray]

  def __call__(self, observation: npt.ArrayLike) -> np.ndarray:
    """Acts as `learner.act_greedy` does where an episode begins.

    Args:
      observation: [..., O], as the environment gave it; with the skill at its
        end, if the agent had skills.

    Returns:
      Actions [..., A] in [-1, 1], NaN where the observation has a NaN; or
      int64 [...], of discrete ones.

    Raises:
      ValueError: if the last axis of `observation` is not of size O.
    """
    return self.step(observation)[0]

  def step(
    self, observation: npt.ArrayLike, memory: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Acts as `learner.act_greedy` does, with the memory of the step before.

    Args:
      observation: as of `__call__`.
      memory: None where an episode begins, then as returned.

    Returns:
      Actions, and the memory [..., M], with none M = 0.
    """
    config, p = self.config, self.parameters
    x = np.asarray(observation, p["layer_0/w"].dtype)
    if x.ndim < 1 or x.shape[-1] != config["observation_size"]:
      raise ValueError(
        f"observation has shape {x.shape}: the last axis must hold the "
        f"policy's {config['observation_size']} numbers")
    kind, _, number = config.get("memory", "none").partition(":")
    if memory is None:
      size = int(number or 0) * (2 if kind == "lstm" else 1)
      if kind == "window":
        size = x.shape[-1] * (size - 1)
      memory = np.zeros((*x.shape[:-1], size), x.dtype)
    if kind == "window":
      x = np.concatenate([memory, x], axis=-1)
      memory = x[..., config["observation_size"] :]
    if n := config["num_normalized"]:
      normalized = (x[..., :n] - p["observation_mean"]) / p["observation_std"]
      normalized = np.clip(normalized, -config["clip"], config["clip"])
      x = np.concatenate([normalized, x[..., n:]], axis=-1)
    if "memory/b" in p:
      memory = self._remember(x, memory)
      x = np.concatenate([x, memory[..., : int(number)]], axis=-1)
    return self._act(x), memory

  def _act(self, x: np.ndarray) -> np.ndarray:
    """Returns actions of what the network sees."""
    config = self.config
    num_hidden = len(config["hidden_layer_sizes"])
    activation = ACTIVATIONS[config["activation"]]
    if config.get("residual"):
      x = self._linear("layer_0", x)
      for i in range(num_hidden):
        wide = self._linear(
          f"expand_{i}", self._normalized(f"layer_norm_{i}", x))
        x = x + self._linear(f"project_{i}", activation(wide))
      last = self._normalized(f"layer_norm_{num_hidden}", x)
      outputs = self._linear("output", last)
    else:
      for i in range(num_hidden):
        x = self._linear(f"layer_{i}", x)
        if config["layer_norm"]:
          x = self._normalized(f"layer_{i}", x)
        x = activation(x)
      outputs = self._linear(f"layer_{num_hidden}", x)
    if config["policy"] == "categorical":
      return np.argmax(outputs, axis=-1)
    return np.tanh(outputs[..., : config["action_size"]])

  def _remember(self, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Returns the memory of Haiku's GRU or LSTM after an observation."""
    if "memory/w" in self.parameters:
      hidden, cell = np.split(memory, 2, axis=-1)
      gates = self._linear("memory", np.concatenate([x, hidden], axis=-1))
      i, g, f, o = np.split(gates, 4, axis=-1)
      cell = _sigmoid(f + 1) * cell + _sigmoid(i) * np.tanh(g)
      return np.concatenate([_sigmoid(o) * np.tanh(cell), cell], axis=-1)
    w_i, w_h, b = (self.parameters[f"memory/{name}"] for name in _GRU)
    size = w_h.shape[0]
    x = x @ w_i + b
    gates = _sigmoid(x[..., : -size] + memory @ w_h[:, : -size])
    z, r = np.split(gates, 2, axis=-1)
    new = np.tanh(x[..., -size:] + (r * memory) @ w_h[:, -size:])
    return (1 - z) * memory + z * new

  def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
    return x @ self.parameters[f"{name}/w"] + self.parameters[f"{name}/b"]

  def _normalized(self, name: str, x: np.ndarray) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    variance = (x**2).mean(axis=-1, keepdims=True)
    x = x / np.sqrt(variance + self.config["layer_norm_epsilon"])
    return (
      x * self.parameters[f"{name}/scale"] + self.parameters[f"{name}/offset"])


def load(path: str | os.PathLike[str]) -> Policy:
  """Reads a policy, with NumPy alone.

  Returns:
    The policy: observation [..., O] -> action [..., A].

  Raises:
    ValueError: if the file is damaged, or none that `export_policy` wrote.
  """
  with pathlib.Path(path).open("rb") as file:
    try:
      if not zipfile.is_zipfile(file):
        raise ValueError("it is no .npz file, or only a part of one")
      file.seek(0)
      arrays = dict(np.load(file, allow_pickle=False))
      config = json.loads(arrays.pop("config").item())
      if config["format"] != FORMAT:
        raise ValueError(
          f"its format is {config['format']} (of qdrl_haiku "
          f"{config.get('version')}), and this version reads {FORMAT}")
      policy = Policy(config, arrays)
      if not np.isfinite(policy(np.zeros(config["observation_size"]))).all():
        raise ValueError("it acts with numbers that are not finite")
    # A damaged file can make NumPy, zipfile and json raise nearly anything.
    except Exception as error:
      raise ValueError(
        f"{os.fspath(path)} can't be read as a policy: "
        f"{error or type(error).__name__}") from error
  return policy
