"""Tests of what learners declare of their hyperparameters."""

import pytest

from qdrl_haiku import controllers, learners, skills

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
