"""Tests of what is said of a learner that isn't one, and of its batches."""

import functools

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import learners
from tests import compilations, toy
from tests.learners import common

_SIZES = common.OBSERVATION_SIZE, 1
_LEARNER = toy.linear_learner()


def _refused(**changes):
  with pytest.raises(ValueError) as caught:
    learners.check(_LEARNER._replace(**changes), *_SIZES)
  return str(caught.value)


def test_a_check_of_a_learner_compiles_nothing():
  assert compilations.of(lambda: learners.check(_LEARNER, *_SIZES)) == 0


def _updating(found):
  """The change of an update to one that returns `found(state)`."""
  return {"update": lambda state, *_: found(state)}


@pytest.mark.parametrize(("changes", "message"), [
  ({"hyperparams": {}}, "hyperparams={} have no number; give one, such as"),
  ({"hyperparams": {"a": {"b": "x"}}}, "a/b='x'; give a Python float"),
  ({"learns_from": "memory"}, "learns_from='memory' is unknown; give 'rep"),
  ({"init": lambda key: ()}, "has no array"),
  (
    {"act_greedy": lambda state, observation: state["gain"]},
    "act_greedy makes an array () of observations (3, 3); return actions "
    "(3, 1): [..., A] of [..., O].",
  ),
  (
    {"observe": lambda state, observation: state | {"gain": observation}},
    "observe returns differs from that of init: gain is float32(3, 3), not "
    "float32(); return the same tree, shapes and dtypes.",
  ),
  (_updating(lambda state: state), "update returns a dict; return a pair"),
  (
    _updating(lambda state: (state, {"loss": jnp.ones(2)})),
    "the metric 'loss' with an array (2,); give one number",
  ),
])
def test_what_is_wrong_is_said_with_the_fix(changes, message):
  assert message in _refused(**changes)


@pytest.mark.parametrize(("name", "changes", "message"), [
  (
    "sac",
    {"transitions": common.transitions(64)},
    "observations have shape (64, 3) and their rewards (64,), but an update "
    "of one agent takes observations (1, B, O) and rewards (1, B), as many "
    "batches as batches_per_update=1 says; add the axis: "
    "jax.tree.map(lambda x: x[None], transitions).",
  ),
  (
    "td3",
    {"transitions": common.transitions(64)},
    "says; sample 2 of them, with the shape (2, B).",
  ),
  ("td3", {"hyperparams": {}}, "hyperparams lack critic_learning_rate,"),
  (
    "ppo",
    {"transitions": common.transitions(4, 6)},
    "rewards (4, 6) and their extras none; an update of one agent takes a "
    "rollout in its order, observations (T, E, O) and rewards (T, E), with "
    "`truncation` (T, E).",
  ),
])
def test_what_an_update_can_not_learn_from_is_refused(name, changes, message):
  learner = common.learner(name)
  given = {
    "hyperparams": learner.hyperparams,
    "transitions": common.batches(learner),
    "key": jax.random.key(0),
  }
  with pytest.raises(ValueError) as caught:
    jax.eval_shape(
      functools.partial(learner.update, common.fresh(learner)),
      **given | changes,
    )
  assert message in str(caught.value)
