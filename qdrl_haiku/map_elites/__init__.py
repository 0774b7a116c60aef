"""MAP-Elites: a repertoire of individuals that differ, each good at its place.

A repertoire knows no learner, actor or environment: it stores any pytree.
"""

from qdrl_haiku.map_elites import storage
from qdrl_haiku.map_elites.emitters import Emitter, genetic_emitter
from qdrl_haiku.map_elites.metrics import (
  coverage,
  max_fitness,
  metrics,
  qd_score,
)
from qdrl_haiku.map_elites.pbt_emitter import (
  Agents,
  Elite,
  PBTEmitterState,
  pbt_emitter,
)
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.tessellation import CVT, Grid, Tessellation, cvt
from qdrl_haiku.map_elites.variation import (
  VariationFn,
  iso_line,
  weights_only,
)

__all__ = [
  "Agents",
  "CVT",
  "Elite",
  "Emitter",
  "Grid",
  "PBTEmitterState",
  "Repertoire",
  "Tessellation",
  "VariationFn",
  "coverage",
  "cvt",
  "genetic_emitter",
  "iso_line",
  "max_fitness",
  "metrics",
  "pbt_emitter",
  "qd_score",
  "storage",
  "weights_only",
]
