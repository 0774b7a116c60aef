"""Compiles programs for an accelerator that need not be there."""

import contextlib
import importlib.resources
import os
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import topologies

from qdrl_haiku import platform
from qdrl_haiku.distributed import sharding
from qdrl_haiku.programs.accelerators import cost
from qdrl_haiku.programs.runs.compilation import make_programs
from qdrl_haiku.training.generation import prepare
from qdrl_haiku.training.setup import Setup

# CUDA's libraries are not needed to compile, its assembler is.
_PACKAGES = (
  "jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version} "
  "nvidia-cuda-nvcc-cu12")


@contextlib.contextmanager
def compiling_for_target(
  name: str, num_devices: int = 1
) -> Iterator[jax.sharding.Mesh]:
  """Traces and compiles for one of `TARGETS` within a `with` statement.

  Yields a mesh of devices that need not exist, unless they are CPUs.

  Raises:
    ValueError: if jax's compiler for accelerators isn't installed, or if jax
      has fewer CPU devices than `num_devices`.
  """
  if name == "cpu":
    devices = jax.devices("cpu")[:num_devices]
    if len(devices) < num_devices:
      raise ValueError(
        f"num_devices={num_devices}, but jax has {len(devices)} of the CPU; "
        "set jax_num_cpu_devices before jax is first used.")
    # Not jax's own platform where there is an accelerator too.
    with platform.switching_platform("cpu"):
      yield jax.sharding.Mesh(np.array(devices), (sharding.AXIS,))
    return
  described = importlib.resources.files(__package__) / f"{name}.txtpb"
  # Or jax's plugin looks for CUDA's libraries when it is loaded.
  os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
  jax.devices()
  try:
    topology = topologies.get_topology_desc(
      name, "cuda", target_config=described.read_text(),
      topology=f"1x1x{num_devices}")
  except Exception as error:
    raise ValueError(
      f"jax's compiler for {cost.TARGETS[name].title} isn't installed; in an "
      "environment of its own, pip install --no-deps "
      f"{_PACKAGES.format(version=jax.__version__)} ({error}).") from error
  with platform.switching_platform("gpu"):
    yield jax.sharding.Mesh(np.array(topology.devices), (sharding.AXIS,))


def generation_costs(
  make_setup: Callable[[], Setup], target: str, num_devices: int = 1
) -> dict[str, cost.Cost]:
  """Compiles a generation for an accelerator that need not be there.

  Args:
    make_setup: makes what is trained, while programs are traced for the target,
      since a setup holds functions that differ on CPUs.
    target: one of `TARGETS`.
    num_devices: that divide the setup's agents.

  Returns:
    The costs of one call of the program that trains, and of the one that
    evaluates; a third one draws initial states.

  Raises:
    ValueError: if jax's compiler for the target isn't installed.
  """
  with compiling_for_target(target, num_devices) as mesh:
    trainer = prepare(make_setup()._replace(mesh=mesh))
    key = jax.eval_shape(lambda: jax.random.key(0))
    everywhere = jax.NamedSharding(mesh, jax.P())
    run_key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=everywhere)
    programs = make_programs(trainer, run_key)
    return {
      name: cost.accelerator_cost(
        getattr(programs, name).lower().compile(), cost.TARGETS[target])
      for name in ("train", "evaluate")}
