"""Where a launcher finds what earlier starts like this one have found out."""

import pathlib
from collections.abc import Mapping
from typing import Any

from qdrl_haiku.cli.environment_flags import EnvironmentFlags
from qdrl_haiku.cli.skill_flags import SkillFlags

# Settings that change no program.
_OF_NO_PROGRAM = (
  "checkpoint_interval", "checkpoint_replay", "compilation_cache_dir",
  "logdir", "max_checkpoints", "num_generations", "num_reevaluations",
  "num_timesteps", "on_divergence", "reevaluation_interval",
  "repertoire_interval", "resume", "seed", "suffix", "use_tensorboard",
  "warm_start",
)  # fmt: skip


def sizes_of(flags: EnvironmentFlags, instance: Any) -> Any:
  """Returns the sizes of an environment that was checked before.

  Args:
    flags: that ask for it.
    instance: the environment of one instance.

  Returns:
    Sizes of observations and actions, or None if they aren't kept.
  """
  kept = _of_environment(flags, instance)
  return None if kept is None else kept.read("sizes")


def keep_sizes(flags: EnvironmentFlags, env: Any) -> None:
  """Keeps what `sizes_of` returns the next time.

  Args:
    flags: that ask for the environment.
    env: that has passed all checks.
  """
  instance = getattr(env, "unwrapped", None)
  kept = None if instance is None else _of_environment(flags, instance)
  if kept is not None and not kept.has("sizes"):
    kept.write("sizes", (env.observation_size, env.action_size))


def of_run(
  flags: SkillFlags, setup: Any, settings: Mapping[str, Any]
) -> Any:
  """Returns where the programs of a run are kept.

  Programs with a user's own learner, controller or emitter aren't: what these
  have read isn't known.

  Args:
    flags: of the run.
    setup: that they have made.
    settings: all that the run depends on, by name.

  Returns:
    A `storage.kept.Kept`, or None if they aren't.
  """
  if setup.on_host or _has_users_parts(flags, setup):
    return None
  env = getattr(setup.env, "env", setup.env)  # Of skills.
  parts = {
    "settings": {
      name: value
      for name, value in settings.items()
      if name not in _OF_NO_PROGRAM
    },
    "tessellation": setup.map_elites and setup.map_elites.tessellation,
  }
  return _kept(flags, "programs", env.unwrapped, parts)


def _has_users_parts(flags: SkillFlags, setup: Any) -> bool:
  """Returns whether a learner, controller or emitter is a user's own."""
  if ":" in flags.learner or ":" in getattr(flags, "controller", ""):
    return True
  emitter = setup.map_elites and setup.map_elites.emitter
  parts = emitter if isinstance(emitter, tuple) else ()
  return callable(emitter) or any(part.emitter for part in parts)


def _of_environment(flags: EnvironmentFlags, instance: Any) -> Any:
  names = EnvironmentFlags.kinds()
  parts = {name: getattr(flags, name) for name in names}
  return _kept(flags, "environments", instance, parts)


def _kept(
  flags: EnvironmentFlags, kind: str, instance: Any, parts: Any
) -> Any:
  """Returns where something is kept that depends on an environment.

  Args:
    flags: of the launcher.
    kind: of what is kept.
    instance: the environment of one instance.
    parts: what else it depends on.

  Returns:
    A `storage.kept.Kept`, or None where nothing is kept.
  """
  import jax

  from qdrl_haiku.storage import fingerprints
  from qdrl_haiku.storage.kept import Kept

  folder = jax.config.values["jax_compilation_cache_dir"]
  if not (folder and jax.config.values["jax_enable_compilation_cache"]):
    return None
  place, colon, _ = flags.env_name.partition(":")
  users = fingerprints.of_users_modules(place) if colon else []
  try:
    key = fingerprints.digest(
      (fingerprints.of_process(), users, instance, parts)
    )
  except fingerprints.Unknown:
    return None
  return Kept(pathlib.Path(folder) / kind, key)
