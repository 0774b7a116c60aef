"""Tests of what is kept of a repertoire in a file."""

import dataclasses
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
from tests.trials import fittest

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


def _resave(path, arrays=None, record=None):
  """Writes a file again, with other arrays, and other entries of its record."""
  with np.load(path, allow_pickle=False) as found:
    contents = dict(found)
  config = json.loads(contents["config"].item()) | (record or {})
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


_PLACES = fittest.Places(6, 2)
_CVT = map_elites.CVT(jnp.zeros((6, 2)), _GRID.lower, _GRID.upper)
_KIND = "tests.trials.fittest:Places"


@pytest.mark.parametrize(("saved", "kind", "given", "message"), [
  (_PLACES, map_elites.Repertoire, None,
   f"own tests.trials.fittest:Fittest; give the tessellation .*{_KIND}"),
  (_PLACES, map_elites.Repertoire, map_elites.Unstructured(6, 2),
   f"{_KIND}.*, not .*none"),
  (_PLACES, map_elites.Repertoire, fittest.Places(7, 2), "'num_cells': 7"),
  (_CVT, map_elites.Repertoire, dataclasses.replace(
    _CVT, centroids=jnp.ones((6, 2))), "other centroids"),
  (_GRID, map_elites.DominatedNovelty, None, "a Repertoire, no DominatedN"),
  (_PLACES, fittest.Fittest, _PLACES, None),
  (_CVT, map_elites.Repertoire, _CVT, None),
])
def test_a_repertoire_is_read_as_what_it_is_or_refused(
  path, saved, kind, given, message
):
  repertoire = map_elites.Repertoire.init(jnp.zeros(2), saved)
  repertoire.save(path)
  if message is None:
    loaded = kind.load(path, tessellation=given)
    assert type(loaded) is type(repertoire)
    return
  with pytest.raises(ValueError, match=message):
    kind.load(path, tessellation=given)


def test_what_would_be_read_as_another_class_is_not_saved(path):
  fields = vars(map_elites.Repertoire.init(jnp.zeros(2), _GRID))
  with pytest.raises(ValueError, match="Grid is a Repertoire, no Fittest"):
    fittest.Fittest(**fields).save(path)
  assert not path.exists()


def test_a_class_that_a_file_names_is_not_imported(path):
  _repertoire({"w": jnp.zeros(2)}).save(path)
  assert "antigravity" not in sys.modules
  _resave(path, record={"tessellation": {
    "kind": "antigravity:Places", "repertoire": "antigravity:Fittest"}})
  with pytest.raises(ValueError, match="own antigravity:Fittest"):
    map_elites.Repertoire.load(path)
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
