"""The settings of a repertoire and of what fills it."""

import dataclasses
from collections.abc import Callable, Mapping

import jax

from qdrl_haiku import checks, environments, map_elites, names
from qdrl_haiku import config as config_lib
from qdrl_haiku.config import Missing, Settings, setting
from qdrl_haiku.training.config import TAUGHT, CMAConfig, TeachingConfig
from qdrl_haiku.training.repertoires import describers
from qdrl_haiku.training.repertoires.emitters import parse_emitters
from qdrl_haiku.training.repertoires.tessellations import make_tessellation
from qdrl_haiku.training.setup import Part

_TESSELLATIONS = ("grid", "cvt", "none")
ContainerFn = Callable[
  ["RepertoireConfig", map_elites.Tessellation, int], map_elites.Container]
"""Makes a container: (the settings, the cells or places, how many individuals
are new in each generation) -> container."""


def _cells(
  config: "RepertoireConfig", cells: map_elites.Tessellation, batch_size: int
) -> map_elites.Container:
  """Makes a container of one elite in each cell or place."""
  if config.adding == "adaptive":
    return map_elites.deep_archive(cells, config.resampling, batch_size)
  if isinstance(cells, map_elites.Unstructured):
    return map_elites.dominated_novelty(cells)
  return map_elites.cells(cells)


_COMPARING = ("mome", "nsga2", "spea2")
CONTAINERS: dict[str, ContainerFn] = {
  "cells": _cells,
  "low_spread": lambda config, cells, _: map_elites.low_spread(cells),
  "soft": lambda config, cells, _: map_elites.soft_cells(
    cells, config.thresholds.learning_rate, config.threshold_min),
  "threshold": lambda config, cells, _: map_elites.threshold_archive(cells),
  "mome": lambda config, cells, _: map_elites.mome(
    cells, config.front_size, config.reference_point or ()),
  "nsga2": lambda config, cells, _: map_elites.nsga2(
    cells, config.reference_point or ()),
  "spea2": lambda config, cells, _: map_elites.spea2(
    cells, config.reference_point or ())}
"""Functions that make what says which agents stay, by name."""


