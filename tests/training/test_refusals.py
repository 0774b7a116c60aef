"""Tests of what is refused, by the entry points that users call."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import learners, map_elites, skills, training
from tests.training import common


def _quadratic(**hyperparams):
  learner = common.quadratic_learner()
  return learner._replace(hyperparams=learner.hyperparams | hyperparams)


def _reading_truncations():
  """A learner that reads an extra, and counts in its metrics."""
  learner = _quadratic(discount=0.9)

  def update(state, hyperparams, transitions, key):
    ends = jnp.sum(transitions.extras["truncation"])
    state, metrics = learner.update(state, hyperparams, transitions, key)
    return state, metrics | {"ends": ends}

  return learner._replace(update=update)


def _describing(state, hyperparams, observation, memory, key):
  """Acts, and returns an extra by the name of an environment's."""
  acted = _quadratic().act(state, hyperparams, observation, memory, key)
  return acted._replace(extras={"descriptor": acted.action})


def _rewarding_itself():
  config = learners.DIAYNConfig(discriminator_input="observation")
  return learners.diayn(
    learners.sac(5, 2), 2, skills.categorical(3), config=config)


def _configured(setup, **settings):
  return setup._replace(config=dataclasses.replace(setup.config, **settings))


_variations = functools.partial(common.repertoire_setup, with_pbt=False)
_OWN = map_elites.genetic_emitter(common.vary, 2)
_AGAIN = map_elites.deep_archive(
  map_elites.Grid((6, 6), (-2.0, -2.0), (2.0, 2.0)), map_elites.Resampling(), 8)


@pytest.mark.parametrize(("setup", "message"), [
  # Emitters.
  (_variations(emitter=lambda setup: _OWN._replace(needs=("dreams",))),
   "needs dreams, which evaluation doesn't"),
  (_variations(
     emitter=lambda setup: _OWN._replace(
       ask=lambda *args: _OWN.ask(*args)[::-1])
   ), "and then the emitter's new state"),
  (_variations(
     emitter=lambda setup: _OWN, container=_AGAIN._replace(init=lambda: ())
   ), "the init of the container deep_archive doesn't take 2 arguments"),
  (_variations(emitter=(training.Part("ga", 3),)),
   "makes 3 agents, and 2 are planned"),
  (common.repertoire_setup(
     emitter=(training.Part("ga", 1), training.Part("pbt", 4))
   ), "emitter ga, pbt: pbt has to be the first"),
  (_configured(common.repertoire_setup(), burn_in_period=100),
   "burn_in_period=100 has no effect: a repertoire's agents are judged by"),
  (_variations(container=_AGAIN, shard_repertoire=True),
   "shard_repertoire: devices can't share what the container deep_archive"),
  # Learners, and what they learn from.
  (common.repertoire_setup()._replace(
     learner=_quadratic()._replace(observe=lambda state, observation: ())
   ), "learner's observe returns differs"),
  (common.setup(learner=_quadratic()._replace(stores=("skill",))),
   "stores skill, which transitions don't have .none.; let its act return it"),
  (common.setup(
     learner=_quadratic()._replace(act=lambda s, h, observation, key: None)
   ), "act is .* doesn't take 5 arguments; act is .* .until 0.4 there was n"),
  (common.setup(
     learner=_quadratic()._replace(act=_describing), env=common.Placed
   ), "act returns extras with names that the environment uses .descriptor"),
  (common.setup(learner=_reading_truncations(), n_step=3),
   "only if Learner.stores=.'truncation',. names it"),
  (common.setup(n_step=2), "n_step=2 sums.*are learning_rate, parent; give"),
  (common.setup(learner=_rewarding_itself(), n_step=2),
   "n_step=2, but the learner learns from single steps"),
  (_configured(_variations(emitter="pga"), n_step=2)._replace(
     learner=_quadratic(discount=0.9)
   ), "n_step=2, but with emitter pga agents learn from single steps")])
def test_a_setup_is_refused_before_anything_is_computed(setup, message):
  with pytest.raises(ValueError, match=message):
    common.shapes(setup)


def test_what_is_nearly_too_much_is_trained():
  common.shapes(common.setup(
    learner=_reading_truncations()._replace(stores=("truncation",)), n_step=3))
  # More steps than an int32 counts.
  setup = common.setup(
    population_size=3000, perturbation_interval=2**21, grad_updates_per_step=0.5
  )
  step = functools.partial(common.step, setup)
  _, report = jax.eval_shape(step, common.shapes(setup), common.KEY)
  assert report.evaluation_steps.shape == (3000, 2)
