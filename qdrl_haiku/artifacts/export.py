"""Policies as files for machines without JAX: one `.npz`, no pickle in it.

    layer_<i>/w [I, J], layer_<i>/b [J]        of each layer, the output's last
    layer_<i>/scale [J], layer_<i>/offset [J]  of hidden layers, with LayerNorm
    observation_mean [n], observation_std [n]  with normalisation
    config, JSON: what stands below, beside format and version

    of N residual blocks (`networks.ResidualMLP`), instead of the layers above:
    layer_0, expand_<i>, project_<i>, output with w and b, and layer_norm_<i>,
    the last of them before the output, with scale and offset

    observation_size, action_size, hidden_layer_sizes, activation
    layer_norm, layer_norm_epsilon
    residual        true with residual blocks, else absent
    num_normalized  n: how many numbers of an observation are normalised, from
                    the first on; the others, such as a skill, are left alone
    clip            normalised numbers lie in [-clip, clip]
    policy          "normal_tanh": outputs are A locations, then A raw scales;
                    "deterministic_tanh": A outputs. The greedy action is the
                    tanh of the first A in either case.
    info            what was given to `save`

Numbers are float32. `load` needs NumPy alone, and so does a copy of this file
without the rest of the package; README.md has a reader of thirty lines.
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

# JAX, and what needs it, is imported where it is used: `load` does without.
if TYPE_CHECKING:
  from qdrl_haiku import learners, types

_FORMAT = 1
_PACKAGE = "qdrl_haiku"
_OUTPUTS_PER_ACTION = {"normal_tanh": 2, "deterministic_tanh": 1}
# As `learners.statistics`, `hk.LayerNorm` and `networks.ResidualMLP` have them;
# if they change, `save` finds it out.
_CLIP = 10.0
_LAYER_NORM_EPSILON = 1e-5
_EXPANSION = 4
# Of actions in float64, where rounding was seen to make differences of up to
# 3e-14, and another activation, in policies as they are made, of 8e-4 and more.
_TOLERANCE = 1e-7
_NUM_PROBES = 256
_SETTINGS = (
  "observation_size", "action_size", "hidden_layer_sizes", "activation",
  "layer_norm", "layer_norm_epsilon", "num_normalized", "clip", "policy",
)  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
  "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
  # The approximation that `jax.nn.gelu` is by default.
  "gelu": lambda x: x
  * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
  "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
  "relu": lambda x: np.maximum(x, 0),
  # Beyond 80, exp would overflow in float32, and the result is 0 anyway.
  "swish": lambda x: x / (1 + np.exp(np.minimum(-x, 80))),
  "tanh": np.tanh,
}


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
    """Acts as `learner.act_greedy` does.

    Args:
      observation: [..., O], as the environment gave it; with the skill at its
        end, if the agent had skills.

    Returns:
      Actions [..., A] in [-1, 1], NaN where the observation has a NaN.

    Raises:
      ValueError: if the last axis of `observation` is not of size O.
    """
    config, p = self.config, self.parameters
    x = np.asarray(observation, p["layer_0/w"].dtype)
    if x.ndim < 1 or x.shape[-1] != config["observation_size"]:
      raise ValueError(
        f"observation has shape {x.shape}: the last axis must hold the "
        f"policy's {config['observation_size']} numbers"
      )
    n = config["num_normalized"]
    if n:
      normalized = (x[..., :n] - p["observation_mean"]) / p["observation_std"]
      normalized = np.clip(normalized, -config["clip"], config["clip"])
      x = np.concatenate([normalized, x[..., n:]], axis=-1)
    x = self._through_blocks(x) if _is_residual(config) else self._through(x)
    return np.tanh(x[..., : config["action_size"]])

  def _through(self, x: np.ndarray) -> np.ndarray:
    """Returns what the layers of a perceptron make of inputs."""
    num_hidden = len(self.config["hidden_layer_sizes"])
    for i in range(num_hidden):
      x = self._linear(f"layer_{i}", x)
      if self.config["layer_norm"]:
        x = self._normalized(f"layer_{i}", x)
      x = _ACTIVATIONS[self.config["activation"]](x)
    return self._linear(f"layer_{num_hidden}", x)

  def _through_blocks(self, x: np.ndarray) -> np.ndarray:
    """Returns what residual blocks make of inputs."""
    num_blocks = len(self.config["hidden_layer_sizes"])
    x = self._linear("layer_0", x)
    for i in range(num_blocks):
      wide = self._linear(
        f"expand_{i}", self._normalized(f"layer_norm_{i}", x)
      )
      x = x + self._linear(
        f"project_{i}", _ACTIVATIONS[self.config["activation"]](wide)
      )
    last = self._normalized(f"layer_norm_{num_blocks}", x)
    return self._linear("output", last)

  def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
    return x @ self.parameters[f"{name}/w"] + self.parameters[f"{name}/b"]

  def _normalized(self, name: str, x: np.ndarray) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    variance = (x**2).mean(axis=-1, keepdims=True)
    x = x / np.sqrt(variance + self.config["layer_norm_epsilon"])
    return (
      x * self.parameters[f"{name}/scale"] + self.parameters[f"{name}/offset"]
    )


def save(
  path: str | os.PathLike[str],
  learner: "learners.Learner",
  state: "types.State",
  *,
  activation: str | None = None,
  info: dict[str, Any] | None = None,
) -> None:
  """Writes the greedy policy of one agent, whole or not at all.

  All but the activation's name is read off the state. Before anything is
  written, the exported policy and `learner.act_greedy` act on observations
  drawn at random, in float64, and must agree.

  Args:
    path: of the file, which must not be there yet.
    learner: the agent's.
    state: of one agent of `learners.sac`, `crossq`, `xqc` or `td3`, or of
      `learners.diayn` over one of them.
    activation: of the policy's hidden layers, as its learner was made with; by
      default the one is taken with which the policy acts as the agent does.
    info: JSON that is kept with the policy, such as where it comes from.

  Raises:
    ValueError: if the file is there already, if the agent's policy is of
      another kind, is not finite, or has another activation, or if `info` is
      not JSON.
  """
  import importlib.metadata

  import jax

  path = pathlib.Path(path)
  if path.exists():
    raise ValueError(f"path={path} is there already; name a new file.")
  with jax.enable_x64(True):
    state = jax.tree.map(_to_float64, jax.device_get(state))
    policy = _agreeing_policy(learner, state, activation)
  record = {
    "format": _FORMAT,
    "version": importlib.metadata.version(_PACKAGE),
    **policy.config,
    "info": info,
  }
  try:
    text = json.dumps(record, allow_nan=False)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"info={info!r} is not JSON ({error}); give plain numbers, strings, "
      "lists and dicts."
    ) from error
  arrays = {
    name: np.asarray(x, np.float32) for name, x in policy.parameters.items()
  }
  from qdrl_haiku import files  # Here: a copy of this file can read alone.

  path.parent.mkdir(parents=True, exist_ok=True)
  with files.written_whole(path) as temporary, temporary.open("wb") as file:
    np.savez(file, config=np.asarray(text), **arrays)  # type: ignore[arg-type]


def load(path: str | os.PathLike[str]) -> Policy:
  """Reads a policy, with NumPy alone.

  Args:
    path: of a file that `save` wrote.

  Returns:
    The policy: observation [..., O] -> action [..., A].

  Raises:
    ValueError: if the file is damaged or not a policy.
  """
  with pathlib.Path(path).open("rb") as file:
    try:
      if not zipfile.is_zipfile(file):
        raise ValueError("it is no .npz file, or only a part of one")
      file.seek(0)
      arrays = dict(np.load(file, allow_pickle=False))
      config = json.loads(arrays.pop("config").item())
      if config["format"] != _FORMAT:
        raise ValueError(
          f"its format is {config['format']} (of {_PACKAGE} "
          f"{config.get('version')}), and this version reads {_FORMAT}"
        )
      _check(config, arrays)
    # A damaged file can make NumPy, zipfile and json raise nearly anything.
    except Exception as error:
      raise ValueError(
        f"{os.fspath(path)} can't be read as a policy: "
        f"{error or type(error).__name__}"
      ) from error
  return Policy(config, arrays)


def _is_residual(config: dict[str, Any]) -> bool:
  return config.get("residual") is True


def _to_float64(x: Any) -> Any:
  is_float = getattr(x, "dtype", None) == np.float32
  return np.asarray(x, np.float64) if is_float else x


def _policy_of(state: Any, activation: str) -> Policy:
  """Returns the policy that a state holds, in the state's precision."""
  from qdrl_haiku import learners

  agent, outer = state, None
  if isinstance(state, learners.DIAYNState):
    agent, outer = state.agent, state.observation_statistics
  soft = learners.SACState | learners.CrossQState | learners.XQCState
  if isinstance(agent, soft):
    kind = "normal_tanh"
  elif isinstance(agent, learners.TD3State):
    kind = "deterministic_tanh"
  else:
    raise ValueError(
      f"state is a {type(agent).__name__}, whose policy is not known; only "
      "agents of learners.sac, crossq, xqc, td3 and diayn can be exported."
    )
  inner = agent.observation_statistics
  if outer is not None and inner is not None:
    raise ValueError(
      "state normalises observations twice, by DIAYN and by its base learner; "
      "make the base learner without normalize_observations."
    )
  try:
    arrays, sizes = _layers(agent.policy_params)
  except (AttributeError, KeyError, TypeError) as error:
    raise ValueError(
      "state's policy_params are not those of a policy of qdrl_haiku.networks; "
      "a policy of your own can't be exported."
    ) from error
  if arrays["layer_0/w"].ndim != 2:
    raise ValueError(
      "state is that of a population; take one agent out of it: "
      "jax.tree.map(lambda x: x[0], state)"
    )
  statistics = inner if outer is None else outer
  if statistics is not None:
    arrays["observation_mean"] = np.asarray(statistics.mean)
    arrays["observation_std"] = np.asarray(statistics.std)
  config = {
    "observation_size": sizes[0],
    "action_size": sizes[-1] // _OUTPUTS_PER_ACTION[kind],
    "hidden_layer_sizes": sizes[1:-1],
    "activation": activation,
    "layer_norm": "layer_0/scale" in arrays,
    "layer_norm_epsilon": _LAYER_NORM_EPSILON,
    "num_normalized": len(arrays.get("observation_mean", ())),
    "clip": _CLIP,
    "policy": kind,
  }
  if "project_0/w" in arrays:
    config["residual"] = True
  _check(config, arrays)
  return Policy(config, arrays)


