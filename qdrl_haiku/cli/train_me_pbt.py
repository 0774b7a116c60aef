"""Fills a repertoire with agents: MAP-Elites, or ME-PBT.

python launchers/train_me_pbt.py \
  --flagfile=launchers/flagfiles/me_pbt_point_maze.flags
"""

import math
from typing import Any

from absl import flags

from qdrl_haiku.cli import (
  launch,
  learner_flags,
  pbt_flags,
  shared_flags,
  training_runs,
)

FLAGS = flags.FLAGS
# Of the settings that have another name here.
_FLAG_NAMES = {
  "population_size": "gradient_population_size",
  "num_replaced": "num_replaced_by_best",
}
# Of a population whose members train.
_OF_PBT = (
  "checkpoint_replay", "controller", "gradient_population_size", "num_envs",
  "num_parents", "num_replaced_by_best", "num_replaced_by_samples",
  "on_divergence", "perturbation_interval", "random_warm_up",
)  # fmt: skip
# Of learning from replay, which an emitter may do by itself.
_OF_LEARNING = (
  "batch_size", "grad_updates_per_step", "min_replay_size", "replay_capacity",
)  # fmt: skip
# jax counts in int32, and computes in float32.
_NO_COUNT = 2**31
_LARGEST_FLOAT = 1e30
# Of a generation, about, if nothing is said.
_INTERVAL = 1000


def define() -> None:
  """Defines the flags of this launcher."""
  shared_flags.define()
  # New policies whose last layers are near 0 all act alike, and the first
  # repertoire would be a few cells.
  FLAGS.set_default("policy_final_init", "fan_in")
  pbt_flags.define()
  flags.DEFINE_string(
    "emitter",
    "pbt",
    "pbt: a population that trains, and variations of elites (ME-PBT); ga: "
    "variations alone (MAP-Elites); or package.module:function, a function of "
    "the training.Setup that returns a map_elites.Emitter.",
  )
  FLAGS["num_timesteps"].help += (
    " Unless --emitter=pbt those of full episodes of one agent's evaluations: "
    "there are fewer where episodes end early."
  )
  flags.DEFINE_integer(
    "num_generations", None, "Generations, instead of --num_timesteps."
  )
  flags.DEFINE_string("tessellation", "grid", "Of the descriptors: or cvt.")
  flags.DEFINE_list(
    "grid_shape", ["32", "32"], "Cells of a grid along each descriptor."
  )
  flags.DEFINE_integer("num_cells", 1024, "Cells of --tessellation=cvt.")
  flags.DEFINE_integer(
    "gradient_population_size", 10, "Agents that train, with --emitter=pbt."
  )
  flags.DEFINE_integer(
    "variation_batch_size", 10, "Variations of elites in each generation."
  )
  flags.DEFINE_integer(
    "num_replaced_by_best",
    2,
    "How many of the worst agents the best replace in each generation.",
  )
  flags.DEFINE_integer(
    "num_replaced_by_samples",
    2,
    "How many of the next worst elites of the repertoire replace.",
  )
  flags.DEFINE_integer(
    "num_initial_genotypes", 20, "Random agents in the first repertoire."
  )
  flags.DEFINE_float(
    "iso_sigma", 0.01, "Of the noise on the weights of an elite."
  )
  flags.DEFINE_float(
    "line_sigma", 0.1, "Of the step towards or away from another elite."
  )
  flags.DEFINE_bool(
    "shard_repertoire",
    False,
    "Whether the devices share the cells, instead of each having all elites.",
  )
  flags.DEFINE_float(
    "qd_offset",
    None,
    "Added to each elite's return in the QD score; by default the "
    "environment's offset per step times --episode_length.",
  )
  flags.DEFINE_integer(
    "repertoire_interval",
    10,
    "Generations from one file and picture of the repertoire to the next.",
  )
  flags.DEFINE_integer(
    "num_reevaluations",
    0,
    "If above 0: at the end each elite is evaluated so often again, and the "
    "metrics of what remains are written to corrected.json.",
  )


