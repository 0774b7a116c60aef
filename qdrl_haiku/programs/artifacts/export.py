"""Writes policies as files for machines without JAX.

An .npz needs NumPy alone, see `numpy_policy`; an .onnx needs an ONNX runtime.
"""

import importlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import (
  __version__,
  files,
  learners,
  map_elites,
  networks,
  specs,
  trees,
  types,
)
from qdrl_haiku.programs.artifacts import numpy_policy
from qdrl_haiku.programs.artifacts.numpy_policy import Policy, load

if TYPE_CHECKING:
  import onnx
  import onnxruntime

__all__ = ["Policy", "export_policy", "load"]

# Largest difference of actions in float64. Rounding was seen to make up to
# 3e-14; another activation, in newly initialised policies, 8e-4 and more.
_TOLERANCE = 1e-7
_NUM_PROBES = 1000
# Largest difference of actions in float32.
_ONNX_TOLERANCE = 1e-5
# ONNX's operator set in which LayerNorm and attention can be written. Runtimes
# of 2023 read it.
_OPSET = 18


def export_policy(
  path: str | os.PathLike[str], learner: learners.Learner, state: types.State,
  *, info: dict[str, object] | None = None,
) -> None:
  """Writes the greedy policy of one agent as .npz, whole or not at all.

  First the exported policy and `learner.act_greedy` act on observations drawn
  at random, in float64, and must agree.

  Args:
    path: of the file, which must not be there yet.
    learner: the agent's, whose `policy` tells of which parts it is.
    state: of one agent.
    info: JSON that is kept with the policy, such as where it comes from.

  Raises:
    ValueError: if the file is there already, if the agent's policy isn't told,
      not finite, or acts otherwise, or if `info` is not JSON.
  """
  path = _new(path)
  with jax.enable_x64(True):
    state = jax.tree.map(
      lambda x: np.asarray(x, np.float64)
      if getattr(x, "dtype", None) == np.float32 else x,
      jax.device_get(state))
    policy = _agreeing_policy(learner, state)
  record = {
    "format": numpy_policy.FORMAT, "version": __version__, **policy.config,
    "info": info}
  try:
    text = json.dumps(record, allow_nan=False)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"info={info!r} is not JSON ({error}); give plain numbers, strings, "
      "lists and dicts.") from error
  arrays = {
    name: np.asarray(x, np.float32) for name, x in policy.parameters.items()}
  with _written(path) as temporary, temporary.open("wb") as file:
    np.savez(file, config=np.asarray(text), **arrays)  # type: ignore[arg-type]