def _layers(params: Any) -> tuple[dict[str, np.ndarray], list[int]]:
  """Returns a policy's arrays by their names in the file, and layers' sizes."""
  num_hidden = sum(name.startswith("policy/linear_") for name in params)
  num_blocks = sum(name.startswith("policy/project_") for name in params)
  modules = {"policy/output": f"layer_{num_hidden}"}
  for i in range(num_hidden):
    modules |= {
      f"policy/linear_{i}": f"layer_{i}", f"policy/layer_norm_{i}": f"layer_{i}"
    }  # fmt: skip
  if num_blocks:
    modules = {name: name.rpartition("/")[2] for name in params}
    modules["policy/linear_0"] = "layer_0"
  arrays = {
    f"{modules[module]}/{name}": np.asarray(x)
    for module, values in params.items()
    for name, x in values.items()
  }
  hidden = [f"project_{i}" for i in range(num_blocks)]
  last = "output" if num_blocks else f"layer_{num_hidden}"
  hidden = hidden or [f"layer_{i}" for i in range(num_hidden)]
  sizes = [arrays[f"{name}/w"].shape[-1] for name in (*hidden, last)]
  return arrays, [arrays["layer_0/w"].shape[0], *sizes]


def _agreeing_policy(
  learner: Any, state: Any, activation: str | None
) -> Policy:
  """Returns the policy that a state holds, if it acts as the learner does.

  Args:
    learner: the agent's.
    state: of one agent.
    activation: by name, or None for any.

  Returns:
    The policy.

  Raises:
    ValueError: if they don't act alike.
  """
  import jax

  names = list(_ACTIVATIONS) if activation is None else [activation]
  policy = _policy_of(state, names[0])
  rng = np.random.default_rng(0)
  probes = rng.normal(size=(_NUM_PROBES, policy.config["observation_size"]))
  probes[::2] *= 100.0  # Beyond what is clipped, too.
  n = policy.config["num_normalized"]
  if n:
    probes[:, :n] *= policy.parameters["observation_std"]
    probes[:, :n] += policy.parameters["observation_mean"]
  expected = np.asarray(jax.jit(learner.act_greedy)(state, probes))
  differences = {}
  for name in names:
    config = policy.config | {"activation": name}
    policy = dataclasses.replace(policy, config=config)
    differences[name] = np.max(np.abs(policy(probes) - expected))
    if differences[name] < _TOLERANCE:
      return policy
  nearest = min(differences, key=lambda name: differences[name])
  raise ValueError(
    f"the policy with activation={nearest!r} and learner.act_greedy differ by "
    f"up to {differences[nearest]:.1g}; give the activation, and the learner, "
    "that the agent was trained with."
  )


