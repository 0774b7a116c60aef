"""Tests that bad settings and calls are refused with what a user needs."""

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import controllers, ranges, trees
from qdrl_haiku.controllers import lineage
from tests.controllers import common

_SPACE = {"x": controllers.Uniform(0.0, 1.0)}


def _pbt(**settings):
  return controllers.PBTConfig(**settings)


def _init(make, config, size, space=_SPACE):
  return make(config, space).init(jax.random.key(0), size)


def _update(fitness=2, **hyperparams):
  update = common.update(controllers.pbt(_pbt(), _SPACE))
  return update(jax.random.key(0), jnp.zeros(fitness), hyperparams)


def _check(**extra):
  controller = controllers.pbt(_pbt(), _SPACE)

  def update(*args):
    state, decision = controller.update(*args)
    return state, decision._replace(**extra)

  controllers.check_controller(controller._replace(update=update), 4)


_MF = controllers.MFPBTConfig


@pytest.mark.parametrize(("call", "complaint"), [
  # Settings. What is no number, no choice or out of bounds is config's.
  (lambda: _pbt(explore="mix"), "explore='mix' is unknown; .* 'mixed'"),
  (lambda: _pbt(num_parents=0), "num_parents=0 leaves num_replaced=None"),
  (lambda: _pbt(num_parents=1, num_replaced=0), "num_parents=1 has no effect"),
  (lambda: _pbt(exploit="none", num_replaced=1), "=1 has no effect"),
  (lambda: _pbt(perturbation_factors=(1.25, 0.8)), "perturbation_factors="),
  (lambda: _MF(frequencies=(2, 4)), r"\(2, 4\) don't rise from 1"),
  # Ranges and spaces.
  (lambda: controllers.Uniform(1.0, 1.0), "low=1.0 is not below"),
  (lambda: controllers.LogUniform(0.0, 1.0), "low=0.0 has no logarithm"),
  (lambda: controllers.OneMinusLogUniform(0.9, 1 - 1e-9), "as float32"),
  (lambda: controllers.Choice((1.0,)), "leaves no choice"),
  (lambda: controllers.Choice((1.0, 2.0, 1.0)), "has a value twice"),
  (lambda: controllers.explore(_pbt(), {"tau": 0.1}),
   r"\['tau'\]=0.1 is not a range.*Fixed"),
  (lambda: controllers.pb2(
    controllers.PB2Config(), {"x": controllers.Choice((1.0, 2.0))}
  ), "has no scale .* use Uniform"),
  (lambda: trees.tree_leaves_by_name({"sac": {"tau": 1.0}, "sac/tau": 2.0}),
   "2 leaves.*sac/tau; rename"),
  # Calls.
  (lambda: _init(controllers.pbt, _pbt(), 0), "population_size=0 has no"),
  (lambda: _init(controllers.pbt, _pbt(num_parents=3, num_replaced=2), 4),
   "size=4 is too small for num_parents=3 and num_replaced=2, since no parent"),
  (lambda: _update((2, 2), x=jnp.zeros(2)), r"fitness \(2, 2\) and"),
  (lambda: _update(x=jnp.zeros(3)), r"hyperparameters x \(3,\) d"),
  (lambda: controllers.inherit({"x": jnp.zeros(())}, jnp.arange(3)),
   r"members have x \(\), but"),
  # What a user's controller returns.
  (lambda: _check(reasons={"why": jnp.zeros(3)}), r"why is float32\(3,\), not"),
  (lambda: _check(parents=jnp.zeros(4)), r"parents is float32\(4,\), not int3"),
  (lambda: _check(hyperparams={"x": jnp.zeros(3)}), r"/x is float32\(3,\)"),
  # What is read from files.
  (lambda: lineage.stack_lineage_hyperparams([{"rate": 1.0}], {"tau": 0.5}),
   "{'rate': 1.0} have other names than tau")])
def test_what_is_wrong_is_named_with_the_fix(call, complaint):
  with pytest.raises(ValueError, match=complaint):
    call()


@pytest.mark.parametrize(("text", "complaint"), [
  ("tau", "lacks a name or a kind"),
  ("tau:loguniform:1e-3:1e-1", "did you mean 'log_uniform'"),
  ("tau:uniform:1", "has 1 numbers after 'uniform', not 2")])
def test_text_that_is_no_range_is_repeated(text, complaint):
  with pytest.raises(ValueError) as error:
    ranges.parse_range(text)
  message = str(error.value)
  assert repr(text) in message and complaint in message
  assert "\n" not in message
