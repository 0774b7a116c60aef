"""Tests that what XLA doesn't know is left out."""

import pytest

from qdrl_haiku.cpu import xla

_KNOWN, _UNKNOWN = "xla_backend_optimization_level", "xla_cpu_that_never_was"
_OPTIONS = {_KNOWN: 1, _UNKNOWN: 1}


@pytest.mark.parametrize(("ask", "value", "answer"), [
  (xla.known_xla_options, _OPTIONS, {_KNOWN: 1}),
  (xla.known_xla_flags, _OPTIONS, [f"--{_KNOWN}=1"]),
  (xla.xla_knows_mark, _UNKNOWN, False),
])
def test_what_is_unknown_is_left_out_and_told(
  ask, value, answer, monkeypatch
):
  # The second time the answer is known already.
  for _ in range(2):
    monkeypatch.setattr(xla, "_left_out", set())
    assert ask(value) == answer
    assert xla.unknown_to_xla() == [_UNKNOWN]


def test_the_mark_of_small_calls_is_known():
  assert xla.xla_knows_mark("xla_cpu_small_call")
