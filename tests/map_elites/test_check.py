"""Tests of what is said of an emitter that isn't one, and of scores."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import map_elites
from tests import compilations

_GRID = map_elites.Grid((4, 4), (0.0, 0.0), (1.0, 1.0))
_B = 16


def _ask(state, repertoire, key):
  return repertoire.sample(key, _B), state + 1


_EMITTER = map_elites.genetic_emitter(lambda key, x, y: x, _B)._replace(
  init=lambda key, repertoire: jnp.zeros((), jnp.int32), ask=_ask
)
_REPERTOIRE = map_elites.Repertoire.init({"x": jnp.zeros(2)}, _GRID)


def _score(genotypes, key):
  del key
  return jnp.sum(genotypes["x"], axis=1), genotypes["x"], {}


def _refused(**changes):
  with pytest.raises(ValueError) as caught:
    map_elites.check(_EMITTER._replace(**changes), _REPERTOIRE)
  return str(caught.value)


def _generation(emitter=_EMITTER, score=_score):
  state = emitter.init(jax.random.key(0), _REPERTOIRE)
  return map_elites.step(
    emitter, score, _REPERTOIRE, state, jax.random.key(1)
  )


def test_an_emitter_as_it_should_be_passes_and_compiles_nothing():
  assert compilations.of(lambda: map_elites.check(_EMITTER, _REPERTOIRE)) == 0


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"ask": lambda *args: _ask(*args)[::-1]},
      "it returns (state, genotypes): swap them.",
    ),
    (
      {"batch_size": 8},
      "aren't 8 of the repertoire's kind: x is float32(16, 2), not float32(8, "
      "2); return batch_size=8 genotypes",
    ),
    ({"ask": lambda *args: _ask(*args)[0]}, "ask returns a dict; return a"),
    (
      {"ask": lambda *args: (_ask(*args)[0], ())},
      "ask returns differs from that of init: the tree is",
    ),
    (
      {"tell": lambda *args: args[2].fitness},
      "tell returns differs from that of init: the array is float32(16,), not "
      "int32()",
    ),
    ({"batch_size": -1}, "batch_size=-1 is not a count"),
  ],
)
def test_what_is_wrong_is_said_with_the_fix(changes, message):
  assert message in _refused(**changes)


def test_what_needs_extra_scores_is_told_of_those():
  seen = []

  def tell(state, repertoire, evaluated, key):
    seen.append(evaluated.extra["lengths"].shape)
    return state

  emitter = _EMITTER._replace(tell=tell, needs=("lengths",))
  map_elites.check(emitter, _REPERTOIRE)
  assert not seen
  map_elites.check(emitter, _REPERTOIRE, {"lengths": jnp.zeros(_B)})
  assert seen == [(_B,)]


def test_a_generation_refuses_an_emitter_that_makes_fewer_than_it_says():
  with pytest.raises(ValueError, match="return batch_size=32 genotypes"):
    _generation(_EMITTER._replace(batch_size=32))


@pytest.mark.parametrize(
  ("score", "message"),
  [
    (
      lambda x, key: _score(x, key)[:2],
      "the scoring function returns 2 values; return three: fitness [B], "
      "descriptors [B, D], and a dict of what emitters need, {} for nothing.",
    ),
    (lambda x, key: _score(x, key)[0], "returns 1 value; return three"),
    (lambda x, key: (*_score(x, key)[:2], None), "is a NoneType; return a"),
  ],
)
def test_a_generation_says_what_a_scoring_function_returns(score, message):
  with pytest.raises(ValueError) as caught:
    _generation(score=score)
  assert message in str(caught.value)


def test_a_repertoire_of_a_batch_is_found_out_by_what_is_added():
  batch = {"x": jnp.zeros((_B, 2))}
  repertoire = map_elites.Repertoire.init(batch, _GRID)
  with pytest.raises(ValueError) as caught:
    repertoire.add(batch, jnp.zeros(_B), jnp.zeros((_B, 2)))
  message = str(caught.value)
  assert "Repertoire.init takes one genotype as its example" in message
  assert "jax.tree.map(lambda x: x[0], genotypes)" in message


def test_help_says_what_each_function_takes_and_returns():
  text = inspect.getdoc(map_elites.Emitter)
  for line in (
    "init: (key, repertoire) -> state",
    "ask: (state, repertoire, key) -> (genotypes, state)",
    "tell: (state, repertoire, evaluated, key) -> state",
  ):
    assert line in text
  assert "Fn`" not in text