def export_onnx(
  path: str | os.PathLike[str], learner: learners.Learner, state: types.State,
  observation: int | specs.Observation, *, opset: int | None = None,
  info: dict[str, object] | None = None,
) -> None:
  """Writes the greedy policy of one agent as .onnx, whole or not at all.

  Its input `observation` [batch, O] and its output `action` [batch, A] are
  float32. Each array of an agent's memory, if greedy actions change it, is an
  input `memory/<path>` too, [batch, ...], at first `learner.memory()`, then the
  output `next_memory/<path>` of the step before. Before it's written ONNX's
  runtime and `learner.act_greedy` act on a thousand observations like those
  that the agent's statistics are of, and must agree.

  Args:
    path: of the file, which must not be there yet.
    learner: any.
    state: of one agent.
    observation: O, skills included, or the spec of observations; of several
      arrays each is an input `observation/<path>`.
    opset: ONNX's operator set, by default 18. Policies without LayerNorm can
      be written with one from 13 on, for older runtimes.
    info: JSON that is kept in the file's metadata, as `info`, and beside the
      file in one of its name that ends in .json.

  Raises:
    ValueError: if a file is there already, if the converter isn't installed
      or can't convert the policy, or if the policies disagree.
  """
  try:
    for module in ("jax2onnx", "onnx", "onnxruntime"):
      importlib.import_module(module)
  except ModuleNotFoundError as error:
    raise ValueError(
      f"path={path} needs {error.name}; pip install 'qdrl_haiku[onnx]'."
    ) from error
  path = _new(path)
  beside = path.with_suffix(".json")
  if info is not None:
    _new(beside)
  opset = _OPSET if opset is None else opset
  seen = {
    "observation": specs.observation_spec(observation),
    "memory": learner.memory()}
  everything = dict(trees.named_tree_leaves(seen))
  kept: set[str] = set()  # Memories that are handed on, such as critics'.

  def act(*leaves: types.Array) -> tuple[types.Array, ...]:
    told = everything | dict(zip(inputs, leaves, strict=True))
    given = jax.tree.unflatten(jax.tree.structure(seen), told.values())
    acted = learner.act_greedy(state, given["observation"], given["memory"])
    after = trees.named_tree_leaves({"memory": acted.memory})
    kept.update(name for name, x in after if x is told[name])
    return acted.action, *(x for name, x in after if name not in kept)

  inputs = everything
  jax.eval_shape(act, *(specs.shapes(x, 1) for x in inputs.values()))
  inputs = {name: x for name, x in everything.items() if name not in kept}
  outputs = [
    "action", *(f"next_{name}" for name in inputs if name.startswith("memory"))]
  try:
    model, session = _to_onnx(act, inputs, outputs, opset)
  except Exception as error:  # Of whatever type the converter raises.
    reason = " ".join(str(error).split())
    raise ValueError(
      f"path={path}: the policy can't be converted with opset {opset} "
      f"({reason}).") from error
  probes = {
    name: np.asarray(x, inputs[name].dtype)
    for name, x in _probes(state, inputs).items()}
  difference = max(
    np.abs(np.subtract(x, y, dtype=np.float64)).max()
    for x, y in zip(
      session.run(outputs, probes), act(*map(jnp.asarray, probes.values())),
      strict=True))
  if not difference < _ONNX_TOLERANCE:
    raise ValueError(
      f"path={path}: ONNX's policy and learner.act_greedy differ by "
      f"{difference:.1g}.")
  model.metadata_props.add(key="info", value=json.dumps(info))
  if info is not None:
    with _written(beside) as temporary:
      temporary.write_text(json.dumps(info, indent=1) + "\n")
  with _written(path) as temporary:
    temporary.write_bytes(model.SerializeToString())


def _to_onnx(
  act: Callable[..., tuple[types.Array, ...]], inputs: types.Tree,
  outputs: list[str], opset: int,
) -> tuple["onnx.ModelProto", "onnxruntime.InferenceSession"]:
  """Converts a function of arrays by name, and loads what comes of it."""
  import jax2onnx
  import onnx
  import onnxruntime

  # jax2onnx 0.17 converts jitted functions within others, such as relu, by a
  # private name that jax 0.12 doesn't have; so nothing is jitted here.
  with jax.disable_jit():
    model = jax2onnx.to_onnx(
      act, [
        jax.ShapeDtypeStruct(("batch", *x.shape), x.dtype)
        for x in inputs.values()],
      input_names=list(inputs), output_names=outputs, opset=opset)
  # Of a newer format than they need, older runtimes refuse files.
  model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
  return model, onnxruntime.InferenceSession(model.SerializeToString())


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
  """
  path, elites = _new(path, "directory"), []
  for cell in np.flatnonzero(repertoire.occupied).tolist():
    genotype = jax.tree.map(lambda x: x[cell], repertoire.genotypes.genotype)  # noqa: B023
    file = f"{cell}.npz"
    export_policy(path / file, learner, learner.from_genotype(genotype))
    elites.append({
      "file": file, "cell": cell, "fitness": float(repertoire.fitness[cell]),
      "descriptor": np.asarray(repertoire.descriptors[cell]).tolist()})
  with _written(path / "index.json") as temporary:
    temporary.write_text(json.dumps({"info": info, "elites": elites}))
  return len(elites)


def _new(path: str | os.PathLike[str], kind: str = "file") -> pathlib.Path:
  """Returns a path at which nothing is yet."""
  path = pathlib.Path(path)
  if path.exists():
    raise ValueError(f"path={path} is there already; name a new {kind}.")
  return path


def _written(path: pathlib.Path) -> AbstractContextManager[pathlib.Path]:
  """Lets a file be written whole, in a folder that may not be there yet."""
  path.parent.mkdir(parents=True, exist_ok=True)
  return files.file_written_whole(path)


def _probes(
  state: types.State, inputs: Mapping[str, types.Array | jax.ShapeDtypeStruct]
) -> dict[str, np.ndarray]:
  """Draws observations like those that an agent's statistics are of."""
  rng, rows = np.random.default_rng(0), np.arange(_NUM_PROBES)

  def draw(x: types.Array | jax.ShapeDtypeStruct) -> np.ndarray:
    size = math.prod(x.shape)
    if not specs.is_float(x):
      return rng.integers(0, 2, (_NUM_PROBES, *x.shape)).astype(x.dtype)
    drawn = rng.normal(size=(_NUM_PROBES, size))
    drawn[rows, rows % size] *= 20  # One number, beyond what is clipped.
    return drawn.reshape(_NUM_PROBES, *x.shape)

  def is_known(x: object) -> bool:
    return isinstance(x, learners.ObservationStatistics)

  probes = {name: draw(x) for name, x in inputs.items()}
  for x in filter(is_known, jax.tree.leaves(state, is_leaf=is_known)):
    means, stds = (
      trees.named_tree_leaves({"observation": y}) for y in (x.mean, x.std))
    for (name, mean), (_, std) in zip(means, stds, strict=True):
      # Skills have no statistics; of a window, single observations are drawn.
      shape = np.minimum(probes[name].shape[1:], mean.shape)
      places = tuple(map(slice, shape))
      seen = probes[name][(slice(None), *places)]
      seen[...] = seen * np.asarray(std)[places] + np.asarray(mean)[places]
  return probes


