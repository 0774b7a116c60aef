"""Fills a repertoire with agents: MAP-Elites, or ME-PBT.

python launchers/train_me_pbt.py \
  --flagfile=launchers/flagfiles/me_pbt_point_maze.flags
"""

import dataclasses
import math
from typing import Any

from qdrl_haiku import checks
from qdrl_haiku.cli import (
  emitter_flags,
  launch,
  learner_flags,
  noise_flags,
  pbt_flags,
  shared_flags,
  training_runs,
)
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.noise_flags import NoiseFlags

# Of the settings that have another name here.
_FLAG_NAMES = {
  "population_size": "gradient_population_size",
  "num_replaced": "num_replaced_by_best",
}
# Of a population whose members train.
_OF_PBT = (
  "checkpoint_replay", "controller", "gradient_population_size", "num_envs",
  "num_parents", "num_replaced_by_best", "num_replaced_by_samples",
  "on_divergence", "perturbation_interval", "pool_size", "random_warm_up",
  *pbt_flags.OF_ONE_KIND,
)  # fmt: skip
# Of learning from replay, which an emitter may do by itself.
_OF_LEARNING = (
  "batch_size", "grad_updates_per_step", "min_replay_size", "n_step",
  "replay_capacity",
)  # fmt: skip
# jax counts in int32.
_NO_COUNT = 2**31
# Of a generation, about, if nothing is said.
_INTERVAL = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class MEPBTFlags(NoiseFlags):
  """Say what the repertoire is, and what fills it."""

  # New policies whose last layers are near 0 all act alike, and the first
  # repertoire would be a few cells.
  policy_final_init: str = flag(
    "fan_in",
    "How a policy's last layer starts: fan_in, as the hidden layers, or small, "
    "near 0.",
  )
  # A variation has one parent's statistics, but weights of two.
  normalize_observations: bool = flag(
    False, "Normalises observations by the agent's own running statistics."
  )
  num_timesteps: int = flag(
    100_000,
    "Environment steps per agent in all. Unless --emitter=pbt those of full "
    "episodes of one agent's evaluations: there are fewer where episodes end "
    "early.",
  )
  num_generations: int | None = flag(
    None, "Generations, instead of --num_timesteps."
  )
  tessellation: str = flag(
    "grid",
    "Of the descriptors: or cvt; or none, where those stay that are fit or far "
    "from all that are fitter (dominated novelty search).",
  )
  grid_shape: tuple[str, ...] = flag(
    ("32", "32"),
    "Cells of a grid along each descriptor; with --tessellation=none those in "
    "which QD score and coverage are told.",
  )
  num_cells: int = flag(
    1024, "Cells of --tessellation=cvt, or elites of none."
  )
  gradient_population_size: int = flag(
    10, "Agents that train, with --emitter=pbt."
  )
  variation_batch_size: int = flag(
    10, "Variations of elites in each generation."
  )
  num_replaced_by_best: int = flag(
    2, "How many of the worst agents the best replace in each generation."
  )
  num_replaced_by_samples: int = flag(
    2, "How many of the next worst elites of the repertoire replace."
  )
  num_initial_genotypes: int = flag(
    20, "Random agents in the first repertoire."
  )
  iso_sigma: float = flag(0.01, "Of the noise on the weights of an elite.")
  line_sigma: float = flag(
    0.1, "Of the step towards or away from another elite."
  )
  shard_repertoire: bool = flag(
    False,
    "Whether the devices share the cells, instead of each having all elites.",
  )
  qd_offset: float | None = flag(
    None,
    "Added to each elite's return in the QD score; by default the "
    "environment's offset per step times --episode_length.",
  )
  repertoire_interval: int = flag(
    10,
    "Generations from one file and picture of the repertoire to the next.",
  )