@dataclasses.dataclass(frozen=True)
class RepertoireConfig(Settings):
  """Says what a repertoire is, and where its agents come from."""

  title = "Repertoire"

  emitter: str = setting(
    "pbt",
    "Where agents come from. pbt: a population that trains, and variations of "
    "elites (ME-PBT); ga: variations alone (MAP-Elites); pga: variations, and "
    "agents that follow the gradient of a shared critic (PGA-MAP-Elites); "
    "dcrl: as pga, and policies of that critic for descriptors of elites "
    "(DCRL-MAP-Elites); qdpg: as pga, and agents that follow the gradient of a "
    "second critic, of what is novel (QD-PG); pgx: as pga, with a critic of "
    "each objective (MOME-PGX); cma: samples of CMA-ES, which moves to where "
    "they improve the repertoire (CMA-ME); me_es: samples around one agent, "
    "which an evolution strategy moves (ME-ES); ascii: variations, and agents "
    "that take over better steps of others' episodes (ASCII-MAP-Elites); or "
    "package.module:function, a function of the "
    "training.Setup that returns a map_elites.Emitter. Several emitters take "
    "numbers of agents, like pbt:10,pga:32,ga:32; without numbers, like "
    "pga,ga, their shares adapt.")
  variation_batch_size: int = setting(
    10, "Variations of elites in each generation.", low=0, needs="unnumbered")
  num_initial_genotypes: int = setting(
    20, "Random agents in the first repertoire.", low=1)
  num_replaced_by_samples: int | None = setting(
    None,
    "Members that elites of the repertoire replace in each generation: the "
    "worst that the controller neither replaces nor copies; by default two, "
    "but not all.",
    low=0, offered=False, needs="members")
  tessellation: str = setting(
    "grid",
    "Cells of the descriptors' space: grid; cvt, a centroidal Voronoi "
    "tessellation; none, a repertoire without cells that keeps agents that are "
    "fit or far from all fitter ones (dominated novelty search); or "
    "package.module:function, a function of the environment's Descriptor that "
    "returns a map_elites.Container.")
  grid_shape: tuple[int, ...] = setting(
    (32, 32),
    "Cells of a grid along each descriptor; with --tessellation=none this grid "
    "only measures QD score and coverage.",
    low=1, only={"tessellation": ("grid", "none")})
  num_cells: int = setting(
    1024, "Cells of --tessellation=cvt, or elites of --tessellation=none.",
    low=1, only={"tessellation": ("cvt", "none")})
  describer: Settings = setting(
    "environment",
    "What describes an agent by its episodes: environment, its own descriptor; "
    "aurora, an autoencoder that learns of what elites observe; or "
    "package.module:function, a function of the environment that returns a "
    "map_elites.Describer. QD score, coverage and pictures stay those of the "
    "environment's own descriptor, if it has one.",
    kinds=describers.KINDS, title=title)
  iso_sigma: float = setting(
    0.01, "Standard deviation of the noise on each weight of a variation.",
    low=0, high=checks.LARGEST_FLOAT, needs="variation")
  line_sigma: float = setting(
    0.1,
    "Standard deviation of a variation's step along the line to another elite.",
    low=0, high=checks.LARGEST_FLOAT, needs="variation")
  container: str = setting(
    "cells",
    "Which agents stay. cells: the fittest of each cell, or without cells "
    "those that are fit or far from all fitter ones; low_spread: as cells, if "
    "episodes differ no more than those of the one before (ME-LS); soft: as "
    "cells, and --emitter=cma is told what exceeds thresholds that grow slowly "
    "(CMA-MAE); threshold: without cells those that are farther apart than a "
    "distance that adapts to their number; mome: in each cell a Pareto front "
    "of the environment's objectives (MOME); nsga2, spea2: a population "
    "without cells, by those objectives.",
    choices=tuple(CONTAINERS))
  front_size: int = setting(
    10, "Most agents in a cell's front.", low=1, only={"container": ("mome",)},
    title="Containers")
  reference_point: tuple[float, ...] | None = setting(
    None,
    "Objectives of an episode from which hypervolumes are measured, like "
    "-2000,-800; by default the environment's per step times "
    "--episode_length.",
    low=-checks.LARGEST_FLOAT, high=checks.LARGEST_FLOAT,
    only={"container": _COMPARING}, title="Containers")
  adding: str = setting(
    "once",
    "How agents get into the repertoire: once, by the evaluation after they "
    "are made; or adaptive, for noisy environments: the best are evaluated "
    "again and again, and count by their means (Extract-ME).",
    choices=("once", "adaptive"), only={"container": ("cells",)})
  resampling: map_elites.Resampling = map_elites.Resampling()
  thresholds: map_elites.SoftThresholds = map_elites.SoftThresholds()
  teaching: TeachingConfig = TeachingConfig()
  cma: CMAConfig = CMAConfig()
  me_es: map_elites.EvolutionStrategy = map_elites.EvolutionStrategy()
  qd_offset: float | None = setting(
    None,
    "Number added to each elite's return in the QD score; by default the "
    "environment's offset per step times --episode_length.",
    low=-checks.LARGEST_FLOAT, high=checks.LARGEST_FLOAT, offered=False)
  shard_repertoire: bool = setting(
    False,
    "Whether the devices share the cells, instead of each having all elites.")

  def __post_init__(self) -> None:
    super().__post_init__()
    kind = self.tessellation
    with checks.Refusals() as refusals:
      if ":" not in kind and kind not in _TESSELLATIONS:
        refusals.refuse(
          f"tessellation={kind!r} is unknown; "
          f"{names.nearest_name(kind, _TESSELLATIONS)}")
      if self.is_learned and kind in ("grid", "cvt"):
        refusals.refuse(
          f"tessellation={kind} divides what has bounds, which a describer's "
          "descriptors haven't; take tessellation=none.")
      first = self.parts[0]  # Refuses what is no emitter.
      has_no_number = first.batch_size is None and first.name != "pbt"
      if has_no_number and self.variation_batch_size == 0:
        refusals.refuse(
          f"variation_batch_size=0 leaves --emitter={self.emitter} with no "
          "offspring; give 1 or more.")

  @property
  def is_learned(self) -> bool:
    """Whether descriptors are others than the environment's own."""
    return self.describer != describers.OwnDescriptorConfig()

  @property
  def threshold_min(self) -> float:
    """Threshold of an empty cell, by default the least return."""
    least = self.thresholds.minimum
    return -(self.qd_offset or 0.0) if least is None else least

  @property
  def _grid_shape(self) -> tuple[int, ...] | None:
    """The grid's, None for the default where there needn't be a grid."""
    is_default = self.grid_shape == type(self).grid_shape
    is_needed = self.tessellation == "grid"
    return self.grid_shape if is_needed or not is_default else None

  @property
  def parts(self) -> tuple[Part, ...]:
    """The emitters, pbt first; a user's own is called as its function."""
    return parse_emitters(self.emitter)

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the emitters."""
    return tuple(part.name for part in self.parts)

  @property
  def has_members(self) -> bool:
    """Whether there is a population whose members train."""
    return self.parts[0].name == "pbt"

  @property
  def trains_alone(self) -> bool:
    """Whether agents may train by themselves, not by a shared critic alone."""
    return self.has_members or any(part.emitter for part in self.parts)

  @property
  def algorithm(self) -> str:
    """Name of the algorithm, for the name of a run's directory."""
    known = {"pbt": "me_pbt", "ga": "map_elites"}
    return known.get(self.emitter, "-".join(self.names))

  def num_members(self, population_size: int) -> int:
    """Returns the population's size: the given one, if `pbt` has no number."""
    number = self.parts[0].batch_size if self.has_members else None
    return population_size if number is None else number

  @property
  def num_variations(self) -> int:
    """Agents that emitters make in a generation, beside members."""
    sizes = [part.batch_size for part in self.parts if part.name != "pbt"]
    if self.parts[0].batch_size is None:
      return self.variation_batch_size
    return sum(size or 0 for size in sizes)

  def with_reference_point(
    self, env: environments.BatchedEnvironment
  ) -> "RepertoireConfig":
    """Fills in the reference point of containers that compare objectives."""
    if self.container not in _COMPARING:
      return self
    objectives, given = env.objectives, self.reference_point
    if objectives is None:
      raise ValueError(
        f"container={self.container} compares objectives, and the environment "
        "reports none; take one that does, such as halfcheetah_uni, or give "
        "yours environments.Objectives.")
    if given is not None and len(given) != len(objectives.names):
      raise ValueError(
        f"reference_point={','.join(map(str, given))}: give one number of each "
        f"objective, {', '.join(objectives.names)}.")
    return dataclasses.replace(self, reference_point=given or tuple(
      x * env.episode_length for x in objectives.reference))

  def missing(self) -> Mapping[str, Missing]:
    """Returns the parts that a repertoire's configuration lacks, by name."""
    by, cause = f"with --emitter={self.emitter}", ("emitter",)
    taught = any(name in TAUGHT for name in self.names)
    whys: dict[str, str] = {}
    if not self.has_members:
      needing = ("members", "population_size", "replacement", "curriculum")
      whys |= dict.fromkeys(needing, f"{by} no agent trains by PBT")
    if not self.trains_alone:
      why = f"{by} no agent trains by hyperparameters of its own"
      whys |= dict.fromkeys(("controller", "searched"), why)
      whys["replay updates"] = (
        "--num_critic_steps says how often the shared critic learns")
      if not taught:
        why = f"{by} no agent trains"
        whys |= dict.fromkeys(("learning", "replay updates"), why)
    if not taught:
      whys["teaching"] = f"{by} no critic is shared"
      if "ascii" not in self.names:
        whys["gradients"] = f"{by} no offspring follows one"
    if "dcrl" not in self.names:
      whys["targets"] = f"{by} no critic sees a target"
    for name in {"cma", "me_es"}.difference(self.names):
      whys[name] = f"{by} nothing is sampled"
    if self.parts[0].batch_size is not None:
      why = f"--emitter={self.emitter} has the numbers"
      whys |= dict.fromkeys(("unnumbered", "population_size"), why)
    if {"cma", "me_es"}.issuperset(self.names):
      whys["variation"] = f"--emitter={self.emitter} varies nothing"
    found = {name: Missing(why, cause) for name, why in whys.items()}
    if self.num_variations == 0:
      found["variation"] = Missing(
        "--variation_batch_size=0 varies nothing", ("variation_batch_size",))
    if self.adding == "once":
      found["resampling"] = Missing(
        "--adding=once evaluates an agent once", ("adding",))
    if self.container != "soft":
      found["thresholds"] = Missing(
        f"--container={self.container} has no thresholds", ("container",))
    return found

  def make_places(
    self, descriptor: environments.Descriptor, num_places: int
  ) -> map_elites.Tessellation:
    """Makes places for the environment's own descriptors, without cells."""
    return make_tessellation("none", self._grid_shape, num_places, descriptor)

  def make_container(
    self, descriptor: environments.Descriptor, seed: int, population_size: int,
    centroids: jax.typing.ArrayLike | None = None,
  ) -> map_elites.Container:
    """Makes the container, which says which agents stay.

    Args:
      descriptor: of the environment, or of a describer, without bounds.
      seed: of the centroids, with `tessellation="cvt"`.
      population_size: members that train, if any do.
      centroids: of a run that goes on, [C, D], in place of new ones.
    """
    if ":" in self.tessellation:
      for name in ("adding", "container"):
        value = getattr(self, name)
        if value != getattr(type(self), name):
          raise ValueError(
            f"{name}={value} is a container of its own, and so is tessellation="
            f"{self.tessellation}; leave one of them out.")
      own = config_lib.UsersOwn(self.tessellation).call(
        "tessellation", map_elites.Container, descriptor=descriptor)
      return own._replace(name=self.tessellation)
    cells: map_elites.Tessellation
    if self.is_learned:
      cells = map_elites.Unstructured(self.num_cells, descriptor.size)
    else:
      cells = make_tessellation(
        self.tessellation, self._grid_shape, self.num_cells, descriptor, seed,
        centroids)
    size = self.num_members(population_size) if self.has_members else 0
    make = CONTAINERS[self.container]
    return make(self, cells, size + self.num_variations)
