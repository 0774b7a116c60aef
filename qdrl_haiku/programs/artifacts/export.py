"""Writes policies as files for machines without JAX.

An .npz needs NumPy alone, see `numpy_policy`; an .onnx needs an ONNX runtime.
"""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import (
  __version__,
  files,
  learners,
  map_elites,
  networks,
  types,
)
from qdrl_haiku.programs.artifacts import numpy_policy
from qdrl_haiku.programs.artifacts.numpy_policy import Policy, load

__all__ = ["Policy", "export_policy", "load"]

# As `learners.statistics` and `hk.LayerNorm` have them; if they change,
# `export_policy` finds it out.
_CLIP = 10.0
_LAYER_NORM_EPSILON = 1e-5
# Largest difference of actions in float64. Rounding was seen to make up to
# 3e-14; a wrong activation, in newly initialised policies, 8e-4 and more.
_TOLERANCE = 1e-7
_NUM_PROBES = 1000
# Largest difference of actions in float32.
_ONNX_TOLERANCE = 1e-5
# ONNX's operator set in which LayerNorm and attention can be written. Runtimes
# of 2023 read it.
_OPSET = 18
_KINDS: dict[type, str] = {
  learners.SACState: "normal_tanh",
  learners.CrossQState: "normal_tanh",
  learners.XQCState: "normal_tanh",
  learners.PPOState: "normal_tanh",
  learners.TD3State: "deterministic_tanh"}


def export_policy(
  path: str | os.PathLike[str], learner: learners.Learner, state: types.State,
  *, info: dict[str, object] | None = None,
) -> None:
  """Writes the greedy policy of one agent as .npz, whole or not at all.

  First the exported policy and `learner.act_greedy` act on observations drawn
  at random, in float64, and must agree.

  Args:
    path: of the file, which must not be there yet.
    learner: the agent's.
    state: of one agent of `learners.sac`, `crossq`, `xqc`, `ppo` or `td3`, or
      with skills over one of them.
    info: JSON that is kept with the policy, such as where it comes from.

  Raises:
    ValueError: if the file is there already, if the agent's policy is of
      another kind, not finite, or acts otherwise, or if `info` is not JSON.
  """
  path = pathlib.Path(path)
  if path.exists():
    raise ValueError(f"path={path} is there already; name a new file.")
  with jax.enable_x64(True):
    state = jax.tree.map(_to_float64, jax.device_get(state))
    policy = _agreeing_policy(learner, state)
  record = {
    "format": numpy_policy.FORMAT,
    "version": __version__,
    **policy.config,
    "info": info}
  try:
    text = json.dumps(record, allow_nan=False)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"info={info!r} is not JSON ({error}); give plain numbers, strings, "
      "lists and dicts.") from error
  arrays = {
    name: np.asarray(x, np.float32) for name, x in policy.parameters.items()}
  path.parent.mkdir(parents=True, exist_ok=True)
  with (
    files.file_written_whole(path) as temporary,
    temporary.open("wb") as file,
  ):
    np.savez(file, config=np.asarray(text), **arrays)  # type: ignore[arg-type]


