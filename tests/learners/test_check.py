"""Tests of what is said of a learner that isn't one, and of its batches."""


import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import learners
from tests import compilations
from tests.learners import common

_EACH = pytest.mark.parametrize("name", ["sac", "td3", "crossq", "xqc"])
_SIZES = common.OBSERVATION_SIZE, common.ACTION_SIZE


def _act_greedy(state, observation):
  return jnp.broadcast_to(state, (*observation.shape[:-1], 2))


def _update(state, hyperparams, transitions, key):
  del transitions, key
  return state - hyperparams["rate"] * state, {"loss": jnp.sum(state)}


_LEARNER = learners.Learner(
  init=lambda key: jax.random.uniform(key, (2,)),
  update=_update,
  act=lambda state, hyperparams, observation, key: _act_greedy(
    state, observation
  ),
  act_greedy=_act_greedy,
  observe=lambda state, observation: state,
  hyperparams={"rate": 0.01},
  batches_per_update=1,
  genotype=lambda state: state,
  from_genotype=lambda genotype: genotype,
)


def _refused(**changes):
  with pytest.raises(ValueError) as caught:
    learners.check(_LEARNER._replace(**changes), *_SIZES)
  return str(caught.value)


@_EACH
def test_our_learners_are_as_they_should_be(name):
  learners.check(common.case(name).learner, *_SIZES)


def test_a_check_compiles_nothing():
  assert compilations.of(lambda: learners.check(_LEARNER, *_SIZES)) == 0


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"hyperparams": {}}, "hyperparams={} have no number; give one, such as"),
    ({"hyperparams": {"a": {"b": "x"}}}, "a/b='x'; give a Python float"),
    ({"batches_per_update": 0}, "batches_per_update=0 is not a count"),
    ({"init": lambda key: ()}, "has no array"),
    (
      {"act_greedy": lambda state, observation: state},
      "act_greedy makes an array (2,) of observations (3, 3); return actions "
      "(3, 2): [..., A] of [..., O].",
    ),
    (
      {"observe": lambda state, observation: observation},
      "observe returns differs from that of init: the array is float32(3, 3), "
      "not float32(2,); return the same tree, shapes and dtypes.",
    ),
    (
      {"from_genotype": lambda genotype: {"state": genotype}},
      "from_genotype returns differs",
    ),
    ({"update": lambda *args: args[0]}, "update returns a ShapeDtypeStruct"),
    (
      {"update": lambda *args: _update(*args)[::-1]},
      "update returns a dict and a ShapeDtypeStruct; return a pair",
    ),
    (
      {"update": lambda *args: (args[0], {"loss": args[0]})},
      "the metric 'loss' with an array (2,); give one number",
    ),
    (
      {"update": lambda *args: (args[0], args[0])},
      "return a pair, the new state and a dict of numbers by name",
    ),
  ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_fix(changes, message):
  assert message in _refused(**changes)


def _reading(state, hyperparams, transitions, key):
  state, metrics = _update(state, hyperparams, transitions, key)
  return state, metrics | {"ends": jnp.sum(transitions.extras["truncation"])}


def test_an_extra_that_is_not_stored_is_named_with_what_stores_it():
  message = _refused(update=_reading)
  assert message == (
    "the learner's update looks for 'truncation', which is none of its "
    "hyperparameters (rate) and none of the extras that its batches hold "
    "(none); of what comes along with a transition only that is stored which "
    "TrainingConfig(replay_extras=('truncation',)) names."
  )
  learners.check(
    _LEARNER._replace(update=_reading),
    *_SIZES,
    {"truncation": jax.ShapeDtypeStruct((), jnp.float32)},
  )


@_EACH
def test_a_batch_without_its_first_axis_is_refused_with_the_fix(name):
  case = common.case(name)
  n = case.learner.batches_per_update
  with pytest.raises(ValueError) as caught:
    jax.eval_shape(
      case.learner.update, common.agent(case.learner),
      case.learner.hyperparams, common.transitions(64), jax.random.key(0),
    )  # fmt: skip
  message = str(caught.value)
  assert "observations have shape (64, 3) and their rewards (64,)" in message
  assert f"takes observations ({n}, B, O)" in message
  fix = "add the axis: jax.tree.map(lambda x: x[None], transitions)."
  if n > 1:
    fix = f"sample {n} of them, with the shape ({n}, B)."
  assert message.endswith(fix)


@_EACH
def test_an_update_without_hyperparameters_names_them(name):
  case = common.case(name)
  with pytest.raises(ValueError, match="hyperparams lack .*discount, .*; give"):
    jax.eval_shape(
      case.learner.update, common.agent(case.learner), {},
      common.batches(case.learner), jax.random.key(0),
    )  # fmt: skip


def test_an_update_outside_of_jit_is_compiled_once():
  case = common.case("sac")
  args = (common.agent(case.learner), case.learner.hyperparams)
  for seed, expected in ((0, None), (1, 0)):
    rows, key = common.batches(case.learner, seed=seed), jax.random.key(seed)
    found = compilations.of(case.learner.update, *args, rows, key)
    assert expected in (None, found)


def test_acting_outside_of_jit_is_compiled_once():
  case = common.case("td3")
  args = (common.agent(case.learner), case.learner.hyperparams)
  case.learner.act(*args, common.observations(4), jax.random.key(0))
  args = (*args, common.observations(4, seed=1), jax.random.key(1))
  assert compilations.of(case.learner.act, *args) == 0


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: learners.sac(0, 2), "observation_size=0 is not a count"),
    (lambda: learners.td3(3, 0), "action_size=0 is not a count"),
    (lambda: learners.crossq(3, 0), "action_size=0 is not a count"),
    (
      lambda: learners.SACConfig(initial_temperature=0.0),
      "initial_temperature .* got 0.0",
    ),
    (
      lambda: learners.XQCConfig(initial_temperature=float("nan")),
      "initial_temperature .* got nan",
    ),
    (lambda: learners.TD3Config(policy_delay=0), "policy_delay .* got 0"),
    (lambda: learners.XQCConfig(num_atoms=1), "num_atoms must be at least 2"),
    (
      lambda: learners.DIAYNConfig(discriminator_input="state"),
      "discriminator_input='state' .*give",
    ),
  ],
)
def test_a_setting_out_of_its_range_is_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()