def _agreeing_policy(learner: learners.Learner, state: types.State) -> Policy:
  """Returns the policy of a state, in its precision, as which it acts."""
  parts = learner.policy and learner.policy(state)
  remembers = bool(jax.tree.leaves(learner.memory()))
  if parts is None or remembers != (parts.memory != "none"):
    raise ValueError(
      "the learner doesn't say of which parts its policy is (Learner.policy), "
      "such as one with a network of your own, or that observes other than one "
      "flat vector, or has a memory of your own; export it as .onnx.")
  layers, distribution, statistics, memory = parts
  arrays = {name: np.asarray(x) for name, x in layers.arrays.items()}
  if arrays["layer_0/w"].ndim != 2:
    raise ValueError(
      "state is that of a population; take one agent out of it: "
      "jax.tree.map(lambda x: x[0], state)")
  if statistics is not None:
    arrays["observation_mean"] = np.asarray(statistics.mean)
    arrays["observation_std"] = np.asarray(statistics.std)
  if not all(np.isfinite(x).all() for x in arrays.values()):
    raise ValueError("state has numbers that are not finite; take another.")
  first, *hidden, last = layers.sizes
  kind, _, number = memory.partition(":")
  if kind == "window":
    first //= int(number)
  elif number:
    first -= int(number)
  policy = Policy({
    "observation_size": first,
    "action_size": last // numpy_policy.OUTPUTS_PER_ACTION[distribution],
    "hidden_layer_sizes": hidden, "activation": layers.activation,
    "layer_norm": layers.layer_norm,
    "layer_norm_epsilon": networks.LAYER_NORM_EPSILON,
    "num_normalized": len(arrays.get("observation_mean", ())),
    "clip": learners.LARGEST_NORMALIZED, "policy": distribution,
    **({"residual": True} if layers.residual else {}),
    **({"memory": memory} if number else {})}, arrays)
  seen = {"observation": jax.ShapeDtypeStruct((first,), jnp.float32)}
  probes = _probes(state, seen)["observation"]
  acting: types.Tree = jax.tree.map(
    lambda x: jnp.tile(x, (_NUM_PROBES, *[1] * x.ndim)), learner.memory())
  own, act, difference = None, jax.jit(learner.act_greedy), 0.0
  for _ in range(2 if number else 1):  # With new memories, then with others.
    action, acting, _ = act(state, probes, acting)
    found, own = policy.step(probes, own)
    difference += np.max(np.abs(found - np.asarray(action)))
  if not difference < _TOLERANCE:
    raise ValueError(
      "the policy as learner.policy tells it, and learner.act_greedy differ by "
      f"{difference:.1g}; give the learner that the agent was trained with.")
  return policy
