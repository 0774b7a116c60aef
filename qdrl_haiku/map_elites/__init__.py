"""MAP-Elites: a repertoire of individuals that differ, each good at its place.

A repertoire knows no learner, actor or environment: it stores any pytree.
"""

from typing import NoReturn

from qdrl_haiku.map_elites import storage
from qdrl_haiku.map_elites.aurora import Aurora, AuroraConfig, aurora
from qdrl_haiku.map_elites.candidates import Candidates
from qdrl_haiku.map_elites.containers.container import (
  Again,
  Container,
  cells,
  one_per_place,
)
from qdrl_haiku.map_elites.containers.dominated_novelty import dominated_novelty
from qdrl_haiku.map_elites.containers.fronts import (
  OBJECTIVES,
  mome,
  nsga2,
  spea2,
)
from qdrl_haiku.map_elites.containers.low_spread import (
  SPREAD,
  descriptor_spread,
  low_spread,
)
from qdrl_haiku.map_elites.containers.resampling import Resampling, deep_archive
from qdrl_haiku.map_elites.containers.soft_cells import (
  SoftThresholds,
  soft_cells,
)
from qdrl_haiku.map_elites.containers.threshold_archive import threshold_archive
from qdrl_haiku.map_elites.describers import (
  EPISODES,
  OWN_DESCRIPTORS,
  Describer,
)
from qdrl_haiku.map_elites.emitters.ascii import (
  CrossFn,
  Episodes,
  ascii_emitter,
  ascii_loss,
  ascii_weights,
)
from qdrl_haiku.map_elites.emitters.cma import cma_emitter
from qdrl_haiku.map_elites.emitters.cma_es import Strategies, cma_es
from qdrl_haiku.map_elites.emitters.critic import (
  Teacher,
  dcrl_emitter,
  dcrl_similarity,
  pga_emitter,
)
from qdrl_haiku.map_elites.emitters.emitter import Emitter, Evaluated, check
from qdrl_haiku.map_elites.emitters.gradient_arborescence import (
  cma_mega,
  omg_mega,
)
from qdrl_haiku.map_elites.emitters.me_es import (
  EvolutionStrategy,
  me_es_emitter,
)
from qdrl_haiku.map_elites.emitters.multi import multi_emitter
from qdrl_haiku.map_elites.emitters.pbt import (
  Agents,
  PBTEmitterState,
  pbt_emitter,
)
from qdrl_haiku.map_elites.emitters.rankings import RANKINGS
from qdrl_haiku.map_elites.loop import (
  EvaluateFn,
  add_and_tell,
  ask,
  improve_describer,
  init,
  metrics,
  step,
)
from qdrl_haiku.map_elites.novelty import (
  NoveltyArchive,
  add_novel,
  empty_archive,
  novelty,
)
from qdrl_haiku.map_elites.repertoire import PlacesFn, Repertoire
from qdrl_haiku.map_elites.tessellation import (
  CVT,
  Grid,
  Tessellation,
  Unstructured,
  cvt,
)
from qdrl_haiku.map_elites.variation import (
  Elite,
  VariationFn,
  genetic_emitter,
  iso_line,
  vary_elites,
  weights_only,
)


def __getattr__(name: str) -> NoReturn:
  """Says what became of the class of 0.4 from which containers were made."""
  if name == "DominatedNovelty":  # A line of a launcher, by `import` too.
    raise ValueError(
      "map_elites.DominatedNovelty is gone; make its subclass's `places` a "
      "function for map_elites.one_per_place, or make a Container.")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
