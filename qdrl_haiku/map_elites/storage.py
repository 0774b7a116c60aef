"""Repertoires as files: one `.npz` that NumPy alone can read, no pickle in it.

    fitness [C], -inf where empty    descriptors [C, D]
    centroids [C, D], unless there are no cells
    cells [N], which are occupied    num_outside []
    genotypes/<path/of/leaf> [N, ...], where row i is of cells[i]
    config, JSON: format, version, tessellation, genotype, config

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
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import __version__, files, trees
from qdrl_haiku.map_elites.tessellation import (
  CVT,
  Grid,
  Tessellation,
  Unstructured,
)
from qdrl_haiku.types import Tree

_FORMAT = 1
_GENOTYPES = "genotypes"
_PACKAGE = "qdrl_haiku"


def store_repertoire(
  fields: dict[str, Any], path: str | os.PathLike[str],
  config: dict[str, Any] | None = None,
) -> None:
  """Writes the fields of a repertoire; see `Repertoire.save`."""
  path = pathlib.Path(path)
  tessellation, genotypes = fields["tessellation"], fields["genotypes"]
  fitness = np.asarray(fields["fitness"])
  cells = np.flatnonzero(fitness > -np.inf).astype(np.int32)
  arrays: dict[str, np.ndarray] = {}
  dtypes = {}
  for name, leaf in _named_leaves(genotypes).items():
    rows = np.asarray(leaf)[cells]
    if rows.dtype.isbuiltin != 1:
      dtypes[name] = rows.dtype.name
      rows = rows.view(f"uint{8 * rows.dtype.itemsize}")
    arrays[name] = rows
  centroids, structure = tessellation.centroids, _describe(_names(genotypes))
  record = {
    "format": _FORMAT,
    "version": __version__,
    "tessellation": _describe_tessellation(tessellation),
    "genotype": {"structure": structure, "dtypes": dtypes},
    "config": config}
  arrays |= {
    "fitness": fitness,
    "descriptors": np.asarray(fields["descriptors"]),
    "num_outside": np.asarray(fields["num_outside"]),
    "cells": cells,
    "config": np.asarray(json.dumps(record))}
  if centroids is not None:
    arrays["centroids"] = np.asarray(centroids)
  path.parent.mkdir(parents=True, exist_ok=True)
  with (
    files.file_written_whole(path) as temporary,
    temporary.open("wb") as file,
  ):
    np.savez(file, **arrays)  # type: ignore[arg-type]


def load_stored_repertoire(
  path: str | os.PathLike[str], like: Tree = None,
  tessellation: Tessellation | None = None,
) -> dict[str, Any]:
  """Reads the fields of a repertoire; see `Repertoire.load`."""
  with open_stored_repertoire(path) as (arrays, record):
    fitness, cells = arrays["fitness"], arrays["cells"]
    tessellation = _own_tessellation(record, arrays, tessellation)
    leaves = {}
    for name in arrays:
      if name.split("/")[0] == _GENOTYPES:
        rows = arrays[name]
        dtype = record["genotype"]["dtypes"].get(name, rows.dtype)
        rows = rows.view(jnp.dtype(dtype))
        leaves[name] = np.zeros((len(fitness), *rows.shape[1:]), rows.dtype)
        leaves[name][cells] = rows
    if like is None:
      genotypes = _rebuild(record["genotype"]["structure"], leaves)
    else:
      genotypes = _arrange(like, leaves)
    return {
      "genotypes": jax.tree.map(jnp.asarray, genotypes),
      "fitness": jnp.asarray(fitness),
      "descriptors": jnp.asarray(arrays["descriptors"]),
      "num_outside": jnp.asarray(arrays["num_outside"]),
      "tessellation": tessellation}


def read_stored_repertoire_config(
  path: str | os.PathLike[str],
) -> dict[str, Any] | None:
  """Reads what was given to `Repertoire.save` as `config`."""
  with open_stored_repertoire(path) as (_, record):
    return record["config"]


def check_stored_tessellation(
  path: str | os.PathLike[str], tessellation: Tessellation | None
) -> None:
  """Refuses a file that `load_stored_repertoire` can't read with this one."""
  with open_stored_repertoire(path) as (arrays, record):
    _own_tessellation(record, arrays, tessellation)


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
) -> Iterator[tuple[Any, Any]]:
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
      yield arrays, record
    # A damaged file can make NumPy, zipfile and json raise nearly anything.
    except Exception as error:
      raise ValueError(
        f"{os.fspath(path)} can't be read as a repertoire:"
        f" {error or type(error).__name__}") from error


def make_stored_tessellation(
  settings: dict[str, Any], arrays: Any
) -> Tessellation:
  """Returns the tessellation that a file describes, a user's as our base."""
  settings = dict(settings)
  kind = settings.pop("kind")
  if kind == "grid":
    return Grid(**settings)
  if kind == "cvt":
    return CVT(jnp.asarray(arrays["centroids"]), **settings)
  # A subclass of `Unstructured` may have settings of its own.
  names = ("num_cells", "num_dimensions", "num_neighbors")
  known, grid = {name: settings[name] for name in names}, settings["grid"]
  return Unstructured(**known, grid=grid and Grid(**grid))


def _own_tessellation(
  record: dict[str, Any], arrays: Any, given: Tessellation | None
) -> Tessellation:
  """Returns the tessellation that was saved; a user's own has to be given.

  The file's name of a class is only compared: importing would run code.
  """
  stored = record["tessellation"]
  if given is None:
    if ":" in stored["kind"]:
      raise ValueError(
        f"it is a user's own {stored['repertoire']}; give the tessellation that"
        f" it was made of, a {stored['kind']}")
    return make_stored_tessellation(stored, arrays)
  described = json.loads(json.dumps(_describe_tessellation(given)))
  if described != stored:
    raise ValueError(f"it has the cells {stored}, not {described}; give those")
  if "centroids" in arrays and not np.array_equal(
    arrays["centroids"], np.asarray(given.centroids)
  ):
    raise ValueError("its cells have other centroids; give those")
  return given


def _describe_tessellation(tessellation: Tessellation) -> dict[str, Any]:
  """Returns what a file says of a tessellation, beside its centroids."""
  settings, kind = dataclasses.asdict(tessellation), type(tessellation)
  settings.pop("centroids", None)
  if kind in (Grid, CVT, Unstructured):
    return {"kind": kind.kind, **settings}
  path, made = (
    f"{x.__module__}:{x.__qualname__}"
    for x in (kind, tessellation.repertoire_type))
  return {"kind": path, "repertoire": made, **settings}


def _named_leaves(tree: Tree) -> dict[str, Any]:
  """Returns the leaves by name."""
  return trees.tree_leaves_by_name({_GENOTYPES: tree})


def _names(tree: Tree) -> Any:
  """Returns the tree with each leaf's name in the leaf's place."""
  return jax.tree.unflatten(jax.tree.structure(tree), [*_named_leaves(tree)])


def _describe(names: Any) -> dict[str, Any]:
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


def _rebuild(described: dict[str, Any], leaves: dict[str, Any]) -> Tree:
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
  example = _named_leaves(jax.eval_shape(lambda x: x, like))
  if difference := trees.tree_difference(stored, example):
    raise ValueError(
      f"in the file {difference} as in `like`; give an example of the genotypes"
      " that were saved.")
  return jax.tree.map(lambda name: leaves[name], _names(like))
