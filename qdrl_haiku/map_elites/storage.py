"""Repertoires as files: one `.npz` that NumPy alone can read, no pickle in it.

    fitness [C], -inf where empty    descriptors [C, D]
    centroids of the cells, unless there are none
    cells [N], which are occupied    num_outside []
    genotypes/<path/of/leaf> [N, ...], where row i is of cells[i]
    extras/<path/of/leaf> [N, ...], in the same order
    config, JSON: format, version, container, tessellation, genotype, extras,
      config

A leaf of a dtype that NumPy doesn't know, such as bfloat16, is stored as
unsigned integers of the same bits; its dtype is in `config`.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import __version__, files, trees
from qdrl_haiku.map_elites import tessellation as tessellation_lib
from qdrl_haiku.types import Record, Tree

_FORMAT = 1
_TREES = ("genotypes", "extras")
_PACKAGE = "qdrl_haiku"


def store_repertoire(
  fields: Record, path: str | os.PathLike[str],
  config: Record | None = None,
) -> None:
  """Writes a repertoire's `fields`, by name, to `path`; see `Repertoire.save`.

  `config` is any JSON to be stored beside them.
  """
  path, tessellation = pathlib.Path(path), fields["tessellation"]
  fitness = np.asarray(fields["fitness"])
  cells = np.flatnonzero(fitness > -np.inf).astype(np.int32)
  settings = dataclasses.asdict(tessellation)
  record: Record = {
    "format": _FORMAT, "version": __version__,
    "container": fields["container"], "config": config}
  arrays = {
    "fitness": fitness, "descriptors": np.asarray(fields["descriptors"]),
    "num_outside": np.asarray(fields["num_outside"]), "cells": cells}
  cells_of = settings.get("grid") or settings
  if "centroids" in cells_of:
    arrays["centroids"] = np.asarray(cells_of.pop("centroids"))
  elif isinstance(tessellation, tessellation_lib.Grid):
    arrays["centroids"] = np.asarray(tessellation.centroids)
  record["tessellation"] = {"kind": tessellation.kind, **settings}
  stored, dtypes = {name: fields[name] for name in _TREES}, {}
  for name, leaf in trees.tree_leaves_by_name(stored).items():
    rows = np.asarray(leaf)[cells]
    if rows.dtype.isbuiltin != 1:
      dtypes[name] = rows.dtype.name
      rows = rows.view(f"uint{8 * rows.dtype.itemsize}")
    arrays[name] = rows
  genotype, extras = (_describe(_names(stored)[name]) for name in _TREES)
  record["genotype"] = {"structure": genotype, "dtypes": dtypes}
  record["extras"] = extras
  arrays["config"] = np.asarray(json.dumps(record))
  path.parent.mkdir(parents=True, exist_ok=True)
  with (
    files.file_written_whole(path) as temporary,
    temporary.open("wb") as file,
  ):
    np.savez(file, **arrays)  # type: ignore[arg-type]


def load_stored_repertoire(
  path: str | os.PathLike[str], like: Tree = None, container: str | None = None
) -> Record:
  """Reads a repertoire's fields, by name, from `path`; see `Repertoire.load`.

  `like` is an example of a genotype, or None for dicts and lists as they were
  stored; another `container` than this one is refused, if it's given.
  """
  with open_stored_repertoire(path) as (arrays, record):
    if container not in (None, record["container"]):
      raise ValueError(
        f"it is of the container {record['container']}, not {container}")
    leaves: dict[str, dict[str, np.ndarray]] = {name: {} for name in _TREES}
    for name in arrays:
      if (tree := name.split("/")[0]) in leaves:
        rows = arrays[name]
        dtype = record["genotype"]["dtypes"].get(name, rows.dtype)
        rows = rows.view(jnp.dtype(dtype))
        shape = arrays["fitness"].size, *rows.shape[1:]
        leaves[tree][name] = np.zeros(shape, rows.dtype)
        leaves[tree][name][arrays["cells"]] = rows
    if like is None:
      structure = record["genotype"]["structure"]
      genotypes = _rebuild(structure, leaves["genotypes"])
    else:
      genotypes = _arrange(like, leaves["genotypes"])
    fields = {
      "genotypes": genotypes,
      "extras": _rebuild(record["extras"], leaves["extras"]),
      **{x: arrays[x] for x in ("fitness", "descriptors", "num_outside")}}
    return {
      **jax.tree.map(jnp.asarray, fields),
      "tessellation": make_stored_tessellation(record, arrays),
      "container": record["container"]}


def read_stored_repertoire_config(
  path: str | os.PathLike[str],
) -> Record | None:
  """Reads what was given to `Repertoire.save` as `config`."""
  with open_stored_repertoire(path) as (_, record):
    return record["config"]


def stored_repertoire_extent(
  descriptors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns bounds around descriptors [N, D] in a space without bounds."""
  if not len(descriptors):
    size = descriptors.shape[1]
    return np.zeros(size), np.ones(size)
  lower, upper = descriptors.min(axis=0), descriptors.max(axis=0)
  width = np.where(upper > lower, upper - lower, np.abs(lower) + 1)
  return lower - 0.02 * width, upper + 0.02 * width


