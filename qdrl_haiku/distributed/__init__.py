"""Spreading members over devices, and a run over processes."""

from qdrl_haiku.distributed.sharding import population_mesh
