"""Tests of what is kept of a repertoire in a file."""

import json
import sys
import zipfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, map_elites
from qdrl_haiku.learners import statistics as statistics_lib
from qdrl_haiku.map_elites import storage

_GRID = map_elites.Grid((2, 3), (0.0, -1.0), (1.0, 2.0))
_CELLS = np.array([1, 3, 4])


class _Pair(NamedTuple):
  first: Any
  second: Any


def _example():
  genotype = learners.SACGenotype(
    *({"w": np.ones(2)} for _ in learners.SACGenotype._fields)
  )._replace(observation_statistics=statistics_lib.init_statistics(3))
  return {
    "nested": [(np.float32(1.5), {"linear/~/w": np.ones((2, 3))}), None],
    "flag": np.array([True, False]),
    "empty": {},
    "numbered": {7: np.int8(-3), 11: (np.float16(0.1),)},
    "half": np.asarray(jnp.array([0.1, -2.5], jnp.bfloat16)),
    "eighth": np.asarray(jnp.array([0.1], jnp.float8_e4m3fn)),
    "of_this_package": genotype}


def _repertoire(genotype=None, tessellation=_GRID):
  """Three cells are occupied, of which the last has zeros."""
  genotype = _example() if genotype is None else genotype

  def stored(x):
    x = jnp.asarray(x)
    rows = np.zeros((6, *x.shape), x.dtype)
    rows[_CELLS[:2]] = x
    return jnp.asarray(rows)

  fitness = np.full(6, -np.inf, np.float32)
  fitness[_CELLS] = [-1.25, 0, 1e10]
  descriptors = np.where(
    np.isfinite(fitness)[:, None], np.asarray(tessellation.centroids), 0)
  return map_elites.Repertoire(
    jax.tree.map(stored, genotype), jnp.asarray(fitness),
    jnp.asarray(descriptors), jnp.int32(1), tessellation)


