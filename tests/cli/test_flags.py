"""Tests of flags as one frozen value."""

import dataclasses
import json

import pytest
from absl import flags as absl_flags
from absl.testing import flagsaver

from qdrl_haiku.cli.benchmark import MEPBTBenchmarkFlags
from qdrl_haiku.cli.flags import Flags, flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Walk(Flags):
  """Flags of every type."""

  steps: int = flag(3, "How many.")
  pace: float | None = flag(None, "Steps per second.")
  alone: bool = flag(True, "Without company.")
  path: str = flag("field", "Or wood.")
  stops: tuple[str, ...] = flag(("inn", "hill"), "On the way.")
  note: tuple[str, ...] = flag((), "Repeatable.", repeatable=True)


@pytest.fixture
def parse():
  """Returns what a command line is parsed to."""

  def parse_(*arguments):
    command = ["walk.py", *arguments]
    # A set of flags of our own, since absl has one for the whole process.
    own = absl_flags.FlagValues()
    with pytest.MonkeyPatch.context() as patch:
      for name in ("bool", "float", "integer", "string", "list"):
        _bind(patch, f"DEFINE_{name}", own)
      _bind(patch, "DEFINE_multi_string", own)
      patch.setattr(absl_flags, "FLAGS", own)
      _Walk.define()
      own(command)
      return _Walk.parsed(command)

  return parse_


def _bind(patch, name, own):
  define = getattr(absl_flags, name)
  patch.setattr(
    absl_flags, name, lambda *arguments: define(*arguments, flag_values=own)
  )


def test_flags_not_given_have_the_values_of_their_fields(parse):
  assert parse() == _Walk()


def test_values_have_the_types_of_their_fields(parse):
  walk = parse(
    "--steps=4", "--pace=2", "--noalone", "--path=wood", "--stops=pub",
    "--note=a", "--note=b",
  )  # fmt: skip
  assert walk == _Walk(
    given=frozenset({"steps", "pace", "alone", "path", "stops", "note"}),
    typed=walk.given,
    steps=4,
    pace=2.0,
    alone=False,
    path="wood",
    stops=("pub",),
    note=("a", "b"),
  )
  assert isinstance(walk.pace, float)


def test_what_a_flagfile_gives_is_given_but_not_typed(parse, tmp_path):
  (tmp_path / "long.flags").write_text("--steps=9\n")
  walk = parse(f"--flagfile={tmp_path / 'long.flags'}", "--path=wood")
  assert walk.steps == 9
  assert walk.given == {"steps", "path"}
  assert walk.typed == {"path"}


def test_nothing_is_ever_written_back():
  with pytest.raises(dataclasses.FrozenInstanceError):
    _Walk().steps = 4  # type: ignore[misc]


def test_settings_are_what_json_gives_back():
  walk = _Walk(steps=4, stops=("pub",), path="wood")
  settings = walk.settings(besides=["path"])
  assert json.loads(json.dumps(settings)) == settings
  assert "path" not in settings and "given" not in settings
  assert _Walk().with_settings(settings, (), "here") == _Walk(
    steps=4, stops=("pub",)
  )


def test_settings_of_a_run_leave_what_was_given_and_what_is_excepted():
  walk = _Walk(given=frozenset({"steps"}), steps=5, path="wood")
  found = walk.with_settings(
    {"steps": 4, "path": "field", "alone": False, "unknown": 1}, ["path"], ""
  )
  assert (found.steps, found.path, found.alone) == (5, "wood", False)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("steps", "4"),
    ("steps", True),
    ("steps", None),
    ("pace", False),
    ("alone", 1),
    ("stops", "inn"),
    ("stops", [1]),
  ],
)
def test_settings_of_another_type_are_damage(name, value):
  with pytest.raises(ValueError, match=f"run is damaged: {name} is .*--{name}"):
    _Walk().with_settings({name: value}, (), "run")


def test_flags_without_effect_are_refused_where_they_were_given():
  walk = _Walk(given=frozenset({"stops"}))
  walk.refuse_given(["steps"], "no walk")
  with pytest.raises(ValueError, match="--stops=inn,hill has no effect: no"):
    walk.refuse_given(["steps", "stops"], "no walk")


def test_a_choice_on_the_command_line_overrides_a_flagfiles_other_flags():
  walk = _Walk(
    given=frozenset({"path", "steps"}), typed=frozenset({"path"}), path="wood"
  )
  walk.refuse_given(["steps"], "woods have none", "path")
  with pytest.raises(ValueError, match="--steps=3 has no effect"):
    walk.refuse_given(["steps"], "woods have none", "pace")


def test_a_word_that_is_no_choice_is_told_the_nearest():
  _Walk().check_choice("path", ["field", "wood"])
  _Walk().check_choice("pace", ["slow"])
  with pytest.raises(ValueError, match="--path=filed is unknown; .*'field'"):
    _Walk(path="filed").check_choice("path", ["field", "wood"])


def test_every_flag_of_the_largest_program_can_be_defined_and_parsed():
  with flagsaver.flagsaver():
    MEPBTBenchmarkFlags.define()
    command = ["benchmark.py", "--discount=0.9", "--policy_final_init=small"]
    absl_flags.FLAGS(command)
    parsed = MEPBTBenchmarkFlags.parsed(command)
    absl_flags.FLAGS.unparse_flags()
  assert parsed.settings() == MEPBTBenchmarkFlags().settings() | {
    "discount": 0.9,
    "policy_final_init": "small",
  }
