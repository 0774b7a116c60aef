"""Tests that all work for CPUs can be turned off, and what XLA can't do is."""

import mmap
import pathlib

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from qdrl_haiku import networks
from qdrl_haiku.cpu import (
  batching,
  compiler_options,
  fusion,
  noise,
  one_by_one,
  xla,
)
from tests import jaxprs, marks

_KEY = jax.random.key(0)
_X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def _physics(x):
  """A product and a scatter, as robots have them."""
  return {"y": jnp.zeros(3).at[jnp.array([0, 0, 2])].add(x @ jnp.eye(3))}


def _member(x):
  return jnp.tanh(x) @ jnp.ones(3)


_, _CRITIC = networks.make_td3_networks(3, 3, networks.NetworkConfig((4,)))
_PARAMS = jax.tree.map(
  lambda x: np.full(x.shape, 0.3, x.dtype), jax.eval_shape(_CRITIC.init, _KEY))
_HOOKS = {
  "noise": (lambda x: noise.normal_noise(_KEY, x.shape) + x, (_X,)),
  "members": (
    lambda x: jax.vmap(one_by_one.one_by_one_on_cpu(_member))(x),
    (_X,)),
  "physics": (
    lambda x: batching.rewrite_for_batching(
      _physics, jax.ShapeDtypeStruct((3,), jnp.float32))(x),
    (_X,)),
  "kernel": (
    lambda x: fusion.fuse_into_one_kernel(lambda x: [x * 2 + 1])(x),
    (_X,)),
  "once": (lambda x: fusion.computed_once(x * 2 + 1), (_X,)),
  "gradients": (
    jax.grad(lambda params, x: jnp.sum(_CRITIC.apply(params, x, x) ** 2)),
    (_PARAMS, _X))}
# Primitives that only the work for CPUs brings into these functions.
_OF_CPUS = {"optimization_barrier", "while"}


def _names(function, arguments):
  # A function of its own, since jax keeps what it has traced.
  equations = jaxprs.equations(lambda *x: function(*x), *arguments)
  return {equation.primitive.name for equation in equations}


@marks.ON_CPU
@pytest.mark.parametrize("name", _HOOKS)
def test_each_hook_has_a_plain_version_that_agrees(name, monkeypatch):
  function, arguments = _HOOKS[name]
  expected = jax.jit(lambda *x: function(*x))(*arguments)
  rewritten = _names(function, arguments)
  monkeypatch.setenv("QDRL_PLAIN", "1")
  plain = _names(function, arguments)
  assert rewritten != plain and not plain & _OF_CPUS
  actual = jax.jit(lambda *x: function(*x))(*arguments)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), actual,
    expected)


def test_compiler_options_are_left_out(monkeypatch):
  assert all(compiler_options.compiler_options("cpu"))
  assert not any(compiler_options.compiler_options("tpu"))
  monkeypatch.setenv("QDRL_PLAIN", "1")
  for platform in "cpu", "gpu":
    assert not any(compiler_options.compiler_options(platform))


def test_on_gpus_no_kernels_are_tried_for_fusions():
  """Where it tries them, XLA may choose one that computes wrong numbers."""
  for options in compiler_options.compiler_options("gpu"):
    assert options == {"xla_gpu_experimental_enable_fusion_autotuner": False}


_KNOWN, _UNKNOWN = "xla_backend_optimization_level", "xla_cpu_that_never_was"
_OPTIONS = {_KNOWN: 1, _UNKNOWN: 1}


@pytest.mark.parametrize(("ask", "value", "answer"), [
  (xla.known_xla_options, _OPTIONS, {_KNOWN: 1}),
  (xla.known_xla_flags, _OPTIONS, [f"--{_KNOWN}=1"])])
def test_what_xla_does_not_know_is_left_out(ask, value, answer, monkeypatch):
  # The second time the answer is known already.
  for _ in range(2):
    monkeypatch.setattr(xla, "_left_out", set())
    assert ask(value) == answer
    assert xla.unknown_to_xla() == [_UNKNOWN]


def test_the_mark_of_small_calls_is_known():
  # XLA ignores others without a word, but looks for those in its code.
  (path,) = pathlib.Path(jaxlib.__file__).parent.glob("libjax_common*")
  with path.open("rb") as file:
    code = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert code.find(b"xla_cpu_small_call") >= 0
