"""Environments of MuJoCo Playground: pure JAX, as brax's are.

Zakka et al. (2025), "MuJoCo Playground", arXiv:2502.08844. The package
`playground` is an extra; nothing of it is imported before it is asked for.
"""

import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp

from qdrl_haiku import names
from qdrl_haiku.environments.robots import warp
from qdrl_haiku.environments.suites import brax_loading
from qdrl_haiku.environments.wrappers import Around
from qdrl_haiku.types import Array, Key

_MENAGERIE = "https://github.com/google-deepmind/mujoco_menagerie"


def make_playground_environment(
  name: str, *, assets: str | None = None, backend: str = "mjx",
  **overrides: Any,
) -> tuple[Any, int]:
  """Makes one instance of an environment of Playground.

  Args:
    name: in Playground's registry.
    assets: a copy of mujoco_menagerie, the robots' geometry, which Playground
      otherwise downloads; from then on it is that of the whole process.
    backend: mjx, or warp, MuJoCo Warp's kernels for NVIDIA's cards, which has
      room for `naconmax` contacts of all instances together.
    **overrides: what replaces parts of the environment's configuration.

  Returns:
    The environment, and the number of steps of its episodes.
  """
  env_name = f"env_name='playground:{name}'"
  with brax_loading.quiet_brax_loading():
    registry = names.import_extra(
      env_name, "mujoco_playground", "MuJoCo Playground", "playground").registry
  if name not in registry.ALL_ENVS:
    advice = names.nearest_name(name, registry.ALL_ENVS)
    raise ValueError(f"{env_name} is unknown; {advice}")
  if assets is not None:
    _take_assets(assets)
  config = registry.get_default_config(name)
  if backend == "warp":
    warp.prepare_warp()
  if "impl" in config:
    overrides |= {"impl": "warp" if backend == "warp" else "jax"}
  elif backend == "warp":
    raise ValueError(
      f"{env_name} is written for MJX alone; leave backend='warp' out.")
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
  return _OwnStates(env) if backend == "warp" else env, config.episode_length


class _OwnStates(Around):
  """An environment without what Warp's states share.

  They share their contacts, so that no instance could be reset or copied alone;
  a step makes them anew.
  """

  def __init__(self, env: Any) -> None:
    self.env = env
    self._whole = jax.eval_shape(env.reset, jax.random.key(0)).data._impl

  def reset(self, rng: Key) -> Any:
    """Draws an initial state."""
    return self._stripped(self.env.reset(rng))

  def step(self, state: Any, action: Array) -> Any:
    """Advances by one step."""
    own = jax.tree.map(
      lambda x, like: x if x.shape == like.shape
      else jnp.zeros(like.shape, like.dtype), state.data._impl, self._whole)
    state = state.replace(data=state.data.replace(_impl=own))
    return self._stripped(self.env.step(state, action))

  def _stripped(self, state: Any) -> Any:
    """Returns a state whose shared parts are empty."""
    from mujoco.mjx.warp import types

    own = jax.tree_util.tree_map_with_path(
      lambda path, x: x if types._BATCH_DIM["Data"].get(path[-1].name, True)
      else jnp.zeros(0, x.dtype), state.data._impl)
    return state.replace(data=state.data.replace(_impl=own))


def _take_assets(assets: str) -> None:
  """Has Playground read robots' geometry from a folder."""
  if not pathlib.Path(assets).is_dir():
    raise ValueError(
      f"playground_assets={assets!r} is no folder; give a copy of "
      f"{_MENAGERIE}.")
  from mujoco_playground._src import mjx_env

  mjx_env.MENAGERIE_PATH = pathlib.Path(assets)
