"""What XLA refuses of the programs made for CPUs is compiled as usual."""

import jax
import numpy as np
import pytest
from absl import logging

from qdrl_haiku.cpu import compiling, noise, switch
from tests import kernels, marks


class _Refused:
  """A lowered program that XLA refuses."""

  def compile(self):
    raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: no such fusion\n\tTraces")


@marks.ON_CPU
def test_a_refused_program_is_compiled_as_usual_and_a_line_says_so(
  monkeypatch
):
  monkeypatch.setattr(switch, "_is_plain", False)
  said, lowered = [], []
  monkeypatch.setattr(logging, "warning", lambda *x: said.append(x[0] % x[1:]))
  jitted = jax.jit(lambda key: noise.normal_noise(key, (4,)))
  key = jax.random.key(0)

  def lower():
    lowered.append(jitted.lower(key))
    return lowered[-1] if len(lowered) > 1 else _Refused()

  compiled = compiling.compile_program(lower)
  assert kernels.num_marked(lowered[0].compile())
  assert not kernels.num_marked(compiled)
  np.testing.assert_allclose(
    compiled(key), jax.random.normal(key, (4,)), rtol=1e-6)
  (line,) = said
  assert "(UNIMPLEMENTED: no such fusion)" in line and "\n" not in line
  # Nothing else is tried later.
  with pytest.raises(jax.errors.JaxRuntimeError, match="no such fusion"):
    compiling.compile_program(lambda: _Refused())
