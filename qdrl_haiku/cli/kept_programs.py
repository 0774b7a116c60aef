"""Where a launcher finds what earlier starts like this one have found out.

By name only what is ours alone is found, since of that versions, files and
settings say all. What a user's own code has read, or replaced, nobody knows: it
is traced at each start, and its programs are found by what was traced.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from qdrl_haiku.cli.environment_flags import EnvironmentFlags

# Settings that change no program.
_OF_NO_PROGRAM = (
  "checkpoint_interval", "checkpoint_replay", "compilation_cache_dir",
  "logdir", "max_checkpoints", "num_generations", "num_reevaluations",
  "num_timesteps", "on_divergence", "reevaluation_interval",
  "repertoire_interval", "resume", "seed", "suffix", "use_tensorboard",
  "warm_start",
)  # fmt: skip
# "package.module:function" or "gymnasium:id", as an emitter with a number.
_CODE = re.compile(r"[^:,]+:[^\W\d][^:,]*(:\d+)?")


def sizes_of(flags: EnvironmentFlags) -> Any:
  """Returns the sizes of an environment of ours that was checked before.

  Args:
    flags: that ask for it.

  Returns:
    Sizes of observations and actions, or None if they aren't kept.
  """
  kept = _of_environment(flags)
  return None if kept is None else kept.read("sizes")


def keep_sizes(flags: EnvironmentFlags, env: Any) -> None:
  """Keeps what `sizes_of` returns the next time.

  Args:
    flags: that ask for the environment.
    env: that has passed all checks.
  """
  kept = _of_environment(flags)
  if kept is not None and not kept.has("sizes"):
    kept.write("sizes", (env.observation_size, env.action_size))


def of_run(setup: Any, settings: Mapping[str, Any]) -> Any:
  """Returns where the programs of a run are kept.

  Args:
    setup: what the run is composed of.
    settings: all that it depends on, by name, as `config.json` has them.

  Returns:
    A `storage.kept.Kept`, or None if they aren't.
  """
  if setup.on_host:
    return None
  import jax
  import numpy as np

  parts = {
    name: value
    for name, value in settings.items()
    if name not in _OF_NO_PROGRAM
  }
  # Centroids are drawn by the seed, or read.
  tessellation = setup.map_elites and setup.map_elites.tessellation
  leaves, structure = jax.tree.flatten(tessellation)
  numbers = [np.asarray(x).tolist() for x in leaves]
  return _kept(parts, [repr(setup.config), str(structure), numbers])


def names_code(settings: Mapping[str, Any]) -> bool:
  """Returns whether a setting names code that isn't ours.

  Args:
    settings: by name, as JSON has them.
  """
  texts: list[Any] = []
  for value in settings.values():
    texts += value if isinstance(value, list) else [value]
  return any(
    _CODE.fullmatch(part)
    for text in texts
    if isinstance(text, str)
    for part in text.split(",")
  )


def _of_environment(flags: EnvironmentFlags) -> Any:
  names = EnvironmentFlags.kinds()
  return _kept({name: getattr(flags, name) for name in names}, "sizes")


def _kept(settings: Mapping[str, Any], rest: Any) -> Any:
  """Returns where something is kept, None where nothing is.

  Args:
    settings: that it depends on.
    rest: what else it depends on.
  """
  import jax

  from qdrl_haiku.storage import fingerprints
  from qdrl_haiku.storage.kept import Kept

  folder = jax.config.values["jax_compilation_cache_dir"]
  if not (folder and jax.config.values["jax_enable_compilation_cache"]):
    return None
  key = None
  if not names_code(settings) and fingerprints.users_module() is None:
    key = fingerprints.digest([fingerprints.of_process(), settings, rest])
  return Kept(pathlib.Path(folder) / "kept", key)