def _check(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
  """Raises ValueError unless the arrays are those that the config describes."""
  for key in _SETTINGS:
    if key not in config:
      raise ValueError(f"config has no {key!r}")
  for key, known in (
    ("activation", _ACTIVATIONS), ("policy", _OUTPUTS_PER_ACTION)
  ):  # fmt: skip
    if config[key] not in known:
      raise ValueError(
        f"{key}={config[key]!r} is unknown; known are {', '.join(known)}"
      )
  hidden, n = config["hidden_layer_sizes"], config["num_normalized"]
  num_outputs = _OUTPUTS_PER_ACTION[config["policy"]] * config["action_size"]
  sizes = [config["observation_size"], *hidden, num_outputs]
  if _is_residual(config):
    shapes = _shapes_of_blocks(sizes)
  else:
    shapes = _shapes_of_layers(sizes, config["layer_norm"])
  if n:
    shapes |= {"observation_mean": (n,), "observation_std": (n,)}
  for name in sorted(shapes.keys() | arrays.keys()):
    expected = shapes.get(name, "absent")
    found = arrays[name].shape if name in arrays else "absent"
    if found != expected:
      raise ValueError(f"{name} is {found} where it should be {expected}")
    if not np.isfinite(arrays[name]).all():
      raise ValueError(f"{name} has numbers that are not finite")
  if n and not (arrays["observation_std"] > 0).all():
    raise ValueError("observation_std has numbers that are not above 0")


def _shapes_of_layers(
  sizes: list[int], layer_norm: bool
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a perceptron's arrays, of sizes of all layers."""
  shapes: dict[str, tuple[int, ...]] = {}
  for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
    names = ["b", "scale", "offset"]
    if i == len(sizes) - 2 or not layer_norm:
      names = ["b"]
    shapes[f"layer_{i}/w"] = (rows, columns)
    shapes |= {f"layer_{i}/{name}": (columns,) for name in names}
  return shapes


def _shapes_of_blocks(sizes: list[int]) -> dict[str, tuple[int, ...]]:
  """Returns the same of residual blocks, each of which has one of the sizes."""
  width, num_blocks = sizes[1], len(sizes) - 2
  layers = {"layer_0": (sizes[0], width), "output": (width, sizes[-1])}
  for i in range(num_blocks):
    layers[f"expand_{i}"] = (width, _EXPANSION * width)
    layers[f"project_{i}"] = (_EXPANSION * width, sizes[i + 1])
  shapes: dict[str, tuple[int, ...]] = {}
  for name, shape in layers.items():
    shapes |= {f"{name}/w": shape, f"{name}/b": shape[1:]}
  for i in range(num_blocks + 1):
    shapes |= {f"layer_norm_{i}/{x}": (width,) for x in ("scale", "offset")}
  return shapes
