"""MAP-Elites: a repertoire of individuals that differ, each good at its place.

A repertoire knows no learner, actor or environment: it stores any pytree.
"""

from qdrl_haiku.map_elites import storage
from qdrl_haiku.map_elites.check import check
from qdrl_haiku.map_elites.cma_emitter import CMAState, cma_emitter
from qdrl_haiku.map_elites.cma_es import Strategies, cma_es
from qdrl_haiku.map_elites.dcrl_emitter import dcrl_emitter, similarity
from qdrl_haiku.map_elites.emitters import (
  Emitter,
  Evaluated,
  genetic_emitter,
  together,
)
from qdrl_haiku.map_elites.loop import (
  EvaluateFn,
  add_and_tell,
  ask_key,
  evaluation_key,
  init,
  resampled_add_and_tell,
  resampled_step,
  step,
)
from qdrl_haiku.map_elites.metrics import (
  coverage,
  max_fitness,
  metrics,
  qd_score,
)
from qdrl_haiku.map_elites.multi_emitter import MultiEmitterState, multi_emitter
from qdrl_haiku.map_elites.pbt_emitter import (
  Agents,
  Elite,
  PBTEmitterState,
  pbt_emitter,
)
from qdrl_haiku.map_elites.pga_emitter import pga_emitter
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.map_elites.resampling import (
  DeepArchive,
  Resampling,
)
from qdrl_haiku.map_elites.teaching import TaughtState, Teacher
from qdrl_haiku.map_elites.tessellation import (
  CVT,
  Grid,
  Tessellation,
  Unstructured,
  cvt,
)
from qdrl_haiku.map_elites.variation import (
  VariationFn,
  iso_line,
  weights_only,
)

__all__ = [
  "Agents",
  "CMAState",
  "CVT",
  "DeepArchive",
  "Elite",
  "Emitter",
  "EvaluateFn",
  "Evaluated",
  "Grid",
  "MultiEmitterState",
  "PBTEmitterState",
  "Repertoire",
  "Resampling",
  "Strategies",
  "TaughtState",
  "Teacher",
  "Tessellation",
  "Unstructured",
  "VariationFn",
  "add_and_tell",
  "ask_key",
  "init",
  "check",
  "cma_emitter",
  "cma_es",
  "coverage",
  "cvt",
  "dcrl_emitter",
  "step",
  "evaluation_key",
  "genetic_emitter",
  "iso_line",
  "max_fitness",
  "metrics",
  "multi_emitter",
  "pbt_emitter",
  "pga_emitter",
  "qd_score",
  "resampled_add_and_tell",
  "resampled_step",
  "similarity",
  "storage",
  "together",
  "weights_only",
]
