"""Tests of what is kept of a repertoire in a file."""

import json
import zipfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, map_elites
from qdrl_haiku.learners import statistics as statistics_lib
from qdrl_haiku.map_elites import storage
from tests import configs

_GRID = map_elites.Grid((2, 3), (0.0, -1.0), (1.0, 2.0))
_CELLS = np.array([1, 3, 4])


class _Pair(NamedTuple):
  first: Any
  second: Any


def _example():
  return {
    "nested": [(jnp.float32(1.5), {"linear/~/w": jnp.ones((2, 3))}), None],
    "flag": jnp.array([True, False]),
    "empty": {},
    "numbered": {7: jnp.int8(-3), 11: (jnp.float16(0.1),)},
  }


_ADD = jax.jit(map_elites.Repertoire.add)


def _repertoire(genotype=None, tessellation=_GRID):
  """Three cells are occupied, one by a descriptor from outside."""
  genotype = _example() if genotype is None else genotype
  descriptors = np.array(tessellation.centroids)[_CELLS]
  descriptors[0, 0] = -5
  return _ADD(
    map_elites.Repertoire.init(genotype, tessellation),
    jax.tree.map(
      lambda x: jnp.stack([x, x, jnp.zeros_like(x)]), genotype
    ),
    np.float32([-1.25, 0, 1e10]),
    descriptors,
  )


def _assert_equal(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for x, y in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    assert isinstance(x, jax.Array)
    assert x.dtype == y.dtype
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.fixture
def path(tmp_path):
  return tmp_path / "repertoire.npz"


def test_a_repertoire_comes_back_to_the_bit(path):
  _repertoire().save(path)
  _assert_equal(map_elites.Repertoire.load(path), _repertoire())


def test_one_with_centroids_finds_the_same_cells_again(path):
  tessellation = map_elites.cvt(jax.random.key(0), 6, _GRID.lower, _GRID.upper)
  repertoire = _repertoire(tessellation=tessellation)
  repertoire.save(path)
  _assert_equal(map_elites.Repertoire.load(path), repertoire)


def test_an_empty_repertoire_comes_back(path):
  repertoire = map_elites.Repertoire.init(_example(), _GRID)
  repertoire.save(path)
  _assert_equal(map_elites.Repertoire.load(path), repertoire)


@pytest.mark.parametrize("normalize_observations", [False, True])
def test_genotypes_of_a_learner_come_back_with_their_hyperparameters(
  path, normalize_observations
):
  config = configs.make(
    learners.SACConfig,
    policy_hidden_layer_sizes=(4,),
    critic_hidden_layer_sizes=(4,),
    normalize_observations=normalize_observations,
  )
  learner = learners.sac(3, 2, config)
  genotype = learner.genotype(learner.init(jax.random.key(0)))
  hyperparams = jax.tree.map(jnp.float32, learner.hyperparams)
  repertoire = _repertoire((genotype, hyperparams))
  repertoire.save(path)
  loaded = map_elites.Repertoire.load(path)
  assert isinstance(loaded.genotypes[0], learners.SACGenotype)
  _assert_equal(loaded, repertoire)


@pytest.mark.parametrize("structure", ["dict", "single array"])
def test_numpy_alone_can_read_it(path, structure):
  genotype = {"dict": {"a": {"w": jnp.arange(4.0)}}}.get(
    structure, jnp.arange(4.0)
  )
  repertoire = _repertoire(genotype)
  repertoire.save(path)
  name = {"dict": "genotypes/a/w"}.get(structure, "genotypes")
  with np.load(path, allow_pickle=False) as arrays:
    assert set(arrays) == {
      "fitness", "descriptors", "centroids", "cells", "num_outside", "config",
      name,
    }  # fmt: skip
    np.testing.assert_array_equal(arrays["cells"], _CELLS)
    np.testing.assert_array_equal(arrays["fitness"], repertoire.fitness)
    np.testing.assert_array_equal(arrays["centroids"], _GRID.centroids)
    np.testing.assert_array_equal(
      arrays[name], [range(4), range(4), [0, 0, 0, 0]]
    )
    assert arrays["num_outside"] == 1
    assert json.loads(arrays["config"].item())["tessellation"] == {
      "kind": "grid", "shape": [2, 3], "lower": [0, -1], "upper": [1, 2]
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float8_e4m3fn])
def test_dtypes_unknown_to_numpy_come_back_to_the_bit(path, dtype):
  repertoire = _repertoire({"w": jnp.array([0.1, -2.5], dtype)})
  repertoire.save(path)
  loaded = map_elites.Repertoire.load(path)
  _assert_equal(loaded, repertoire)
  assert loaded.genotypes["w"].dtype == dtype
  with np.load(path, allow_pickle=False) as arrays:
    assert arrays["genotypes/w"].dtype.kind == "u"


