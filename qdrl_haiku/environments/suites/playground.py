"""Environments of MuJoCo Playground: pure JAX, as brax's are.

Zakka et al. (2025), "MuJoCo Playground", arXiv:2502.08844. The package
`playground` is an extra; nothing of it is imported before it is asked for.
"""

import pathlib
import subprocess
from typing import Any

from qdrl_haiku import names
from qdrl_haiku.environments.suites import brax_loading

_MENAGERIE = "https://github.com/google-deepmind/mujoco_menagerie"


def make_playground_environment(
  name: str, *, assets: str | None = None, **overrides: Any
) -> tuple[Any, int]:
  """Makes one instance of an environment of Playground.

  Args:
    name: in Playground's registry.
    assets: a copy of mujoco_menagerie, the robots' geometry, which Playground
      otherwise downloads; from then on it is that of the whole process.
    **overrides: what replaces parts of the environment's configuration.

  Returns:
    The environment, and the number of steps of its episodes.
  """
  env_name = f"env_name='playground:{name}'"
  try:
    with brax_loading.quiet_brax_loading():
      from mujoco_playground import registry
  except ModuleNotFoundError as error:
    if error.name != "mujoco_playground":
      raise
    raise ValueError(
      f"{env_name} needs MuJoCo Playground; pip install "
      "'qdrl_haiku[playground]'.") from error
  if name not in registry.ALL_ENVS:
    advice = names.nearest_name(name, registry.ALL_ENVS)
    raise ValueError(f"{env_name} is unknown; {advice}")
  if assets is not None:
    _take_assets(assets)
  config = registry.get_default_config(name)
  if "impl" in config:
    # MJX written in JAX, not in warp: in warp's states all instances share some
    # parts, so that one instance can't be reset or copied alone.
    overrides = {"impl": "jax"} | overrides
  try:
    with brax_loading.quiet_brax_loading():
      env = registry.load(name, config=config, config_overrides=overrides)
  except (OSError, subprocess.CalledProcessError) as error:
    raise ValueError(
      f"{env_name} can't be loaded ({error}): Playground downloads its robots "
      "from github.com; try again where that can be reached, or give a copy of "
      "mujoco_menagerie as playground_assets.") from error
  except KeyError as error:
    raise ValueError(
      f"{env_name} can't take all of {overrides} ({error.args[0]}); leave that "
      "out.") from error
  except ValueError as error:
    if assets is None:
      raise
    raise ValueError(
      f"playground_assets={assets!r} lacks what {name} is made of ({error}); "
      f"give a whole copy of {_MENAGERIE}.") from error
  return env, config.episode_length


def _take_assets(assets: str) -> None:
  """Has Playground read robots' geometry from a folder."""
  if not pathlib.Path(assets).is_dir():
    raise ValueError(
      f"playground_assets={assets!r} is no folder; give a copy of "
      f"{_MENAGERIE}.")
  from mujoco_playground._src import mjx_env

  mjx_env.MENAGERIE_PATH = pathlib.Path(assets)
