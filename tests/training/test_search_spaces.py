"""Tests of what is searched by default and as users say it."""

from typing import NamedTuple

import pytest

from qdrl_haiku import controllers, learners, training

_SAC = learners.sac(2, 2).hyperparams
_TD3 = learners.td3(2, 2).hyperparams
_XQC = learners.xqc(2, 2).hyperparams


def _searched(space):
  return {
    name
    for name, range_ in space.items()
    if not isinstance(range_, controllers.Fixed)
  }


@pytest.mark.parametrize(
  "hyperparams", [_SAC, _TD3, _XQC], ids=["sac", "td3", "xqc"]
)
def test_by_default_rates_discount_and_rewards_are_searched_around_their_values(
  hyperparams,
):
  space = training.search_space(hyperparams, [], {})
  assert space.keys() == hyperparams.keys()
  for name, range_ in space.items():
    if name == "reward_scaling" or name.endswith("learning_rate"):
      assert isinstance(range_, controllers.LogUniform)
      low, value, high = range_.low, hyperparams[name], range_.high
    elif name == "discount":
      assert isinstance(range_, controllers.OneMinusLogUniform)
      low, value, high = 1 - range_.high, 1 - hyperparams[name], 1 - range_.low
    else:
      continue
    # Bounds have one or two digits, such as 2e-4 to 5e-4 around 3e-4.
    assert low / value == pytest.approx(0.6, rel=0.12)
    assert high / value == pytest.approx(1.6, rel=0.12)


def test_what_is_given_or_not_searched_is_fixed():
  hyperparams = _SAC | {"discount": 0.9}
  space = training.search_space(hyperparams, [], {"discount": 0.9})
  assert space["discount"] == controllers.Fixed(0.9)
  assert space["tau"] == controllers.Fixed(_SAC["tau"])
  assert space["target_entropy"] == controllers.Fixed(-1.0)
  assert "policy_learning_rate" in _searched(space)


def test_the_last_specification_of_a_name_replaces_the_defaults():
  space = training.search_space(
    _SAC, ["tau:uniform:0.1:0.2", "tau:log_uniform:1e-3:1e-1"], {}
  )
  assert _searched(space) == {"tau"}
  assert space["tau"] == controllers.LogUniform(1e-3, 1e-1)


class _Rates(NamedTuple):
  discount: float
  policy: dict[str, float]


@pytest.mark.parametrize(
  ("hyperparams", "specification", "given", "message"),
  [
    (_SAC, "discuont:uniform:0:0.9", {}, "'discuont'.*'discount'"),
    (_SAC, "tau:uniform:0:1", {"tau": 0.1}, "--tau=0.1 .*search_space"),
    (
      _Rates(0.9, {"speed": 1.0}), "policy/sped:uniform:0:1", {},
      "'policy/sped'.*'policy/speed'",
    ),
  ],
)  # fmt: skip
def test_unknown_or_given_names_are_refused(
  hyperparams, specification, given, message
):
  with pytest.raises(ValueError, match=message):
    training.search_space(hyperparams, [specification], given)


def test_a_space_is_a_tree_like_the_hyperparameters():
  space = training.search_space(
    _Rates(discount=0.9, policy={"speed": 2.0, "tau": 0.1}),
    ["policy/speed:uniform:0:1"],
    {},
  )
  assert space == _Rates(
    controllers.Fixed(0.9),
    {"speed": controllers.Uniform(0, 1), "tau": controllers.Fixed(0.1)},
  )
  by_default = training.search_space(_Rates(0.9, {"tau": 0.1}), [], {})
  assert isinstance(by_default.discount, controllers.OneMinusLogUniform)


def test_what_a_learner_declares_is_searched():
  declared = {
    "speed": learners.Hyperparameter(2.0, "how fast", search="uniform:1:3"),
    "discount": learners.Hyperparameter(0.9, "of its own"),
  }
  hyperparams = {"speed": 2.0, "discount": 0.9, "tau": 0.1}
  space = training.search_space(hyperparams, [], {}, declared)
  # What it says of a discount counts, not what ours do.
  assert space == {
    "speed": controllers.Uniform(1, 3),
    "discount": controllers.Fixed(0.9),
    "tau": controllers.Fixed(0.1),
  }
  given = training.search_space(hyperparams, [], {"speed": 2.0}, declared)
  assert given["speed"] == controllers.Fixed(2.0)
