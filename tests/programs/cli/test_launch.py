"""Tests of absl's flags of declared settings."""

import dataclasses
import importlib
import pathlib
import re

import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.programs import experiment
from qdrl_haiku.programs.cli import launch


@dataclasses.dataclass(frozen=True)
class _Walk(Settings):
  """Flags of every type."""

  title = "Walk"

  steps: int = setting(3, "How many steps.")
  pace: float | None = setting(None, "Steps per second.")
  alone: bool = setting(True, "Whether nobody comes along.")
  path: str = setting("field", "Field or wood.")
  stops: tuple[str, ...] = setting(("inn", "hill"), "Stops on the way.")
  note: tuple[str, ...] = setting((), "A note.", repeatable=True)


@pytest.fixture
def parse():
  """Returns what a command line is parsed to."""
  flags = config_lib.config_tree_flags(_Walk())

  def parse_(*arguments):
    command = ["walk.py", *arguments]
    with flagsaver.flagsaver():
      known = list(absl_flags.FLAGS)
      launch.define_flags(flags.values())
      absl_flags.FLAGS(command)
      given = launch.parse_flags(flags, command)
      absl_flags.FLAGS.unparse_flags()
      for name in set(absl_flags.FLAGS) - set(known):
        delattr(absl_flags.FLAGS, name)
    return given

  return parse_


def test_values_have_the_types_of_their_settings(parse):
  assert parse() == launch.Given({}, frozenset())
  given = parse(
    "--steps=4", "--pace=2", "--noalone", "--path=wood", "--stops=pub",
    "--note=a", "--note=b")
  assert given.fill(_Walk()) == _Walk(
    steps=4, pace=2.0, alone=False, path="wood", stops=("pub",),
    note=("a", "b"))


def test_what_a_flagfile_gives_is_given_but_not_typed(parse, tmp_path):
  (tmp_path / "long.flags").write_text("--steps=9\n")
  given = parse(f"--flagfile={tmp_path / 'long.flags'}", "--path=wood")
  assert given.values == {"steps": 9, "path": "wood"}
  assert given.typed == {"path"}


def test_help_lists_flags_in_sections_with_their_defaults():
  text = launch.flags_help_text(
    "Walks.", config_lib.config_tree_flags(_Walk()).values())
  assert text.splitlines()[:5] == [
    "Walks.", "", "Walk:", "  --steps=3: How many steps.",
    "  --pace: Steps per second."]
  assert "  --[no]alone=true: Whether nobody comes along." in text


def test_each_launcher_is_a_program_where_the_package_is_installed():
  root = pathlib.Path(__file__).parents[3]
  text = (root / "setup.py").read_text()
  found = re.findall(r'"([\w-]+)": "(\w+):(\w+)"', text)
  assert {name.replace("-", "_") for name, *_ in found} == {
    path.stem for path in (root / "launchers").glob("*.py")}
  for _, module, function in found:
    assert hasattr(
      importlib.import_module(f"qdrl_haiku.programs.cli.{module}"), function)


@pytest.mark.parametrize("name", experiment.LAUNCHERS)
def test_a_person_can_read_all_flags(name):
  """The most used come first, and what a text names is a flag."""
  flags = experiment.LAUNCHERS[name].flags()
  sections = [flag.section for flag in flags.values()]
  first = list(dict.fromkeys(sections))[:3]
  assert first == ["Environment", "Run", "Training"]
  of_methods = {"Hyperparameters", "Emitters", "Containers", "Describer"}
  assert len([x for x in sections if x not in of_methods]) <= 73
  texts = " ".join(flag.declared.help for flag in flags.values())
  named = set(re.findall(r"--(?:no)?(\w+)", texts))
  assert named and not named - flags.keys()