def export_onnx(
  path: str | os.PathLike[str], learner: learners.Learner, state: types.State,
  observation_size: int, *, opset: int | None = None,
  info: dict[str, object] | None = None,
) -> None:
  """Writes the greedy policy of one agent as .onnx, whole or not at all.

  Its input `observation` [batch, O] and its output `action` [batch, A] are
  float32. Before it's written ONNX's runtime and `learner.act_greedy` act on a
  thousand observations like those that the agent's statistics are of, and must
  agree.

  Args:
    path: of the file, which must not be there yet.
    learner: any.
    state: of one agent.
    observation_size: O, skills included.
    opset: ONNX's operator set, by default 18. Policies without LayerNorm can
      be written with one from 13 on, for older runtimes.
    info: JSON that is kept in the file's metadata.

  Raises:
    ValueError: if the file is there already, if the converter isn't installed
      or can't convert the policy, or if the policies disagree.
  """
  try:
    import jax2onnx
    import onnx
    import onnxruntime
  except ModuleNotFoundError as error:
    raise ValueError(
      f"path={path} needs {error.name}; pip install 'qdrl_haiku[onnx]'."
    ) from error
  path = pathlib.Path(path)
  if path.exists():
    raise ValueError(f"path={path} is there already; name a new file.")
  opset = _OPSET if opset is None else opset
  try:
    # jax2onnx 0.17 converts jitted functions within others, such as relu, by a
    # private name that jax 0.12 doesn't have; so nothing is jitted here.
    with jax.disable_jit():
      model = jax2onnx.to_onnx(
        lambda observation: learner.act_greedy(state, observation, ()).action,
        [("batch", observation_size)], input_names=["observation"],
        output_names=["action"], opset=opset)
    # Of a newer format than they need, older runtimes refuse files.
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    session = onnxruntime.InferenceSession(model.SerializeToString())
  except Exception as error:  # Of whatever type the converter raises.
    reason = " ".join(str(error).split())
    raise ValueError(
      f"path={path}: the policy can't be converted with opset {opset} "
      f"({reason}).") from error
  probes = np.asarray(_probes(state, observation_size), np.float32)
  (action,) = session.run(None, {"observation": probes})
  expected = learner.act_greedy(state, jnp.asarray(probes), ()).action
  difference = np.abs(action - expected).max()
  if not difference < _ONNX_TOLERANCE:
    raise ValueError(
      f"path={path}: ONNX's policy and learner.act_greedy differ by "
      f"{difference:.1g}.")
  model.metadata_props.add(key="info", value=json.dumps(info))
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.file_written_whole(path) as temporary:
    temporary.write_bytes(model.SerializeToString())


def export_repertoire(
  path: str | os.PathLike[str], learner: learners.Learner,
  repertoire: map_elites.Repertoire, *, info: dict[str, object] | None = None,
) -> int:
  """Writes all elites of a repertoire into a new directory.

  Each policy is an .npz; `index.json` lists their files, cells, fitness and
  descriptors, and has `info`.

  Args:
    path: of the directory, which must not be there yet.
    learner: that has made the genotypes.
    repertoire: on the host, with cells or without.
    info: JSON, such as where it comes from.

  Returns:
    The number of elites.

  Raises:
    ValueError: if the directory is there, or as `export_policy`.
  """
  path = pathlib.Path(path)
  if path.exists():
    raise ValueError(f"path={path} is there already; name a new directory.")
  elites = []
  for cell in np.flatnonzero(repertoire.occupied).tolist():
    genotype = jax.tree.map(lambda x: x[cell], repertoire.genotypes.genotype)  # noqa: B023
    file = f"{cell}.npz"
    export_policy(path / file, learner, learner.from_genotype(genotype))
    elites.append({
      "file": file, "cell": cell, "fitness": float(repertoire.fitness[cell]),
      "descriptor": np.asarray(repertoire.descriptors[cell]).tolist()})
  with files.file_written_whole(path / "index.json") as temporary:
    temporary.write_text(json.dumps({"info": info, "elites": elites}))
  return len(elites)


def _to_float64(x: np.ndarray) -> np.ndarray:
  """Returns an array whose float32 numbers are float64."""
  is_float = getattr(x, "dtype", None) == np.float32
  return np.asarray(x, np.float64) if is_float else x


def _probes(state: types.State, size: int) -> np.ndarray:
  """Draws observations like those that an agent's statistics are of."""
  probes = np.random.default_rng(0).normal(size=(_NUM_PROBES, size))
  rows = np.arange(_NUM_PROBES)
  probes[rows, rows % size] *= 20  # Of each one number, beyond what is clipped.

  def is_known(x: object) -> bool:
    return isinstance(x, learners.ObservationStatistics)

  for x in filter(is_known, jax.tree.leaves(state, is_leaf=is_known)):
    n = len(x.mean)
    probes[:, :n] = probes[:, :n] * np.asarray(x.std) + np.asarray(x.mean)
  return probes


