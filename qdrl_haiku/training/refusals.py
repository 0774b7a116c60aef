"""Refuses what is composed, but doesn't fit."""

from collections.abc import Iterator

from qdrl_haiku import checks, environments, map_elites, specs, trees
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.training import search_spaces
from qdrl_haiku.training.setup import Setup

_REPLAY_SETTINGS = (
  "batch_size", "grad_updates_per_step", "n_step", "replay_capacity",
  "min_replay_size", "random_shift", "random_warm_up", "inherit_replay")
_POPULATION_SETTINGS = ("burn_in_period", "fitness", "fitness_window")


def check_setup(setup: Setup) -> None:
  """Refuses settings that don't fit the others, or would be ignored."""
  learner = setup.learner
  with checks.Refusals() as refusals:
    for name, value in trees.tree_leaves_by_name(learner.hyperparams).items():
      where = f"the learner's hyperparameter {name}={value}"
      with refusals.noted():
        search_spaces.check_search_space_value(
          learner.declared, name, value, where)
    for problem in (
      *_n_step_problems(setup), *_sequence_problems(setup),
      *_curriculum_problems(setup), *_repertoire_problems(setup),
      *_ignored_settings(setup)
    ):
      refusals.refuse(problem)
    if setup.trains_members:
      config_lib.training_iterations(setup.config, learner)


def _n_step_problems(setup: Setup) -> Iterator[str]:
  """Says where there is no such thing as sums of rewards."""
  n, fix = setup.config.n_step, "take n_step=1."
  if n == 1:
    return
  if not setup.learner.supports_n_step:
    yield f"n_step={n}, but the learner learns from single steps; {fix}"
  known = list(trees.tree_leaves_by_name(setup.learner.hyperparams))
  if "discount" not in known:
    yield (
      f"n_step={n} sums rewards by the hyperparameter discount, and the "
      f"learner's are {', '.join(known)}; give it one, or {fix}")
  names = setup.map_elites.emitter_names if setup.map_elites else ()
  if not set(config_lib.TAUGHT).isdisjoint(names):
    yield (
      f"n_step={n}, but with emitter {', '.join(names)} agents learn from "
      f"single steps; {fix}")


def _sequence_problems(setup: Setup) -> Iterator[str]:
  """Says where batches can't be of whole sequences, or replay of too few."""
  learner, config = setup.learner, setup.config
  if learner.learns_from != "sequences":
    return
  length, burn_in = learner.sequence_length, learner.burn_in
  if config.batch_size % (length - burn_in):
    yield (
      f"batch_size={config.batch_size} must be a multiple of {length - burn_in}"
      f", the steps that are learned from of sequence_length={length} with "
      f"burn_in={burn_in}; change one of them.")
  if config.min_replay_size < length * config.num_envs:
    yield (
      f"min_replay_size={config.min_replay_size} transitions hold no sequence "
      f"of sequence_length={length} steps of each of num_envs="
      f"{config.num_envs}; give {length * config.num_envs} or more.")


def _curriculum_problems(setup: Setup) -> Iterator[str]:
  """Says why there is no boundary for a curriculum to move."""
  threshold = setup.config.curriculum.widen_above
  if threshold is None:
    return
  what = f"widen_above={threshold:g}"
  if not setup.boundaries:
    yield (
      f"{what} has no effect, since no range of the environment has an end at "
      "which anything is changed; leave it out.")
  for name in setup.boundaries:
    if (own := environments.TUNABLE + name) in setup.learner.hyperparams:
      yield (
        f"{what} moves the boundaries of ranges, and {own} is among the "
        "hyperparameters; search that, or give the other.")


def _repertoire_problems(setup: Setup) -> Iterator[str]:
  """Says what of a repertoire's settings doesn't fit the others."""
  qd, env = setup.map_elites, setup.eval_env
  if qd is None:
    return
  if not setup.abilities.copies_states:
    yield (
      "a repertoire's agents can't act in an environment whose states can't be "
      "copied; take one that jax computes.")
  if env.descriptor is None and qd.describer is None:
    yield (
      "a repertoire needs an environment with state descriptors; take one that "
      "has, or give yours a Descriptor, or MapElites a describer.")
  improves = qd.describer is not None and qd.describer.improve is not None
  if improves and qd.container.again is not None:
    yield (
      "the describer learns, and elites are placed anew by it, which a "
      "container that evaluates some again can't do; take another container.")
  if qd.describer is not None and "dcrl" in qd.emitter_names:
    yield (
      "emitter dcrl asks for the environment's own descriptors, and there is a "
      "describer; take pga.")
  if setup.trains_members and setup.controller is None:
    yield (
      "emitter='pbt' needs a controller, which says which members are "
      "replaced; give one, such as controllers.pbt.")
  names = qd.emitter_names
  emitters = f"emitter {', '.join(names)}:"
  parts = qd.emitter if isinstance(qd.emitter, tuple) else ()
  if parts:
    given = [part.name for part in parts if part.batch_size is not None]
    if len(set(names)) < len(names):
      yield f"{emitters} one is there twice; name each once."
    if 0 < len(given) < len(names):
      yield (
        f"{emitters} some have a number of offspring and some have none; give "
        "all of them one, or none for shares that adapt.")
    for name in {"pbt", "cma", "me_es"}.intersection(() if given else names):
      yield (
        f"{emitters} {name} can't adapt its share, since all its agents have "
        "to be evaluated; give each emitter a number.")
    if "pbt" in names[1:]:
      yield f"{emitters} pbt has to be the first."
  share = qd.teaching.injection_share
  num_objectives = len(env.objectives.names) if env.objectives else 0
  for name, most in {"pga": 1, "qdpg": 2, "pgx": num_objectives}.items():
    if not share or name not in names or "dcrl" in names:
      continue
    own = [x.batch_size for x in parts if x.name == name]
    number = round(share * ((own and own[0]) or qd.variation_batch_size))
    if number > most:
      yield (
        f"{emitters} injection_share={share:g} would inject {number} policies "
        f"of {name}'s, and it has {most}; leave it out, or give 0.")
  is_single = setup.config.num_eval_episodes == 1
  if map_elites.SPREAD in qd.container.keeps and is_single:
    yield (
      "num_eval_episodes=1 shows no spread of an agent's episodes, by which "
      "container=low_spread adds; give 2 or more.")
  if qd.shard_repertoire and not qd.container.shared:
    yield (
      f"shard_repertoire: devices can't share what the container "
      f"{qd.container.name} holds (--adding, --tessellation); leave it out, or "
      "take another container.")


def _ignored_settings(setup: Setup) -> Iterator[str]:
  """Says which settings have no effect, but aren't at their defaults."""
  reasons = {"rollout_length": "the learner learns from replay"}
  if not specs.has_images(setup.env.observation_spec):
    reasons["random_shift"] = "no image [height, width, channels] is observed"
  if setup.on_policy:
    reasons = dict.fromkeys(
      _REPLAY_SETTINGS, "the learner learns from rollouts")
  if setup.map_elites is not None:
    if setup.evaluate is not None:
      yield "evaluate has no effect with map_elites; leave it at None."
    reasons |= dict.fromkeys(
      _POPULATION_SETTINGS, "a repertoire's agents are judged by their returns")
  for name, why in reasons.items():
    value = getattr(setup.config, name)
    default = getattr(config_lib.TrainingConfig, name)
    # Runs note how much they would keep, though they keep nothing.
    least = setup.config.least_capacity
    is_noted = name == "replay_capacity" and value == least
    if value != default and not is_noted:
      yield f"{name}={value!r} has no effect: {why}; leave it at {default!r}."
