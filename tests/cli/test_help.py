"""Tests of what `--help` of each launcher prints."""

import dataclasses
import re

import pytest

from qdrl_haiku.cli import help as help_lib
from qdrl_haiku.cli.benchmark import MEPBTBenchmarkFlags, PBTBenchmarkFlags
from qdrl_haiku.cli.compare import CompareFlags
from qdrl_haiku.cli.evaluation_flags import EvaluationFlags
from qdrl_haiku.cli.report import ReportFlags
from qdrl_haiku.cli.retrain_schedule import RetrainFlags
from qdrl_haiku.cli.train import TrainFlags
from qdrl_haiku.cli.train_me_pbt import MEPBTFlags
from qdrl_haiku.cli.train_pbt import PBTFlags

_KINDS = (
  CompareFlags, EvaluationFlags, MEPBTBenchmarkFlags, MEPBTFlags,
  PBTBenchmarkFlags, PBTFlags, ReportFlags, RetrainFlags, TrainFlags,
)  # fmt: skip
# What a text begins with that is read together with another one.
_LEANING = re.compile(
  r"(The same|Which|Who|Or|Of|What|How|In|With|Per|By|Down|Likewise|It|Its"
  r"|Such|This|These|DIAYN's:)\b"
)
_SKILLS = "Skills of DIAYN (--learner=diayn)"


def _titles(text):
  return re.findall(r"^(\S.*):$", text, re.M)


def _names(text):
  return re.findall(r"^  --(?:\[no\])?(\w+):", text, re.M)


@pytest.mark.parametrize("kind", _KINDS)
def test_each_text_is_a_sentence_that_stands_alone(kind):
  for field in dataclasses.fields(kind):
    if "help" not in field.metadata:
      continue
    text = field.metadata["help"]
    said = f"--{field.name}: {text}"
    assert len(text.split()) >= 3, said
    assert re.match(r"[A-Z]", text) and text.endswith("."), said
    assert not _LEANING.match(text), said


@pytest.mark.parametrize("kind", _KINDS)
def test_each_flag_is_listed_once_in_a_known_section(kind):
  text = help_lib.text(kind, "")
  hidden = sum(
    len(fields)
    for title, fields in help_lib.by_section(
      type("All", (kind,), {"hidden_sections": frozenset()})
    ).items()
    if title in kind.hidden_sections
  )
  assert len(_names(text)) == len(set(_names(text)))
  assert set(_names(text)) <= set(kind.kinds())
  assert len(_names(text)) == len(kind.kinds()) - hidden
  assert max(map(len, text.splitlines())) <= 80
  order = [help_lib.SECTIONS.index(title) for title in _titles(text)]
  assert order == sorted(order)


@pytest.mark.parametrize(
  ("kind", "titles"),
  [
    (
      PBTFlags,
      [
        "Run", "Environment", "Training", "Learner", "Hyperparameters",
        _SKILLS, "Population", "Controller", "Evaluation",
        "Devices and processes", "Start",
      ],
    ),
    (
      MEPBTFlags,
      [
        "Run", "Environment", "Training", "Learner", "Hyperparameters",
        _SKILLS, "Population", "Controller", "Repertoire", "Emitters",
        "Evaluation", "Devices and processes", "Start",
      ],
    ),
    (CompareFlags, ["Comparison", "Start"]),
    (EvaluationFlags, ["Agent to evaluate", "Evaluation", "Start"]),
  ],
)  # fmt: skip
def test_sections_have_the_most_used_first(kind, titles):
  assert _titles(help_lib.text(kind, "Trains.")) == titles


def test_within_a_section_flags_have_the_order_of_their_fields():
  names = _names(help_lib.text(PBTFlags, ""))
  assert names[:3] == ["num_timesteps", "logdir", "seed"]
  assert names.index("population_size") < names.index("exploit")
  assert names.index("controller") < names.index("explore")


def test_a_flag_that_is_declared_again_stays_in_its_section():
  sections = help_lib.by_section(MEPBTFlags)
  assert sections["Run"][0].name == "num_timesteps"
  assert "emitter pbt" in sections["Run"][0].metadata["help"]


def test_own_flags_of_evaluate_are_first_and_those_of_training_left_out():
  text = help_lib.text(EvaluationFlags, "Evaluates.")
  assert _names(text)[:9] == [
    "logdir", "best", "member", "cell", "descriptor", "skill", "export",
    "render", "render_to",
  ]  # fmt: skip
  assert "--logdir: Directory of the run to look at." in text
  assert not {"batch_size", "learner", "discount"} & {*_names(text)}
  assert "Settings of training are read from the run's config.json." in text


def test_defaults_and_types_are_told():
  text = help_lib.text(PBTFlags, "")
  assert "(an integer; default: 8)" in text
  assert "(a comma-separated list; default: 256,256)" in text
  assert re.search(r"--\[no\]resume: [^(]*\(default:\s+false\)", text)
