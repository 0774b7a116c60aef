"""Tests of what is searched by default and as users say it."""

from typing import NamedTuple

import pytest

from qdrl_haiku import controllers, learners, training

_SAC = learners.sac(2, 2).hyperparams


def test_by_default_rates_discount_and_rewards_are_searched_near_their_values():
  space = training.search_space(_SAC)
  for name, range_ in space.items():
    if name == "reward_scaling" or name.endswith("learning_rate"):
      assert isinstance(range_, controllers.LogUniform)
      low, value, high = range_.low, _SAC[name], range_.high
    elif name == "discount":
      assert isinstance(range_, controllers.OneMinusLogUniform)
      low, value, high = 1 - range_.high, 1 - _SAC[name], 1 - range_.low
    else:
      assert range_ == controllers.Fixed(_SAC[name])
      continue
    # Bounds have one or two digits, such as 2e-4 to 5e-4 around 3e-4.
    assert low / value == pytest.approx(0.6, rel=0.12)
    assert high / value == pytest.approx(1.6, rel=0.12)
  given = training.search_space(_SAC, given={"discount": 0.9})
  assert given["discount"] == controllers.Fixed(_SAC["discount"])
  assert isinstance(given["policy_learning_rate"], controllers.LogUniform)


class _Rates(NamedTuple):
  discount: float
  policy: dict[str, float]


def test_a_space_is_a_tree_like_the_hyperparameters():
  rates = _Rates(discount=0.9, policy={"speed": 2.0, "tau": 0.1})
  space = training.search_space(rates, ["policy/speed:uniform:0:1"])
  assert space == _Rates(
    controllers.Fixed(0.9),
    {"speed": controllers.Uniform(0, 1), "tau": controllers.Fixed(0.1)},
  )
  with pytest.raises(ValueError, match="'policy/sped'.*'policy/speed'"):
    training.search_space(rates, ["policy/sped:uniform:0:1"])


def test_what_a_learner_declares_is_searched():
  declared = {
    "speed": learners.Hyperparameter(2.0, "how fast", search="uniform:1:3"),
    "discount": learners.Hyperparameter(0.9, "of its own"),
  }
  hyperparams = {"speed": 2.0, "discount": 0.9, "tau": 0.1}
  space = training.search_space(hyperparams, declared=declared)
  # What it says of a discount counts, not what ours do.
  assert space == {
    "speed": controllers.Uniform(1, 3),
    "discount": controllers.Fixed(0.9),
    "tau": controllers.Fixed(0.1),
  }
