"""Tests of what is compiled by itself amid a program."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from qdrl_haiku import distributed
from qdrl_haiku.distributed import apart

_ROOT = pathlib.Path(__file__).parents[2]


def _decide(key, x):
  draw = jax.random.normal(key, x.shape)
  return jax.random.fold_in(key, 1), {"order": jnp.argsort(x + draw)}


def _function(decide):
  """Needs all kinds of numbers before the decision, after it, or both."""

  def function(state, scale):
    x, key, kept = state
    doubled = 2 * x
    key, decided = decide(key, doubled)
    order = decided["order"]
    after = (doubled * scale + kept)[order], key, kept
    return after, {"before": doubled, "given": x, "kept": kept, "one": 1.0}

  return function


def _program(mesh, function):
  members = NamedSharding(mesh, PartitionSpec("population"))
  replicated = NamedSharding(mesh, PartitionSpec())
  return apart.Program(
    function,
    mesh,
    arguments=_arguments,
    out_shardings=((members, replicated, members), replicated),
    compiler_options={},
    own_options={},
  )


def _arguments():
  return (jnp.arange(4.0), jax.random.key(3), jnp.ones(4)), jnp.float32(3.0)


def _data(tree):
  return [
    np.asarray(jax.random.key_data(x))
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    else np.asarray(x)
    for x in jax.tree.leaves(jax.tree.map(jnp.asarray, tree))
  ]


@pytest.fixture(scope="module")
def mesh():
  return distributed.population_mesh(4, jax.devices()[:1])


def test_a_program_in_parts_computes_what_one_does(mesh):
  program = _program(mesh, _function(apart.by_itself(_decide)))
  expected = _data(_function(_decide)(*_arguments()))
  state, scale = _arguments()
  first = program(state, scale)
  assert all(x.is_deleted() for x in state)
  for found, one in zip(_data(first), expected, strict=True):
    np.testing.assert_array_equal(found, one)
  # Results can be handed on, and earlier ones stay.
  again = program(first[0], scale)
  np.testing.assert_array_equal(first[1]["before"], 2 * jnp.arange(4.0))
  assert again[0][0].shape == (4,)


def test_what_is_marked_is_left_out_of_the_program_around_it(mesh):
  program = _program(mesh, _function(apart.by_itself(_decide)))
  begin, decide, end = program.compile().parts
  assert " sort(" in decide.as_text()
  assert " sort(" not in begin.as_text() + end.as_text()


def test_without_a_mark_it_is_one_program(mesh):
  compiled = _program(mesh, _function(_decide)).compile()
  assert len(compiled.parts) == 1
  for found, one in zip(
    _data(compiled(*_arguments())),
    _data(_function(_decide)(*_arguments())),
    strict=True,
  ):
    np.testing.assert_allclose(found, one)


def test_in_any_other_program_it_is_a_part_like_others():
  function = jax.jit(_function(apart.by_itself(_decide)))
  for found, one in zip(
    _data(function(*_arguments())),
    _data(_function(_decide)(*_arguments())),
    strict=True,
  ):
    np.testing.assert_allclose(found, one)


# What members gain is a whole number, so that nothing else can be rounded.
_PROGRAM = """
import hashlib, json, sys
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from qdrl_haiku import distributed
from qdrl_haiku.cpu import compiler_options
from qdrl_haiku.distributed import apart, moving, sharding
from tests.controllers import test_every_controller

key = jax.random.key(0)
results = {}
for name in ("pb2", "mf_pbt"):
  controller = test_every_controller.controller(name)
  for num_devices in (1, 2, 4):
    mesh = distributed.population_mesh(8, jax.devices()[:num_devices])
    members = NamedSharding(mesh, PartitionSpec("population"))
    known = NamedSharding(mesh, PartitionSpec())

    def generation(carried, number):
      points, memory, hyperparams = carried
      points += jnp.round(1000 * hyperparams["discount"])
      fitness = sharding.replicate(mesh, points)
      memory, decision = apart.by_itself(controller.update)(
        memory, jax.random.fold_in(key, number), fitness, hyperparams
      )
      points = moving.inherit(mesh, points, decision.parents)
      return (points, memory, decision.hyperparams), decision

    options = compiler_options.of_mesh(mesh, False).often
    memory, hyperparams = jax.jit(lambda: controller.init(key, 8))()
    carried = jax.device_put(
      (jnp.zeros(8), memory, hyperparams), (members, known, known)
    )
    program = apart.Program(
      generation, mesh,
      arguments=lambda: (carried, jax.device_put(jnp.int32(0), known)),
      out_shardings=((members, known, known), known),
      compiler_options=options, own_options=options,
    )
    digest, replaced = hashlib.sha256(), 0
    for number in range(8):
      carried, decision = program(
        carried, jax.device_put(jnp.int32(number), known)
      )
      replaced += int((decision.operator > 0).sum())
      for x in jax.tree.leaves(jax.device_get((carried, decision))):
        digest.update(x.tobytes())
    results.setdefault(name, []).append([digest.hexdigest(), replaced])
print(json.dumps(results))
"""


@pytest.mark.slow
def test_controllers_with_a_memory_decide_the_same_on_any_devices():
  done = subprocess.run(
    [sys.executable, "-c", _PROGRAM],
    cwd=_ROOT,
    env=os.environ | {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  assert len(found) == 2
  for name, (one, *others) in found.items():
    assert others == [one] * 2, name
    assert one[1] > 4
