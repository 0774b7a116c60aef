"""Tests of what is said of a user's environment that isn't one."""

import jax
import pytest

from qdrl_haiku import environments
from qdrl_haiku.environments import base, value_checks
from tests.environments import liars

_WRONG_VALUES = [
  ("nan_obs_at_reset", r"env\.reset returned NaN in obs\[0\]; return finite"),
  ("one_nan_obs_at_step", r"env\.step returned NaN in obs\[1\]; return finite"),
  ("late_inf_reward", r"env\.step returned inf in reward; return finite"),
  ("minus_inf_reward_at_reset", r"env\.reset returned -inf in reward;"),
  ("nan_done", r"env\.step returned NaN in done;"),
  ("half_done", r"env\.step returned done=0\.5; return 1 where an episode"),
  ("done_at_reset", r"env\.reset returned done=1: .*before its first step"),
  (
    "nan_descriptor_at_reset",
    r"env\.reset returned NaN in info\['state_descriptor'\]\[0\];",
  ),
  (
    "nan_descriptor_at_step",
    r"env\.step returned NaN in info\['state_descriptor'\]\[1\];",
  ),
  ("truncation_of_two", r"env\.step returned info\['truncation'\]=2; return 1"),
]
_WRONG_KIND = [
  ("like_gym", r"env\.step of _LikeGym takes other arguments .*step\(state,"),
  ("branching", r"env\.step can't be compiled .*\(.*\); .*instead of `if`"),
  ("named", r"env\.reset can't be compiled .*\(.*str.*\); return arrays"),
  ("no_size", "env=_Bare has no 'observation_size'; give an object with"),
  ("no_info", "info is a NoneType; return a dict"),
  ("list_of_obs", "obs is a list; return one array"),
  ("other_size", r"obs has shape \(2,\) instead of \(3,\); return"),
  ("other_shape_at_step", r"different shapes: \.obs .*\[2\] -> .*\[3\]"),
  ("other_keys_at_step", r"only one of them has \.info\['distance'\]"),
  ("complex_reward", "reward has dtype complex64; return real numbers"),
  ("int_descriptor", r"info\['state_descriptor'\] has dtype int32; return fl"),
]


def _create(name):
  return environments.create(f"tests.environments.liars:{name}")


@pytest.mark.parametrize(("name", "message"), _WRONG_VALUES + _WRONG_KIND)
def test_a_users_environment_that_lies_is_refused_by_the_field(name, message):
  with pytest.raises(ValueError, match=message) as error:
    _create(name)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["honest", "ending", "truncating"])
def test_one_that_is_what_it_says_is_taken_whatever_follows_an_end(name):
  env = _create(name)
  assert env.reset(jax.random.split(jax.random.key(0), 3)).obs.shape == (3, 2)


@pytest.mark.parametrize("action_repeat", [1, 3])
def test_values_are_checked_with_repeated_actions(action_repeat):
  env = base.Environment(
    liars.late_inf_reward(), episode_length=9, action_repeat=action_repeat
  )
  with pytest.raises(ValueError, match="inf in reward"):
    value_checks.check_values(env)


def test_environments_of_the_package_are_not_run_to_be_checked(monkeypatch):
  def fail(_):
    raise AssertionError("It costs a compilation.")

  monkeypatch.setattr(value_checks, "check_values", fail)
  environments.create("point_maze")
  with pytest.raises(AssertionError):
    _create("honest")


@pytest.mark.parametrize("numbers, message", [
  ({"episode_length": 3, "action_repeat": 4}, "action_repeat=4 .*length=3"),
  ({"episode_length": 2**30}, r"episode_length=1073741824 .*2\*\*30"),
])
def test_numbers_that_are_too_large_are_refused(numbers, message):
  with pytest.raises(ValueError, match=message):
    base.Environment(liars.honest(), **numbers)