def test_the_users_config_comes_back(path):
  config = {"env": "ant", "sizes": [64, 64], "nested": {"x": None, "y": 0.1}}
  _repertoire().save(path, config)
  assert storage.read_config(path) == config
  _repertoire().save(path)
  assert storage.read_config(path) is None


def test_other_named_tuples_become_dicts(path):
  pair = _Pair(jnp.zeros(2), _Pair(jnp.ones(3), None))
  repertoire = _repertoire(pair)
  repertoire.save(path)
  loaded = map_elites.Repertoire.load(path).genotypes
  first, (second, nothing) = repertoire.genotypes
  _assert_equal(
    loaded, {"first": first, "second": {"first": second, "second": nothing}}
  )


def test_an_example_gives_the_structure(path):
  pair = _Pair(jnp.zeros(2), _Pair(jnp.ones(3), None))
  repertoire = _repertoire(pair)
  repertoire.save(path)
  shapes = jax.eval_shape(lambda: pair)
  for like in (pair, shapes):
    _assert_equal(map_elites.Repertoire.load(path, like), repertoire)


@jax.tree_util.register_pytree_with_keys_class
class _Node:
  def __init__(self, x):
    self.x = x

  def tree_flatten_with_keys(self):
    return ((jax.tree_util.GetAttrKey("x"), self.x),), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)


def test_other_nodes_need_an_example(path):
  repertoire = _repertoire([_Node(jnp.zeros(2))])
  repertoire.save(path)
  _assert_equal(
    map_elites.Repertoire.load(path, [_Node(jnp.ones(2))]), repertoire
  )
  with pytest.raises(ValueError, match="_Node.* give like=genotype"):
    map_elites.Repertoire.load(path)


@pytest.mark.parametrize(
  ("like", "message"),
  [
    ({"a": jnp.zeros(2)}, r"genotypes/b is int32\(\) in the file and absent"),
    ({"a": jnp.zeros(3), "b": 0}, r"genotypes/a is float32\(2,\) in the file"),
    ({"a": jnp.zeros(2), "b": 0.0}, r"int32\(\) .* and float32\(\) in `like`"),
    ({"a": jnp.zeros(2), "b": 0, "c": 0}, r"genotypes/c is absent .* int32"),
  ],
)
def test_an_example_of_something_else_is_refused(path, like, message):
  _repertoire({"a": jnp.zeros(2), "b": jnp.int32(1)}).save(path)
  with pytest.raises(ValueError, match=message):
    map_elites.Repertoire.load(path, like)


