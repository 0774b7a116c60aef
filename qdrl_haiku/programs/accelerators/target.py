"""Describes accelerators, for which programs are compiled without one."""

import contextlib
import importlib.resources
import math
import os
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import topologies

from qdrl_haiku.cpu import switch
from qdrl_haiku.distributed import sharding

# CUDA's libraries are not needed to compile, its assembler is.
_PACKAGES = (
  "jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version} "
  "nvidia-cuda-nvcc-cu12")


class Target(NamedTuple):
  """An accelerator, and the numbers by which time on it is modelled."""

  title: str  # Its name.
  bytes_per_second: float  # Of its memory; NaN if times can't be modelled.
  launch_seconds: float = 2.5e-6  # The least time of each kernel.


TARGETS = {
  "h100": Target("H100 SXM, 80 GB", 3.35e12),
  "a100": Target("A100 SXM, 80 GB", 2.04e12),
  "l4": Target("L4, 24 GB", 3.0e11),
  # Arrays stay in its caches, and products take longer than memory.
  "cpu": Target("this machine's CPUs", math.nan, math.nan)}
"""Maps names to the targets that there are; a file beside this module describes
each accelerator, and jax the CPUs."""


@contextlib.contextmanager
def compiling_for_target(
  name: str, num_devices: int = 1
) -> Iterator[jax.sharding.Mesh]:
  """Traces and compiles for one of `TARGETS` within a `with` statement.

  Yields:
    A mesh to compile for; its accelerators need not exist.

  Raises:
    ValueError: if jax's compiler for accelerators isn't installed, or if jax
      has fewer CPU devices than `num_devices`.
  """
  if name == "cpu":
    devices = jax.devices("cpu")[:num_devices]
    if len(devices) < num_devices:
      raise ValueError(
        f"num_devices={num_devices}, but jax has {len(devices)} of the CPU; "
        "set jax_num_cpu_devices before it looks for them.")
    # Not jax's own platform where there is an accelerator too.
    with switch.switching_platform("cpu"):
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
      f"jax's compiler for {TARGETS[name].title} isn't installed; in an "
      "environment of its own, pip install --no-deps "
      f"{_PACKAGES.format(version=jax.__version__)} ({error}).") from error
  with switch.switching_platform("gpu"):
    yield jax.sharding.Mesh(np.array(topology.devices), (sharding.AXIS,))
