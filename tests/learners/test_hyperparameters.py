"""Tests of what learners declare of their hyperparameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, learners, skills
from tests.learners import common

_SAC = learners.sac(3, 2)
_LEARNERS = {
  "sac": _SAC,
  "sac without temperature": learners.sac(
    3, 2, learners.SACConfig(learn_temperature=False)
  ),
  "td3": learners.td3(3, 2),
  "crossq": learners.crossq(3, 2),
  "xqc": learners.xqc(3, 2),
  "diayn": learners.diayn(
    _SAC, 1, skills.categorical(2),
    config=learners.DIAYNConfig(discriminator_input="observation"),
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", _LEARNERS)
def test_each_hyperparameter_of_a_learner_is_declared_once(name):
  learner = _LEARNERS[name]
  assert learner.hyperparams.keys() == learner.declared.keys()
  for key, value in learner.hyperparams.items():
    declared = learner.declared[key]
    assert declared.default in (value, None)
    assert declared is learners.HYPERPARAMETERS[key]


@pytest.mark.parametrize("name", learners.HYPERPARAMETERS)
def test_what_is_declared_makes_sense(name):
  declared = learners.HYPERPARAMETERS[name]
  assert declared.help and not declared.help.endswith(".")
  if declared.default is not None:
    assert declared.low <= declared.default <= declared.high
  if declared.search is not None:
    _, range_ = controllers.search_space.parse(f"{name}:{declared.search}")
    assert declared.low <= range_.low < range_.high <= declared.high


def test_a_base_learners_own_tree_keeps_its_declarations():
  speed = learners.Hyperparameter(0.1, "how fast")
  own = _SAC._replace(
    hyperparams=(0.1,), declared={"0": speed}
  )
  learner = learners.diayn(
    own, 1, skills.categorical(2),
    config=learners.DIAYNConfig(discriminator_input="observation"),
  )  # fmt: skip
  assert learner.declared["base/0"] is speed


# What a change of each hyperparameter reaches at once, in one update, where
# Adam's first step forgets the size of a gradient.
_REACHES = {
  "discount": "critic_optimizer_state",
  "tau": "target_critic_params",
  "policy_learning_rate": "policy_params",
  "critic_learning_rate": "critic_params",
  "reward_scaling": "critic_optimizer_state",
  "temperature_learning_rate": "log_temperature",
  "target_entropy": "temperature_optimizer_state",
  "target_noise_scale": "critic_params",
  "target_noise_clip": "critic_params",
}
_SLOW = ("crossq", "xqc")
_NAMES = ("sac", "td3", *_SLOW)


@functools.cache
def _variants(name):
  """States after one and after six updates, a member per changed leaf.

  The last members have no change.
  """
  case = common.case(name)
  size = common.POPULATION_SIZE
  default = common.hyperparams(case.learner)
  rows = [
    default | {leaf: np.float32(value * 0.8)} for leaf, value in default.items()
  ]
  hyperparams = common.stack(rows + [default] * (size - len(rows)))
  states = [common.repeat(common.agent(case.learner), size)]
  for i in range(6):
    batches = common.repeat(common.batches(case.learner, seed=i), size)
    keys = jnp.stack([jax.random.key(i)] * size)
    states.append(case.update_all(states[-1], hyperparams, batches, keys)[0])
  return states[1], states[-1]


def _differs(states, i, field):
  """How far member i is from the last one, which has the defaults."""
  field = getattr(states, field)
  return common.distance(common.member(field, i), common.member(field, -1))


@pytest.mark.parametrize(
  ("name", "leaf"),
  [
    pytest.param(
      name, leaf, marks=[pytest.mark.slow] if name in _SLOW else []
    )
    for name in _NAMES
    for leaf in common.case(name).learner.hyperparams
  ],
)
def test_every_hyperparameter_is_live(name, leaf):
  i = list(common.case(name).learner.hyperparams).index(leaf)
  first, last = _variants(name)
  fields = [
    x for x in first._fields if x.endswith("_params") or x == "critic_state"
  ]
  if leaf == "exploration_noise":  # No part of an update.
    assert not any(_differs(last, i, field) for field in fields)
    return
  assert _differs(first, i, _REACHES[leaf]) > 1e-6
  # Soon all that the agent has learned depends on it.
  for field in fields:
    assert _differs(last, i, field) > 1e-6, field