@contextlib.contextmanager
def open_stored_repertoire(
  path: str | os.PathLike[str],
) -> Iterator[tuple[Any, Record]]:
  """Opens a file to read some of its arrays, whatever its genotypes are."""
  with pathlib.Path(path).open("rb") as file:
    try:
      if not zipfile.is_zipfile(file):
        raise ValueError("it is no .npz file, or only a part of one")
      file.seek(0)
      arrays = np.load(file, allow_pickle=False)
      record = json.loads(arrays["config"].item())
      if record["format"] != _FORMAT:
        raise ValueError(
          f"its format is {record['format']}, and this version"
          f" ({__version__}) reads {_FORMAT}")
      yield arrays, _current_record(record)
    # A damaged file can make NumPy, zipfile and json raise nearly anything.
    except Exception as error:
      raise ValueError(
        f"{os.fspath(path)} can't be read as a repertoire:"
        f" {error or type(error).__name__}") from error


def _current_record(record: Record) -> Record:
  """Returns a file's record; 0.4 knew containers by their tessellations."""
  cells = record["tessellation"]
  name = {"none": "dominated_novelty"}.get(cells["kind"], "cells")
  name = cells.get("repertoire", name)
  return {"container": name, "extras": _describe({})} | record


def make_stored_tessellation(
  record: Record, arrays: Mapping[str, np.ndarray]
) -> tessellation_lib.Tessellation:
  """Returns the tessellation that a file describes."""
  settings = dict(record["tessellation"])
  kind = settings.pop("kind")
  cells: Any = settings if kind in ("grid", "cvt") else settings["grid"]
  if cells and "shape" in cells:
    cells = tessellation_lib.Grid(**cells)
  elif cells:
    cells = tessellation_lib.CVT(jnp.asarray(arrays["centroids"]), **cells)
  if kind in ("grid", "cvt"):
    return cells
  # In files of 0.4 there are settings of containers, too.
  return tessellation_lib.Unstructured(
    settings["num_cells"], settings["num_dimensions"], cells)


def _names(tree: Tree) -> Tree:
  """Returns the tree with each leaf's name in the leaf's place."""
  return jax.tree.unflatten(
    jax.tree.structure(tree), [*trees.tree_leaves_by_name(tree)])


def _describe(names: Tree) -> Record:
  """Returns a tree of names as JSON; `_rebuild` is the reverse."""
  kind = type(names)
  if names is None:
    return {"type": "none"}
  if kind is str:
    return {"type": "leaf", "name": names}
  if kind in (list, tuple):
    return {"type": kind.__name__, "items": [_describe(x) for x in names]}
  described = {"type": "other", "class": f"{kind.__module__}:{kind.__name__}"}
  if kind is dict and all(isinstance(key, str | int) for key in names):
    described = {"type": "dict"}
  elif hasattr(names, "_asdict"):
    described["type"], names = "namedtuple", names._asdict()
  else:
    return described
  return described | {"items": [[k, _describe(x)] for k, x in names.items()]}


def _rebuild(described: Record, leaves: Record) -> Tree:
  """Returns the genotypes, from the description of their tree."""
  kind, items = described["type"], described.get("items", [])
  if kind == "none":
    return None
  if kind == "leaf":
    return leaves[described["name"]]
  if kind in ("list", "tuple"):
    parts = [_rebuild(x, leaves) for x in items]
    return parts if kind == "list" else tuple(parts)
  if kind not in ("dict", "namedtuple"):
    raise ValueError(
      f"its genotypes contain a {described.get('class', kind)}, which only an"
      " example can rebuild; give like=genotype.")
  fields = {key: _rebuild(x, leaves) for key, x in items}
  module, _, name = described.get("class", "").partition(":")
  if kind == "dict" or module.split(".")[0] != _PACKAGE:
    return fields
  found = getattr(importlib.import_module(module), name, None)
  if list(getattr(found, "_fields", ())) != list(fields):
    raise ValueError(
      f"{module}.{name} with the fields {list(fields)} is not in this version"
      f" ({__version__}); give like=genotype.")
  return found(**fields)  # type: ignore[misc]


def _arrange(like: Tree, leaves: dict[str, np.ndarray]) -> Tree:
  """Returns the genotypes in the tree of an example."""
  stored = {
    name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    for name, x in leaves.items()}
  like = {_TREES[0]: jax.eval_shape(lambda x: x, like)}
  example = trees.tree_leaves_by_name(like)
  if difference := trees.tree_difference(stored, example):
    raise ValueError(
      f"in the file {difference} as in `like`; give an example of the genotypes"
      " that were saved.")
  return jax.tree.map(lambda name: leaves[name], _names(like)[_TREES[0]])