def _assert_equal(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for x, y in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    assert isinstance(x, jax.Array) and x.dtype == y.dtype
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.fixture
def path(tmp_path):
  return tmp_path / "a" / "repertoire"


def test_a_repertoire_comes_back_to_the_bit(path):
  centroids = np.random.default_rng(0).uniform(size=(6, 2))
  cvt = map_elites.CVT(jnp.float32(centroids), _GRID.lower, _GRID.upper)
  empty = map_elites.Repertoire.init(_example(), _GRID)
  config = {"env": "ant", "sizes": [64, 64], "nested": {"x": None, "y": 0.1}}
  for repertoire in (_repertoire(), _repertoire(tessellation=cvt), empty):
    # The name is taken as it is, and its folder made.
    repertoire.save(str(path), config)
    loaded = map_elites.Repertoire.load(str(path))
    _assert_equal(loaded, repertoire)
    assert storage.read_stored_repertoire_config(path) == config
  assert isinstance(loaded.genotypes["of_this_package"], learners.SACGenotype)


def test_other_named_tuples_become_dicts_without_an_example(path):
  pair = _Pair(jnp.zeros(2), _Pair(jnp.ones(3), None))
  repertoire = _repertoire(pair)
  repertoire.save(path)
  first, (second, nothing) = repertoire.genotypes
  _assert_equal(
    map_elites.Repertoire.load(path).genotypes,
    {"first": first, "second": {"first": second, "second": nothing}})
  for like in (pair, jax.eval_shape(lambda: pair)):
    _assert_equal(map_elites.Repertoire.load(path, like), repertoire)


def test_an_example_of_something_else_is_refused(path):
  _repertoire({"a": jnp.zeros(2), "b": jnp.int32(1)}).save(path)
  for like, message in (
    ({"a": jnp.zeros(2)}, "in the file the tree is .* give an example of the"),
    ({"a": jnp.zeros(3), "b": 0}, r"genotypes/a is float32\(2,\), not"),
  ):
    with pytest.raises(ValueError, match=message):
      map_elites.Repertoire.load(path, like)


def test_what_can_not_be_written_leaves_the_old_file(path):
  _repertoire().save(path, {"version": 1})
  repertoire = _repertoire({"a/b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})
  with pytest.raises(ValueError, match="same name: genotypes/a/b"):
    repertoire.save(path)
  assert storage.read_stored_repertoire_config(path) == {"version": 1}


def test_what_is_damaged_or_of_another_kind_is_refused(path):
  _repertoire().save(path)
  content = path.read_bytes()
  with zipfile.ZipFile(path) as archive:
    info = archive.getinfo("descriptors.npy")
  flipped = bytearray(content)
  # Well inside of the array: past the names and the array's header.
  flipped[info.header_offset + 30 + len(info.filename) + 150] ^= 1
  size = len(content)
  for broken in (
    content[: size // 3], content[: -size // 10], flipped, b"", b"\x93NUMPY"
  ):
    path.write_bytes(broken)
    with pytest.raises(ValueError, match="repertoire can't be read"):
      map_elites.Repertoire.load(path)


def _resave(path, arrays=None, record=None, without=()):
  """Writes a file again, with other arrays, and other entries of its record."""
  with np.load(path, allow_pickle=False) as found:
    contents = dict(found)
  config = json.loads(contents["config"].item()) | (record or {})
  config = {x: config[x] for x in config if x not in without}
  contents["config"] = np.asarray(json.dumps(config))
  with path.open("wb") as file:
    np.savez(file, **contents | (arrays or {}))


_BAD_BOUNDS = {"kind": "grid", "shape": [2], "lower": [5], "upper": [5]}


@pytest.mark.parametrize(("arrays", "record", "message"), [
  ({"genotypes/w": np.array([{}] * 3, object)}, {}, "allow_pickle"),
  ({}, {"format": 99}, "format is 99"),
  ({}, {"tessellation": _BAD_BOUNDS}, "not below")])
def test_contents_that_do_not_fit_are_refused(path, arrays, record, message):
  _repertoire({"w": jnp.zeros(2)}).save(path)
  _resave(path, arrays, record)
  with pytest.raises(ValueError, match=f"repertoire can't .*{message}"):
    map_elites.Repertoire.load(path)


_UNBOUNDED = map_elites.Unstructured(6, 2, _GRID)


def test_a_repertoire_is_read_as_what_it_is_or_refused(path):
  """Also what a container shows that isn't known where it's read."""
  container = map_elites.one_per_place(
    _UNBOUNDED, lambda repertoire, new: jnp.arange(2), "a.module:container")
  extras = {"steps": jnp.int32(0), "seen": {"x": jnp.zeros(3, bool)}}
  batch = (
    jnp.ones((2, 1)), jnp.arange(2.0), jnp.ones((2, 2)),
    {"steps": jnp.arange(2), "seen": {"x": jnp.ones((2, 3), bool)}})
  repertoire = container.add(
    container.init(jnp.zeros(1), extras), map_elites.Evaluated(*batch))
  repertoire.save(path)
  loaded = map_elites.Repertoire.load(path, container="a.module:container")
  _assert_equal(loaded, repertoire)
  _assert_equal(
    container.add(loaded, map_elites.Evaluated(*batch)), repertoire)
  with pytest.raises(ValueError, match="of the container a.module:container,"):
    map_elites.Repertoire.load(path, container="cells")
  with pytest.raises(ValueError, match="what the container a.module:container"):
    loaded.add(*batch)


@pytest.mark.parametrize(("stored", "container", "tessellation"), [
  ({"kind": "grid", "shape": [6], "lower": [0], "upper": [1]}, "cells",
   map_elites.Grid((6,), (0,), (1,))),
  ({"kind": "none", "grid": None, "num_neighbors": 3}, "dominated_novelty",
   map_elites.Unstructured(6, 1)),
  ({"kind": "antigravity:Places", "repertoire": "antigravity:Fittest",
    "grid": None, "num_neighbors": 3, "more": 7}, "antigravity:Fittest",
   map_elites.Unstructured(6, 1))])
def test_files_of_0_4_are_read(path, stored, container, tessellation):
  """Without importing what they name."""
  _repertoire({"w": jnp.zeros(2)}).save(path)
  sizes = {"num_cells": 6, "num_dimensions": 1} if "grid" in stored else {}
  _resave(path, record={"tessellation": stored | sizes}, without=[
    "container", "extras"])
  loaded = map_elites.Repertoire.load(path)
  assert loaded.container == container and loaded.extras == {}
  assert loaded.tessellation == tessellation
  assert np.flatnonzero(loaded.occupied).tolist() == _CELLS.tolist()
  assert "antigravity" not in sys.modules


def test_a_named_tuple_that_has_changed_since_is_refused(path):
  statistics = statistics_lib.init_statistics(3)
  _repertoire(statistics).save(path)
  with np.load(path) as arrays:
    genotype = json.loads(arrays["config"].item())["genotype"]
  genotype["structure"]["items"][0][0] = "count"
  _resave(path, record={"genotype": genotype})
  with pytest.raises(ValueError, match="'count'.* give like=genotype"):
    map_elites.Repertoire.load(path)
  loaded = map_elites.Repertoire.load(path, statistics)
  _assert_equal(loaded, _repertoire(statistics))
