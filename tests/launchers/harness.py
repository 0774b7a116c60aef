"""Runs launchers inside the process of the tests, as their scripts are."""

import logging
import pathlib
import re
import runpy
import sys
from typing import NamedTuple

import jax
import pytest
from absl import app, flags
from absl.testing import flagsaver
from matplotlib.figure import Figure

from qdrl_haiku.programs.experiment import Launcher

LAUNCHERS = pathlib.Path(__file__).parents[2] / "launchers"


class Outcome(NamedTuple):
  """What a launcher did: its exit code and what it printed."""

  code: int
  out: str
  err: str


_savefig = Figure.savefig


def _make(figure, file, **settings):
  """Draws a figure to a file, which stays empty for a plot of a run."""
  if isinstance(file, pathlib.Path) and file.parent.name == "plots":
    file.touch()
  else:
    _savefig(figure, file, **settings)


def _run(main, flags_parser=flags.FLAGS):
  """What `app.run` does, without absl's own handling of errors."""
  main(flags_parser(sys.argv))


def start(name, *arguments):
  """Does what `python launchers/<name>.py <arguments>` does.

  absl keeps one set of flags per process, so those of the launcher are removed
  afterwards, and jax's cache is used again where a divided repertoire did
  without. jax has found its devices already, so their number stays. A run's
  plots are made, but their files stay empty: to draw them takes as long
  as a small run that finds its programs compiled. tests/drawing draws them.

  Raises:
    SystemExit: where the script would exit.
  """
  with pytest.MonkeyPatch.context() as patch, flagsaver.flagsaver():
    patch.setenv("JAX_NUM_CPU_DEVICES", "1")
    patch.setattr(sys, "argv", [str(LAUNCHERS / f"{name}.py"), *arguments])
    patch.setattr(app, "run", _run)
    # Settings that command lines don't have are tested by them all the same.
    patch.setattr(Launcher, "flags", Launcher.settings)
    patch.setattr(Figure, "savefig", _make)
    # An error that ends a process silences what comes after.
    patch.setattr(logging.root.manager, "disable", 0)
    patch.setattr(sys, "excepthook", sys.excepthook)
    patch.setattr(sys, "unraisablehook", sys.unraisablehook)
    uses_cache = jax.config.values["jax_enable_compilation_cache"]
    try:
      runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
      flags.FLAGS.unparse_flags()
      jax.config.update("jax_enable_compilation_cache", uses_cache)


def run(capsys, name, *arguments):
  """Starts a launcher and returns its `Outcome`."""
  capsys.readouterr()
  code = 0
  try:
    start(name, *arguments)
  except SystemExit as error:
    code = error.code
  return Outcome(code, *capsys.readouterr())


def assert_refused(outcome, message):
  """Looks whether one line told why, and nothing else was said."""
  assert outcome.code == 2
  assert not re.search("Traceback|writing to", outcome.out)
  assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