def make_setup() -> Any:
  """Returns the repertoire that the flags ask for, a `training.Setup`.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import training

  if FLAGS.learner == "diayn":
    raise ValueError(
      "--learner=diayn has skills, which an elite of a repertoire has not; "
      "take sac or td3."
    )
  if ":" not in FLAGS.emitter:
    learner_flags.check_choice("emitter", ("pbt", "ga"))
  if FLAGS.num_generations is not None:
    learner_flags.refuse_given(
      ["num_timesteps"], "--num_generations says how long the run is"
    )
    _check_count("num_generations", 1)
  agent = shared_flags.make_agent()
  search_space = pbt_flags.make_search_space(agent.learner)
  controller = None
  population: dict[str, Any] = {}
  if FLAGS.emitter == "pbt":
    exploit = "truncation"
    if not FLAGS.num_replaced_by_best:
      exploit = "none"
      learner_flags.refuse_given(
        ["num_parents"], "--num_replaced_by_best=0 replaces nobody"
      )
    controller = pbt_flags.make_controller(
      search_space,
      ["num_parents", "num_replaced_by_best"],
      exploit=exploit,
      num_parents=FLAGS.num_parents,
      num_replaced=FLAGS.num_replaced_by_best or None,
    )
    population["population_size"] = FLAGS.gradient_population_size
    population["perturbation_interval"] = _interval(agent.learner)
  else:
    why = f"with --emitter={FLAGS.emitter} no agent trains by PBT"
    unused: tuple[str, ...] = _OF_PBT
    if FLAGS.emitter == "ga":
      why = "with --emitter=ga no agent trains"
      unused += _OF_LEARNING
    learner_flags.refuse_given(unused, why, "emitter")
  setup = training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=controller,
    config=shared_flags.make_training_config(**population),
    map_elites=_make_map_elites(agent.eval_env, search_space),
  )
  if FLAGS.num_generations is not None:
    FLAGS.num_timesteps = FLAGS.num_generations * setup.steps_per_generation
  return setup


def main() -> None:
  """Fills the repertoire that the flags ask for."""
  launch.prepare()
  setup = make_setup()
  name = {"pbt": "me_pbt", "ga": "map_elites"}.get(
    FLAGS.emitter, FLAGS.emitter.rpartition(":")[2]
  )
  training_runs.run_training(
    setup,
    f"{name}_{learner_flags.learner_name()}",
    [FLAGS.seed],
    more_settings=pbt_flags.ranges(setup.learner) if setup.controller else None,
    repertoire_interval=FLAGS.repertoire_interval,
    num_reevaluations=FLAGS.num_reevaluations,
  )


def _interval(learner: Any) -> int:
  """Environment steps per agent and generation."""
  from qdrl_haiku import training

  if FLAGS.num_generations is None:
    return shared_flags.interval("perturbation_interval", learner)
  if FLAGS.perturbation_interval is None:
    steps = training.iteration_steps(
      num_envs=FLAGS.num_envs,
      grad_updates_per_step=FLAGS.grad_updates_per_step,
      batches_per_update=learner.batches_per_update,
    )
    steps *= max(1, round(_INTERVAL / steps))
    FLAGS["perturbation_interval"].value = steps
  return FLAGS.perturbation_interval


def _make_map_elites(env: Any, search_space: Any) -> Any:
  """Returns what MAP-Elites adds to the setup."""
  from qdrl_haiku import controllers, training

  descriptor = env.descriptor
  if descriptor is None:
    raise ValueError(
      f"--env_name={FLAGS.env_name} has no state descriptor, by which a "
      "repertoire is ordered; take one that has, such as point_maze or "
      "halfcheetah_uni, or give yours a Descriptor."
    )
  _check_count("variation_batch_size", 0)
  _check_count("num_replaced_by_samples", 0)
  _check_count("num_initial_genotypes", 1)
  for name in ("iso_sigma", "line_sigma"):
    if not 0 <= getattr(FLAGS, name) <= _LARGEST_FLOAT:
      raise ValueError(
        f"--{name}={getattr(FLAGS, name)} must be finite and at least 0."
      )
  if FLAGS.emitter != "pbt" and FLAGS.variation_batch_size == 0:
    raise ValueError(
      f"--variation_batch_size=0 leaves --emitter={FLAGS.emitter} with no "
      "offspring; give 1 or more."
    )
  if FLAGS.variation_batch_size == 0:
    learner_flags.refuse_given(
      ["iso_sigma", "line_sigma"],
      "--variation_batch_size=0 varies nothing",
      "variation_batch_size",
    )
  offset = FLAGS.qd_offset
  if offset is not None and not abs(offset) <= _LARGEST_FLOAT:
    raise ValueError(
      f"--qd_offset={offset} must be finite; leave it out for the "
      "environment's own."
    )
  if offset is None:
    offset = descriptor.reward_offset * env.episode_length
  config = pbt_flags.make_config()
  return training.MapElites(
    emitter=_emitter(),
    tessellation=_make_tessellation(descriptor),
    variation_fn=training.vary_agents(
      FLAGS.iso_sigma,
      FLAGS.line_sigma,
      controllers.explore(config, search_space),
    ),
    variation_batch_size=FLAGS.variation_batch_size,
    num_initial_genotypes=FLAGS.num_initial_genotypes,
    num_replaced_by_samples=FLAGS.num_replaced_by_samples
    if FLAGS.emitter == "pbt"
    else 0,
    qd_offset=offset,
    shard_repertoire=FLAGS.shard_repertoire,
  )


def _emitter() -> Any:
  """Returns the emitter as the setup has it: a name, or a function."""
  if ":" not in FLAGS.emitter:
    return FLAGS.emitter
  function = learner_flags.users_function("emitter", "setup")

  def make(setup: Any) -> Any:
    from qdrl_haiku import map_elites

    emitter = function(setup)
    learner_flags.check_users_result("emitter", emitter, map_elites.Emitter)
    return emitter

  return make


def _make_tessellation(descriptor: Any) -> Any:
  """Returns the cells of the descriptor's space."""
  import jax
  import jax.numpy as jnp

  from qdrl_haiku import map_elites
  from qdrl_haiku.runs import repertoires
  from qdrl_haiku.storage.directory import RunDirectory

  learner_flags.check_choice("tessellation", ("grid", "cvt"))
  bounds = (descriptor.lower, descriptor.upper)
  if FLAGS.tessellation == "cvt":
    learner_flags.refuse_given(
      ["grid_shape"], "--tessellation=cvt is no grid", "tessellation"
    )
    _check_count("num_cells", 1)
    if FLAGS.resume and FLAGS.logdir:
      directory = RunDirectory(FLAGS.logdir)
      centroids = repertoires.read_centroids(directory)
      if centroids is not None:
        return map_elites.CVT(jnp.asarray(centroids), *bounds)
    return map_elites.cvt(jax.random.key(FLAGS.seed), FLAGS.num_cells, *bounds)
  learner_flags.refuse_given(["num_cells"], "--tessellation=grid has a shape")
  shape = FLAGS.grid_shape
  if len(shape) != descriptor.size or not all(
    text.isdecimal() and int(text) > 0 for text in shape
  ):
    raise ValueError(
      f"--grid_shape={','.join(shape)} doesn't fit the descriptor "
      f"{', '.join(descriptor.names)}; give {descriptor.size} numbers like "
      f"{','.join(['32'] * descriptor.size)}."
    )
  sizes = tuple(int(text) for text in shape)
  if math.prod(sizes) >= _NO_COUNT:
    raise ValueError(
      f"--grid_shape={','.join(shape)} makes {math.prod(sizes)} cells, which "
      "must be below 2**31; lower it."
    )
  return map_elites.Grid(sizes, *bounds)


def _check_count(name: str, least: int) -> None:
  """Refuses a flag whose value is no number of things."""
  value = getattr(FLAGS, name)
  if not least <= value < _NO_COUNT:
    raise ValueError(
      f"--{name}={value} must be at least {least} and below 2**31."
    )


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  define()
  launch.run_main(main, _FLAG_NAMES)
