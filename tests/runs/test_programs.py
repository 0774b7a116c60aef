"""What a run calls, of which the second part may not be compiled yet."""

import concurrent.futures
import threading

import jax.numpy as jnp
import pytest

from qdrl_haiku.runs.programs import Programs, compile_generation
from qdrl_haiku.training.initial_states import InitialStates


def _programs(evaluating, training=None):
  return Programs(
    draw=lambda _, generation: InitialStates(generation, 3 * generation),
    init=None,
    train=lambda population, pool, _: (population + pool, 10.0),
    evaluate=lambda population, trained, begin, _: (
      2 * population, trained + begin
    ),
    restart=None,
    population=None,
    initial=None,
    training=training,
    evaluating=evaluating,
  )


def test_a_generation_draws_trains_and_then_evaluates():
  population, report = _programs(None).train_generation(3, None, 5)
  assert (population, report) == (16, 25.0)


def test_training_waits_for_what_is_compiled_meanwhile_and_says_how_long():
  evaluating = concurrent.futures.Future()
  timer = threading.Timer(0.2, evaluating.set_result, [None])
  timer.start()
  waited = _programs(evaluating).wait_to_evaluate(jnp.zeros(()))
  assert evaluating.done() and 0.0 < waited < 10.0
  # Nothing is waited for once all is compiled.
  assert _programs(evaluating).wait_to_evaluate(jnp.zeros(())) == 0.0


def test_what_fails_to_compile_is_told_before_training_begins():
  training = concurrent.futures.Future()
  training.set_exception(MemoryError("too little of it"))
  with pytest.raises(MemoryError, match="too little"):
    _programs(None, training).wait_to_train()


class _Part:
  """Notes what is done with it."""

  def __init__(self, name, calls):
    self._name = name
    self._calls = calls

  def trace(self):
    self._calls.append(f"trace {self._name}")

  def compile(self):
    self._calls.append(f"compile {self._name}")


def test_what_is_called_first_is_compiled_first():
  calls = []
  parts = {x: _Part(x, calls) for x in ("draw", "train", "evaluate")}
  made = compile_generation(_programs(None)._replace(**parts))
  made.evaluating.result()
  assert calls[0] == "trace train"
  compiled = [x for x in calls if x.startswith("compile")]
  assert compiled == ["compile train", "compile draw", "compile evaluate"]
