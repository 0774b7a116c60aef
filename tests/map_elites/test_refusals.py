"""Tests of what is refused, and of what a user is told to do instead."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, map_elites

_KEY = jax.random.key(0)
_GRID = map_elites.Grid((2, 3), (0.0, 0.0), (1.0, 1.0))
_NONE = map_elites.Unstructured(8, 2)
_GENOTYPE = {"tag": jnp.int32(0), "w": jnp.zeros((2, 3))}
_BATCH = jax.tree.map(lambda x: jnp.stack([x] * 4), _GENOTYPE)


def _init(genotype, tessellation=_GRID):
  return map_elites.Repertoire.init(genotype, tessellation)


_SCORES = jnp.zeros(4), jnp.zeros((4, 2))


_GA = map_elites.genetic_emitter(None, 0)


def _begun(container=None, emitter=_GA, fitness=_SCORES[0], **changes):
  container = container or map_elites.cells(_GRID)._replace(**changes)
  evaluated = map_elites.Evaluated(
    _BATCH, fitness, _SCORES[1], {"episodes": fitness})
  map_elites.init(emitter, container, evaluated, _KEY)


def _with_two_objectives(emitter):
  one = map_elites.cells(_GRID)
  own = one._replace(add=lambda state, evaluated: one.add(
    state, evaluated._replace(fitness=evaluated.fitness[:, 0])))
  emitter = emitter._replace(init=lambda key, repertoire: ())
  _begun(own, emitter, jnp.zeros((4, 2)))


def _keeping(*names):
  return _GA._replace(extras=lambda state: {x: jnp.zeros(0) for x in names})


def _add(genotypes=_BATCH, shape=(4,), dtype=float, example=_GENOTYPE):
  fitness, descriptors = jnp.zeros(shape, dtype), jnp.zeros((4, 2))
  _init(example).add(genotypes, fitness, descriptors)


def _grid(shape=(3, 3), lower=(0.0, 0.0), upper=(1.0, 1.0)):
  map_elites.Grid(shape, lower, upper)


def _pbt(num_replaced_by_samples=2):
  space = {"rate": controllers.LogUniform(0.1, 10.0)}
  controller = controllers.pbt(controllers.PBTConfig(), space)
  return map_elites.pbt_emitter(
    None, controller, None, population_size=6, variation_batch_size=3,
    num_replaced_by_samples=num_replaced_by_samples)


_STRATEGIES = map_elites.Strategies(*[None] * 5, 1, 8)
_CMA = map_elites.cma_emitter(lambda size: _STRATEGIES, jnp.zeros(2))


def _deep(num_cells, depth):
  grid = map_elites.Grid((num_cells,), (0.0,), (1.0,))
  map_elites.deep_archive(grid, map_elites.Resampling(depth=depth), 1)


_ARCHIVE = map_elites.deep_archive(_GRID, map_elites.Resampling(), 1)
_TAG = {"tag": jnp.arange(3)}
_REFUSALS = [
  (lambda: _grid(shape=(2**20, 2**20)), f"the product of shape={2**40} is not"),
  (lambda: _grid(upper=(1.0, 0.0)), "not below"),
  (lambda: map_elites.cvt(_KEY, 60_000, (0.0,), (1.0,)),
   "use at most 50000, or a grid"),
  *[(lambda shape=shape: _add(shape=shape),
     f"fitness is float32{shape}, not float32(4,); give genotypes [B, ...]")
    for shape in ((4, 2), (2, 4), (4, 1), ())],
  (lambda: _add(shape=(5,)), "descriptors is float32(4, 2), not float32(5, 2)"),
  (lambda: _add(example=_BATCH), "an example without the axis B"),
  (lambda: _init(_GENOTYPE, _NONE).add(_BATCH, *_SCORES),
   "what the container cells holds; add to that one"),
  (lambda: _begun(container=_GRID), "a Grid is no map_elites.Container; give"),
  (lambda: _begun(add=lambda state, evaluated: evaluated.fitness),
   "container's add returns differs from that of init: the tree is"),
  (lambda: _begun(show=lambda state: state.fitness),
   "show returns a ArrayImpl; return a map_elites.Repertoire."),
  (lambda: _begun(show=lambda state: _init(jnp.zeros(2))),
   "isn't of its tessellation: the tree is"),
  (lambda: _begun(init=lambda genotype: ()),
   "the init of the container cells doesn't take 2 arguments; write it as"),
  (lambda: _begun(metrics=lambda state: {"ages": jnp.zeros(3)}),
   "metrics of the container cells have 'ages' with an array (3,); give one"),
  (lambda: _begun(keeps="ages"), "container cells='ages' is no tuple; give ("),
  (lambda: _begun(emitter=_keeping("episodes"), keeps=("episodes",)),
   "names of what the container cells keeps (episodes); rename one of them."),
  (lambda: _begun(_ARCHIVE, _keeping("num_evaluations")),
   "the emitter's extra num_evaluations is taken; rename it."),
  (lambda: _begun(emitter=map_elites.multi_emitter({"a": _keeping("turn")})),
   "the emitter a has extras that are others' too: turn; rename"),
  (lambda: _with_two_objectives(_pbt()),
   "the emitter pbt compares individuals by one number, and their fitness is "
   "(9, 2), of 2 objectives; take another emitter"),
  (lambda: _with_two_objectives(_CMA), "the emitter cma compares"),
  (lambda: map_elites.weights_only(None)(_KEY, _TAG, _TAG), "there are no wei"),
  (lambda: _pbt(6), "num_replaced_by_samples=6 leaves none of population_size"),
  (lambda: map_elites.cma_es(1025, 1, 8, 0.1), "use at most 1024, such as a"),
  (lambda: _CMA.init(_KEY, _init(jnp.zeros(2), _NONE)),
   "emitter=cma needs cells, and with"),
  (lambda: map_elites.deep_archive(_NONE, map_elites.Resampling(), 1),
   "adding=adaptive needs cells, and with tessellation=none there are none;"),
  (lambda: _deep(2**20, 2**11), "are too many; make at most 524288 cells")]


@pytest.mark.parametrize(("call", "fragment"), _REFUSALS)
def test_what_makes_no_sense_is_refused(call, fragment):
  with pytest.raises(ValueError) as caught:
    call()
  assert fragment in str(caught.value)


@pytest.mark.parametrize("base", ["DominatedNovelty", "Repertoire"])
def test_a_container_of_0_4_is_told_what_became_of_it_in_one_line(base):
  with pytest.raises(ValueError, match="`places`.* function for map_elites.on"):
    type("Fittest", (getattr(map_elites, base),), {})