def _agreeing_policy(learner: learners.Learner, state: types.State) -> Policy:
  """Returns the policy of a state, by the activation as which it acts."""
  policy = _policy_of(state)
  probes = _probes(state, policy.config["observation_size"])
  expected = np.asarray(
    jax.jit(learner.act_greedy)(state, probes, ()).action)
  differences = []
  for name in numpy_policy.ACTIVATIONS:
    policy = Policy(policy.config | {"activation": name}, policy.parameters)
    differences.append(np.max(np.abs(policy(probes) - expected)))
    if differences[-1] < _TOLERANCE:
      return policy
  raise ValueError(
    "the policy, with any known activation, and learner.act_greedy differ by "
    f"{min(differences):.1g} or more; give the learner that the agent was "
    "trained with.")


def _policy_of(state: types.State) -> Policy:
  """Returns the policy of a state, in the state's precision."""
  agent, outer = state, None
  if isinstance(state, learners.SkillState):
    agent, outer = state.agent, state.observation_statistics
  kind = _KINDS.get(type(agent))
  if kind is None:
    raise ValueError(
      f"state is a {type(agent).__name__}, whose policy is not known; only "
      "agents of learners.sac, crossq, xqc, ppo, td3, and with skills over "
      "them, can be exported.")
  statistics = agent.observation_statistics
  if outer is not None:
    if statistics is not None:
      raise ValueError(
        "state normalises observations twice, by the learner of skills and by "
        "its base learner; make that without normalize_observations.")
    statistics = outer
  try:
    arrays, sizes = _layers(agent.policy_params)
  except (AttributeError, KeyError, TypeError) as error:
    raise ValueError(
      "state's policy_params are not those of a policy of qdrl_haiku.networks; "
      "a policy of your own can't be exported.") from error
  if arrays["layer_0/w"].ndim != 2:
    raise ValueError(
      "state is that of a population; take one agent out of it: "
      "jax.tree.map(lambda x: x[0], state)")
  if statistics is not None:
    if isinstance(statistics.mean, dict):
      raise ValueError(
        f"the policy observes {', '.join(statistics.mean)}; only one that "
        "observes one vector can be exported.")
    arrays["observation_mean"] = np.asarray(statistics.mean)
    arrays["observation_std"] = np.asarray(statistics.std)
  config = {
    "observation_size": sizes[0],
    "action_size": sizes[-1] // numpy_policy.OUTPUTS_PER_ACTION[kind],
    "hidden_layer_sizes": sizes[1:-1],
    "activation": next(iter(numpy_policy.ACTIVATIONS)),
    "layer_norm": "layer_0/scale" in arrays,
    "layer_norm_epsilon": _LAYER_NORM_EPSILON,
    "num_normalized": len(arrays.get("observation_mean", ())),
    "clip": _CLIP,
    "policy": kind,
    **({"residual": True} if "project_0/w" in arrays else {})}
  if not all(np.isfinite(x).all() for x in arrays.values()):
    raise ValueError("state has numbers that are not finite; take another.")
  return Policy(config, arrays)


def _layers(params: types.Params) -> tuple[dict[str, np.ndarray], list[int]]:
  """Returns a policy's arrays by their names in the file, and layers' sizes."""
  if isinstance(params, networks.Variables):
    params = networks.without_batch_norm(params)
  num_hidden = sum(name.startswith("policy/linear_") for name in params)
  num_blocks = sum(name.startswith("policy/project_") for name in params)
  modules = {"policy/output": f"layer_{num_hidden}"}
  for i in range(num_hidden):
    modules |= {
      f"policy/linear_{i}": f"layer_{i}", f"policy/layer_norm_{i}": f"layer_{i}"
    }
  outputs = [f"layer_{i}" for i in range(num_hidden + 1)]
  if num_blocks:
    modules = {name: name.rpartition("/")[2] for name in params}
    modules["policy/linear_0"] = "layer_0"
    outputs = [*(f"project_{i}" for i in range(num_blocks)), "output"]
  arrays = {
    f"{modules[module]}/{name}": np.asarray(x)
    for module, values in params.items()
    for name, x in values.items()}
  sizes = [arrays[f"{name}/w"].shape[-1] for name in outputs]
  return arrays, [arrays["layer_0/w"].shape[0], *sizes]