def test_names_that_coincide_are_refused(path):
  repertoire = _repertoire({"a/b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})
  with pytest.raises(ValueError, match="two leaves .* 'genotypes/a/b'"):
    repertoire.save(path)


def test_a_config_that_is_not_json_is_refused_and_nothing_written(path):
  with pytest.raises(ValueError, match="config=.*not JSON"):
    _repertoire().save(path, {"x": jnp.zeros(2)})
  assert not path.exists()


def test_saving_that_fails_leaves_the_file_that_was_there(path, monkeypatch):
  _repertoire().save(path, {"version": 1})

  def fail(file, **_):
    file.write(b"some")
    raise OSError("no space left")

  monkeypatch.setattr(np, "savez", fail)
  with pytest.raises(OSError, match="no space left"):
    _repertoire().save(path, {"version": 2})
  assert storage.read_config(path) == {"version": 1}
  assert [x.name for x in path.parent.iterdir()] == [path.name]


def test_a_reader_of_the_file_that_was_there_is_not_disturbed(path):
  _repertoire().save(path)
  content = path.read_bytes()
  with path.open("rb") as file:
    _repertoire().save(path, {"version": 2})
    assert file.read() == content


def test_a_path_is_taken_as_it_is_and_its_folder_made(tmp_path):
  path = tmp_path / "a" / "b" / "latest"
  _repertoire().save(str(path))
  _assert_equal(map_elites.Repertoire.load(str(path)), _repertoire())


def test_a_missing_file_is_reported_as_missing(path):
  with pytest.raises(FileNotFoundError, match="repertoire.npz"):
    map_elites.Repertoire.load(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY"])
def test_files_of_another_kind_are_refused(path, content):
  path.write_bytes(content)
  for read in (map_elites.Repertoire.load, storage.read_config):
    with pytest.raises(ValueError, match="repertoire.npz .* no .npz file"):
      read(path)


def test_a_file_cut_short_is_refused(path):
  _repertoire().save(path)
  content = path.read_bytes()
  for share in (0.3, 0.9):
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="repertoire.npz can't be read"):
      map_elites.Repertoire.load(path)


def test_a_flipped_bit_is_noticed(path):
  _repertoire().save(path)
  content = bytearray(path.read_bytes())
  with zipfile.ZipFile(path) as archive:
    info = archive.getinfo("descriptors.npy")
  # Well inside of the array: past the names and the array's header.
  content[info.header_offset + 30 + len(info.filename) + 150] ^= 1
  path.write_bytes(content)
  with pytest.raises(ValueError, match="repertoire.npz .*descriptors"):
    map_elites.Repertoire.load(path)


def _resave(path, change):
  with np.load(path, allow_pickle=False) as arrays:
    contents = dict(arrays)
  record = json.loads(contents["config"].item())
  change(contents, record)
  if "config" in contents:
    contents["config"] = np.asarray(json.dumps(record))
  np.savez(path, **contents)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda arrays, _: arrays.pop("config"), "config"),
    (lambda arrays, _: arrays.pop("fitness"), "fitness"),
    (lambda arrays, _: arrays.pop("genotypes/w"), "genotypes/w"),
    (
      lambda arrays, _: arrays.update(fitness=np.zeros(5, np.float32)),
      r"fitness is float32\(5,\), not float32\(6,\)",
    ),
    (
      lambda arrays, _: arrays.update(fitness=np.zeros(6)),
      "fitness is float64",
    ),
    (
      lambda arrays, _: arrays.update(descriptors=np.zeros(6, np.float32)),
      "descriptors is",
    ),
    (lambda arrays, _: arrays.update(cells=np.arange(3)), "cells are not"),
    (
      lambda arrays, _: arrays.update(centroids=np.zeros((2, 2))),
      "centroids is",
    ),
    (
      lambda arrays, _: arrays.update(
        {"genotypes/w": np.array([{}] * 3, object)}
      ),
      "allow_pickle",
    ),
    (lambda _, record: record.update(format=99), "format is 99"),
    (lambda _, record: record.pop("genotype"), "genotype"),
    (
      lambda _, record: record["tessellation"].update(kind="rings"),
      "tessellation is 'rings'",
    ),
    (
      lambda _, record: record["tessellation"].update(lower=[5, 5]),
      "not below",
    ),
  ],
)
def test_contents_that_do_not_fit_are_refused(path, change, message):
  _repertoire({"w": jnp.zeros(2)}).save(path)
  _resave(path, change)
  with pytest.raises(ValueError, match=f"repertoire.npz can't .*{message}"):
    map_elites.Repertoire.load(path)


def test_a_named_tuple_that_has_changed_since_is_refused(path):
  statistics = statistics_lib.init(3)
  _repertoire(statistics).save(path)

  def rename(_, record):
    record["genotype"]["structure"]["items"][0][0] = "count"

  _resave(path, rename)
  with pytest.raises(ValueError, match="'count'.* give like=genotype"):
    map_elites.Repertoire.load(path)
  loaded = map_elites.Repertoire.load(path, statistics)
  _assert_equal(loaded, _repertoire(statistics))


def test_numbers_that_would_be_rounded_are_refused(path):
  _repertoire({"w": jnp.zeros(2)}).save(path)
  wide = {"genotypes/w": np.zeros((3, 2), np.float64)}
  _resave(path, lambda arrays, _: arrays.update(wide))
  with pytest.raises(ValueError, match="float64; set jax_enable_x64"):
    map_elites.Repertoire.load(path)
