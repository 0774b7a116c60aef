"""Tests of a run's directory and its rows."""

import json

import pytest

from qdrl_haiku.cpu import xla
from qdrl_haiku.programs.storage import directory as directory_lib
from qdrl_haiku.programs.storage.directory import RunDirectory


@pytest.fixture
def directory(tmp_path):
  return RunDirectory(tmp_path / "run")


def _row(generation, **values):
  return {"generation": generation, "step": 10 * generation} | values


def test_a_new_run_has_its_settings_and_versions(directory):
  directory.begin({"seed": 3, "hidden_layer_sizes": ["8", "8"]})
  config = json.loads((directory.path / "config.json").read_text())
  assert config == {"seed": 3, "hidden_layer_sizes": ["8", "8"]}
  versions = json.loads((directory.path / "versions.json").read_text())
  assert {"python", "jax", "jaxlib", "brax", "devices"} <= versions.keys()
  assert versions["xla_left_out"] == xla.unknown_to_xla()
  assert all(versions[name] for name in ("python", "jax", "devices"))


def test_going_on_is_with_the_same_settings(directory):
  before = {"seed": 0, "num_envs": 8, "num_timesteps": 100}
  directory.begin(before)
  with pytest.raises(ValueError, match="--num_envs was 8 and is 4"):
    directory.go_on(before | {"num_envs": 4}, ["num_timesteps"])
  assert directory.settings() == before
  longer = before | {"num_timesteps": 200, "resume": True}
  directory.go_on(longer, ["num_timesteps", "resume"])
  assert directory.settings() == longer


def test_a_flag_may_say_what_was_in_effect_without_it(directory):
  def settings(flag, value):
    return {"discount": flag, "in_effect": {"hyperparams": {"discount": value}}}

  directory.begin(settings(None, 0.995))
  with pytest.raises(ValueError, match="discount .in effect. was 0.995 and is"):
    directory.go_on(settings(None, 0.99))
  with pytest.raises(ValueError, match="--discount was None and is 0.98"):
    directory.go_on(settings(0.98, 0.98))
  directory.go_on(settings(0.995, 0.995))
  assert directory.settings()["discount"] == 0.995


def test_settings_are_compared_as_json_has_them(directory):
  settings = {"ranges": {"tau": (0.1, 0.2)}, "in_effect": {"plain": False}}
  directory.begin(settings)
  directory.go_on(settings)
  changed = settings | {"in_effect": {"plain": True}}
  with pytest.raises(ValueError, match=r"plain \(in effect\) was False and is"):
    directory.go_on(changed)


def test_of_what_is_in_effect_the_numbers_that_differ_are_named(directory):
  def settings(tau):
    ranges = {name: {"value": x} for name, x in (("tau", tau), ("lr", 0.5))}
    return {"tau": tau, "ranges": ranges}

  directory.begin(settings(None) | {"ranges": settings(0.1)["ranges"]})
  with pytest.raises(ValueError, match=(
    r"settings: --tau was None and is 0.2; ranges/tau/value \(in effect\) was "
    "0.1 and is 0.2[.] Resume"
  )):
    directory.go_on(settings(0.2))


def test_a_run_of_another_version_is_refused(directory, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(directory_lib, "__version__", "0.0.1")
    directory.begin({"seed": 0})
  with pytest.raises(ValueError, match="by qdrl_haiku 0.0.1, and this is"):
    directory.go_on({"seed": 0})


def test_a_directory_in_which_another_trains_is_refused(directory):
  directory.begin({})
  other = RunDirectory(directory.path)
  with pytest.raises(ValueError, match="in use: another .*; wait for that"):
    other.go_on({})
  directory.close()
  other.go_on({})


def test_rows_are_strict_json(directory):
  directory.begin({})
  nan, inf = float("nan"), float("inf")
  directory.append("x.jsonl", [_row(1, a=nan, b={"c": -inf, "d": 1.5})])
  text = (directory.path / "x.jsonl").read_text()
  assert "NaN" not in text and "Infinity" not in text
  assert directory.rows("x.jsonl") == [_row(1, a=None, b={"c": None, "d": 1.5})]


def test_rows_that_were_cut_short_or_came_later_are_left_out(directory):
  directory.begin({})
  directory.append("x.jsonl", [_row(1), _row(1), _row(2)])
  with (directory.path / "x.jsonl").open("a") as file:
    file.write('{"generation": 3, "st')
  assert directory.rows("x.jsonl") == [_row(1), _row(1), _row(2)]
  directory.forget_after("x.jsonl", 1)
  directory.append("x.jsonl", [_row(3)])
  assert directory.rows("x.jsonl") == [_row(1), _row(1), _row(3)]
