"""Opens the cache of programs for a configuration.

Programs of this package alone are found by name: by its versions, files and
settings. A user's own code may have read, or replaced, anything: it is traced
at each start, and jax's own cache finds its programs by the traces.
"""

import dataclasses
import pathlib
import re

import jax
import numpy as np

from qdrl_haiku import config as config_lib
from qdrl_haiku import environments, training
from qdrl_haiku.config import Values
from qdrl_haiku.programs.experiment.config import Config
from qdrl_haiku.programs.storage import fingerprints
from qdrl_haiku.programs.storage.program_cache import ProgramCache

# "package.module:function" or "gymnasium:id", as an emitter with a number, or a
# robot's file.
_CODE = re.compile(r"[^:,]+:[^\W\d][^:,]*(:\d+)?|.*\.(xml|urdf)")
_RANGES = ("randomize", "search_space")  # "name:fixed:1" is no code.


def make_env_by_cache_key(
  config: environments.EnvironmentConfig,
) -> environments.BatchedEnvironment:
  """Makes an environment; one of ours is checked where it is made first."""
  cache = _open(dataclasses.asdict(config), "sizes")
  env = config.make(None if cache is None else cache.read("sizes"))
  if cache is not None and not cache.has("sizes"):
    cache.write("sizes", (env.observation_size, env.action_size))
  return env


def open_cache_by_key(
  config: Config, setup: training.Setup
) -> ProgramCache | None:
  """Opens a run's cache; None if none is kept, or a user's code takes part."""
  if setup.on_host:
    return None
  settings = config_lib.config_tree_values(config)
  # How long a run is, and what it leaves behind, changes no program.
  for name in config_lib.config_tree_values(config.run):
    del settings[name]
  # Centroids are drawn by the seed, or read.
  tessellation = setup.map_elites and setup.map_elites.tessellation
  leaves, structure = jax.tree.flatten(tessellation)
  numbers = [np.asarray(x).tolist() for x in leaves]
  return _open(settings, [repr(setup.config), str(structure), numbers])


def _open(settings: Values, rest: object) -> ProgramCache | None:
  """Opens the cache for what depends on settings and on some more."""
  folder = jax.config.values["jax_compilation_cache_dir"]
  if (
    not (folder and jax.config.values["jax_enable_compilation_cache"])
    or _names_code(settings)
    or fingerprints.module_without_fingerprint() is not None
  ):
    return None
  key = fingerprints.fingerprint_digest(
    [fingerprints.fingerprint_of_process(), settings, rest])
  return ProgramCache(pathlib.Path(folder) / "kept", key)


def _names_code(settings: Values) -> bool:
  """Returns whether a setting names code that isn't ours."""
  texts: list[object] = []
  for name, value in settings.items():
    if name not in _RANGES:
      texts += value if isinstance(value, list) else [value]
  return any(
    _CODE.fullmatch(part)
    for text in texts
    if isinstance(text, str)
    for part in text.split(","))
