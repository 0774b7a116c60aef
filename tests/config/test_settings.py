"""Tests of declared settings."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from qdrl_haiku import checks, learners, networks
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Missing, Settings, setting


@dataclasses.dataclass(frozen=True)
class _Boots(Settings):
  """Of every type, with ranges and words."""

  size: int = setting(42, "Their size.", low=15, high=60)
  pairs: int = setting(1, "How many.", low=1)
  weight: float = setting(1.0, "Kilograms.", above=0)
  colour: str = setting("red", "A colour.", choices=("red", "blue"))
  laces: tuple[int, ...] = setting((90, 120), "Centimetres.", low=10)
  waxed: bool = setting(False, "Whether they are waxed.")
  wax: float | None = setting(None, "Grams.", low=0, only={"waxed": (True,)})


@dataclasses.dataclass(frozen=True)
class _Skates(Settings):
  """Another kind."""

  size: int = setting(42, "Their size.", low=15, high=60)
  wheels: int = setting(4, "How many.", low=2)


@dataclasses.dataclass(frozen=True)
class _Walk(Settings):
  """A root: a section, a choice, numbers by name, and needs."""

  steps: int = setting(3, "How many.", may_change=True)
  map: str | None = setting(None, "Where to go.", needs="guide")
  guide: bool = setting(False, "Whether somebody leads.")
  shoes: Settings = setting(
    "boots", "On the feet.", kinds={"boots": _Boots(), "skates": _Skates()})
  speeds: dict = setting(
    {}, "name=value.", keys={"uphill": "km/h uphill."}, flag="speed")

  def missing(self):
    if self.guide:
      return {}
    return {"guide": Missing("nobody leads", ("guide",))}


@pytest.mark.parametrize(("settings", "message"), [
  ({"size": 14}, "size must be at least 15, got 14"),
  ({"size": True}, "size is True; give an integer"),
  ({"weight": math.inf}, "weight must be finite, got inf"),
  ({"colour": "rde"}, "colour='rde' is unknown; did you mean 'red'"),
  ({"waxed": 1}, "waxed is 1; give true or false"),
  ({"wax": 3.0}, "wax=3.0 has no effect: waxed is False; leave it out")])
def test_a_value_that_makes_no_sense_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    _Boots(**settings)


def test_all_that_makes_no_sense_is_said_at_once():
  message = (
    "^size must be at least 15, got 3[.]\ncolour='rde' is unknown; did you "
    "mean 'red'[?]\nlaces must be at least 10, got 1[.]$")
  with pytest.raises(ValueError, match=message):
    _Boots(size=3, colour="rde", laces=(1,))


@pytest.mark.parametrize("shoes", ["skates", _Skates, Missing("why", ()), None])
def test_a_choice_that_is_no_configuration_is_refused(shoes):
  with pytest.raises(ValueError, match="give _Boots or _Skates or UsersOwn"):
    _Walk(shoes=shoes)


def test_a_section_of_another_class_is_refused():
  with pytest.raises(ValueError, match=r"network is \(8, 8\); give NetworkCon"):
    learners.CrossQConfig((8, 8))


def test_a_section_of_a_class_that_is_extended_will_do():
  network = networks.NetworkConfig(hidden_layer_sizes=(8, 8))
  learner = learners.sac(4, 2, learners.SACConfig(network))
  params = jax.eval_shape(learner.init, jax.random.key(0)).policy_params
  assert params["policy/linear_1"]["w"].shape == (8, 8)


def test_flags_are_those_of_all_kinds_in_the_order_of_declaration():
  assert list(config_lib.config_tree_flags(_Walk())) == [
    "steps", "map", "guide", "shoes", "size", "pairs", "weight", "colour",
    "laces", "waxed", "wax", "wheels", "uphill", "speed"]


def test_values_are_what_the_chosen_kind_has_and_come_back():
  walk = _Walk(shoes=_Skates(wheels=8), speeds={"uphill": 3.0, "downhill": 5.0})
  values = config_lib.config_tree_values(walk)
  assert values == {
    "steps": 3, "map": None, "guide": False, "shoes": "skates", "size": 42,
    "wheels": 8, "uphill": 3.0, "speed": ["downhill=5.0"]}
  assert config_lib.replace_in_config_tree(_Walk(), values) == walk


def test_numpys_numbers_become_those_of_json():
  boots = _Boots(
    size=np.int64(40), weight=np.float32(0.5), laces=(np.int8(12),))
  walk = _Walk(shoes=boots, speeds={"uphill": np.float32(3.5)})
  values = config_lib.config_tree_values(walk)
  names = "size", "weight", "laces", "uphill"
  text = json.dumps({x: values[x] for x in names})
  assert text == '{"size": 40, "weight": 0.5, "laces": [12], "uphill": 3.5}'


def _replaced(given, typed=()):
  return config_lib.replace_in_config_tree(_Walk(), given, typed)


def test_values_are_read_as_their_settings_types():
  walk = _replaced(
    {"steps": 4, "laces": ["80", "81"], "weight": 2, "speed": ["a=1", "a=2"]})
  assert walk.steps == 4
  assert walk.shoes == _Boots(laces=(80, 81), weight=2.0)
  assert walk.speeds == {"a": 2.0}


@pytest.mark.parametrize(("given", "message"), [
  ({"shoes": "bots"}, "--shoes=bots is unknown; did you mean 'boots'"),
  ({"wheels": 6}, "--wheels=6 has no effect: --shoes=boots has no such"),
  ({"wax": 1.0}, "--wax=1.0 has no effect: --waxed=False; leave it out"),
  ({"map": "north"}, "--map=north has no effect: nobody leads; leave it"),
  ({"speed": ["fast"]}, "--speed=fast is not of the form name=value")])
def test_a_flag_without_sense_or_effect_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    _replaced(given)


@pytest.mark.parametrize(("given", "messages"), [
  ({"steps": 1.5, "size": 3, "weight": -1, "map": "north"},
   ["size must be", "weight must be", "steps is 1.5;", "--map=north has no"]),
  # What follows from something wrong isn't said.
  ({"shoes": "bots", "wheels": 6, "speed": ["fast"], "size": 3},
   ["--shoes=bots is", "size must be", "--speed=fast"]),
  ({"waxed": 2, "wax": 3.0}, ["waxed is 2;"]),
  ({"guide": 2, "map": "north"}, ["guide is 2;"])])
def test_all_flags_without_sense_or_effect_are_said_at_once(given, messages):
  with pytest.raises(ValueError) as caught:
    _replaced(given, set(given))
  found = checks.refusals_of(caught.value)
  assert len(found) == len(messages), found
  for text, message in zip(found, messages, strict=True):
    assert text.startswith(message)


def test_a_typed_choice_overrides_what_a_flagfile_says_for_another():
  given = {"shoes": "skates", "colour": "blue", "wheels": 6}
  assert _replaced(given, {"shoes"}).shoes == _Skates(wheels=6)
  with pytest.raises(ValueError, match="--colour=blue has no effect"):
    _replaced(given, {"shoes", "colour"})
  with pytest.raises(ValueError, match="--colour=blue has no effect"):
    _replaced(given)


def test_a_typed_part_overrides_what_a_flagfile_says_for_it():
  given = {"guide": False, "map": "north", "waxed": False, "wax": 2.0}
  walk = _replaced(given, {"guide", "waxed"})
  assert walk.map is None and walk.shoes == _Boots()


def test_what_a_run_was_with_is_read_whatever_it_had_besides():
  values = {"shoes": "boots", "wheels": 6, "steps": 7, "map": "north"}
  assert config_lib.replace_in_config_tree(_Walk(), values) == _Walk(steps=7)


def test_a_setting_that_needs_a_missing_part_is_refused():
  config_lib.check_config_tree(_Walk(guide=True, map="north"))
  with pytest.raises(ValueError, match="map='north' has no effect: nobody"):
    config_lib.check_config_tree(_Walk(map="north"))


def _users(size):
  return _Boots(size)


def test_a_users_function_is_called_and_its_result_checked():
  own = config_lib.UsersOwn(f"{__name__}:_users")
  assert own.call("shoes", _Boots, size=20) == _Boots(20)
  with pytest.raises(ValueError, match="returned a _Boots; return a .*_Skates"):
    own.call("shoes", _Skates, size=20)
  with pytest.raises(ValueError, match="can't be called with size and colour"):
    own.call("shoes", _Boots, size=20, colour="red")