def make_setup(flags: MEPBTFlags) -> tuple[Any, MEPBTFlags]:
  """Returns the repertoire that the flags ask for.

  Args:
    flags: of the launcher.

  Returns:
    The `training.Setup`, and the flags with what they left open.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import training

  if flags.learner == "diayn":
    raise ValueError(
      "--learner=diayn has skills, which an elite of a repertoire has not; "
      "take sac or td3."
    )
  emitters = emitter_flags.parts(flags)
  names = [part.name for part in emitters]
  flags = emitter_flags.check(flags, emitters)
  if flags.num_generations is not None:
    flags.refuse_given(
      ["num_timesteps"], "--num_generations says how long the run is"
    )
    _check_count(flags, "num_generations", 1)
  agent = shared_flags.make_agent(flags)
  search_space = pbt_flags.make_search_space(flags, agent.learner)
  controller = None
  population: dict[str, Any] = {}
  if "pbt" in names:
    exploit = "truncation"
    if not flags.num_replaced_by_best:
      exploit = "none"
      flags.refuse_given(
        ["num_parents"], "--num_replaced_by_best=0 replaces nobody"
      )
    controller = pbt_flags.make_controller(
      flags,
      search_space,
      ["num_parents", "num_replaced_by_best", *pbt_flags.OF_ONE_KIND],
      exploit=exploit,
      num_parents=flags.num_parents,
      num_replaced=flags.num_replaced_by_best or None,
    )
    population["population_size"] = flags.gradient_population_size
    interval = _interval(flags, agent.learner)
    flags = dataclasses.replace(flags, perturbation_interval=interval)
    population["perturbation_interval"] = interval
  else:
    why = f"with --emitter={flags.emitter} no agent trains by PBT"
    unused: tuple[str, ...] = _OF_PBT
    if not set(names) - {"cma", "ga"}:
      why = f"with --emitter={flags.emitter} no agent trains"
      unused += _OF_LEARNING
    flags.refuse_given(unused, why, "emitter")
  setup = training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=controller,
    config=shared_flags.make_training_config(flags, agent, **population),
    map_elites=_make_map_elites(
      flags, emitters, agent.eval_env, search_space
    ),
  )
  if flags.num_generations is not None:
    steps = flags.num_generations * setup.steps_per_generation
    flags = dataclasses.replace(flags, num_timesteps=steps)
  return setup, flags


def main(flags: MEPBTFlags) -> None:
  """Fills the repertoire that the flags ask for.

  Args:
    flags: of the launcher.
  """
  setup, flags = make_setup(launch.prepare(flags))
  names = [part.name for part in emitter_flags.parts(flags)]
  name = {"pbt": "me_pbt", "ga": "map_elites"}.get(
    flags.emitter, "-".join(map(emitter_flags.label, names))
  )
  training_runs.run_training(
    flags,
    setup,
    f"{name}_{learner_flags.learner_name(flags)}",
    [flags.seed],
    more_settings=pbt_flags.ranges(flags, setup.learner)
    if setup.controller
    else None,
    repertoire_interval=flags.repertoire_interval,
    **noise_flags.second_looks(flags),
  )


def _interval(flags: MEPBTFlags, learner: Any) -> int:
  """Returns the environment steps per agent and generation."""
  from qdrl_haiku import training

  given = flags.perturbation_interval
  if flags.num_generations is None or given is not None:
    return shared_flags.interval(flags, given, learner)
  steps = training.iteration_steps(
    num_envs=flags.num_envs,
    grad_updates_per_step=flags.grad_updates_per_step,
    batches_per_update=learner.batches_per_update,
  )
  return steps * max(1, round(_INTERVAL / steps))


def _make_map_elites(
  flags: MEPBTFlags,
  emitters: list[emitter_flags.Part],
  env: Any,
  search_space: Any,
) -> Any:
  """Returns what MAP-Elites adds to the setup."""
  from qdrl_haiku import controllers, training

  descriptor = env.descriptor
  if descriptor is None:
    raise ValueError(
      f"--env_name={flags.env_name} has no state descriptor, by which a "
      "repertoire is ordered; take one that has, such as point_maze or "
      "halfcheetah_uni, or give yours a Descriptor."
    )
  _check_count(flags, "variation_batch_size", 0)
  _check_count(flags, "num_replaced_by_samples", 0)
  _check_count(flags, "num_initial_genotypes", 1)
  has_members = emitters[0].name == "pbt"
  if not has_members and flags.variation_batch_size == 0:
    raise ValueError(
      f"--variation_batch_size=0 leaves --emitter={flags.emitter} with no "
      "offspring; give 1 or more."
    )
  if [part.name for part in emitters] == ["cma"]:
    flags.refuse_given(
      ["iso_sigma", "line_sigma"], "--emitter=cma varies nothing", "emitter"
    )
  if flags.variation_batch_size == 0 and len(emitters) == 1:
    flags.refuse_given(
      ["iso_sigma", "line_sigma"],
      "--variation_batch_size=0 varies nothing",
      "variation_batch_size",
    )
  offset = flags.qd_offset
  if offset is not None and not abs(offset) <= checks.LARGEST_FLOAT:
    raise ValueError(
      f"--qd_offset={offset} must be finite; leave it out for the "
      "environment's own."
    )
  if offset is None:
    offset = descriptor.reward_offset * env.episode_length
  config = pbt_flags.make_config(flags)
  return training.MapElites(
    emitter=emitter_flags.make_emitter(flags, emitters),
    tessellation=_make_tessellation(flags, descriptor),
    variation_fn=training.vary_agents(
      flags.iso_sigma,
      flags.line_sigma,
      controllers.explore(config, search_space),
    ),
    variation_batch_size=flags.variation_batch_size,
    num_initial_genotypes=flags.num_initial_genotypes,
    num_replaced_by_samples=flags.num_replaced_by_samples
    if has_members
    else 0,
    qd_offset=offset,
    shard_repertoire=flags.shard_repertoire,
    teaching=emitter_flags.make_teaching(flags),
    resampling=noise_flags.make_resampling(flags),
    cma=emitter_flags.make_cma(flags),
  )


def _make_tessellation(flags: MEPBTFlags, descriptor: Any) -> Any:
  """Returns the cells of the descriptor's space."""
  import jax
  import jax.numpy as jnp

  from qdrl_haiku import map_elites
  from qdrl_haiku.runs import repertoires
  from qdrl_haiku.storage.directory import RunDirectory

  flags.check_choice("tessellation", ("grid", "cvt", "none"))
  bounds = (descriptor.lower, descriptor.upper)
  if flags.tessellation == "none":
    _check_count(flags, "num_cells", 1)
    is_bounded = all(map(math.isfinite, (*bounds[0], *bounds[1])))
    fits = is_bounded and len(flags.grid_shape) == descriptor.size
    return map_elites.Unstructured(
      flags.num_cells,
      descriptor.size,
      _make_grid(flags, descriptor)
      if fits or "grid_shape" in flags.given
      else None,
    )
  if flags.tessellation == "cvt":
    flags.refuse_given(
      ["grid_shape"], "--tessellation=cvt is no grid", "tessellation"
    )
    _check_count(flags, "num_cells", 1)
    if flags.resume and flags.logdir:
      directory = RunDirectory(flags.logdir)
      centroids = repertoires.read_centroids(directory)
      if centroids is not None:
        return map_elites.CVT(jnp.asarray(centroids), *bounds)
    return map_elites.cvt(jax.random.key(flags.seed), flags.num_cells, *bounds)
  flags.refuse_given(["num_cells"], "--tessellation=grid has a shape")
  return _make_grid(flags, descriptor)


def _make_grid(flags: MEPBTFlags, descriptor: Any) -> Any:
  """Returns the grid of --grid_shape."""
  from qdrl_haiku import map_elites

  shape = flags.grid_shape
  if len(shape) != descriptor.size or not all(
    text.isdecimal() and int(text) > 0 for text in shape
  ):
    raise ValueError(
      f"--grid_shape={','.join(shape)} doesn't fit the descriptor "
      f"{', '.join(descriptor.names)}; give {descriptor.size} numbers like "
      f"{','.join(['32'] * descriptor.size)}."
    )
  sizes = tuple(int(text) for text in shape)
  try:
    return map_elites.Grid(sizes, descriptor.lower, descriptor.upper)
  except ValueError as error:
    raise ValueError(f"--grid_shape={','.join(shape)}: {error}") from error


def _check_count(flags: MEPBTFlags, name: str, least: int) -> None:
  """Refuses a flag whose value is no number of things."""
  value = getattr(flags, name)
  if not least <= value < _NO_COUNT:
    raise ValueError(
      f"--{name}={value} must be at least {least} and below 2**31."
    )


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.run_main(main, MEPBTFlags, _FLAG_NAMES)
