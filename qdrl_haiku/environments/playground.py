"""Environments of MuJoCo Playground: pure JAX, as brax's are.

Zakka et al. (2025), "MuJoCo Playground", arXiv:2502.08844. The package
`playground` is an extra; nothing of it is imported before it is asked for.
"""

import subprocess
from collections.abc import Mapping
from typing import Any

import jax

from qdrl_haiku import names, types
from qdrl_haiku.environments import base, brax_loading, interface

# Of MJX: warp's states have parts that all instances share, so that one of
# them can't be reset or copied alone.
_IMPLEMENTATION = "jax"
# What agents observe, of an environment whose observation is a dict; the rest
# is for critics that know more than their policy.
_OBSERVED = "state"


class Playground:
  """One instance of an environment of Playground, as `Environment` takes it.

  Attributes:
    env: Playground's.
    observation_size: O, of what a policy is to observe.
    action_size: A.
  """

  def __init__(self, env: Any) -> None:
    """Wraps an environment."""
    self.env = env
    # Jitted so that all uses share one trace.
    self._reset = jax.jit(env.reset)
    self._step = jax.jit(env.step)
    key = jax.eval_shape(lambda: jax.random.key(0))
    shape = _observation(jax.eval_shape(self._reset, key).obs).shape
    if len(shape) != 1:
      raise ValueError(
        f"the observation of {type(env).__name__} has shape {shape}; only "
        "vectors can be learned from."
      )
    self.observation_size: int = shape[0]
    self.action_size: int = env.action_size

  def reset(self, rng: types.Key) -> interface.State:
    """Draws an initial state."""
    return _state(self._reset(rng))

  def step(
    self, state: interface.State, action: types.Array
  ) -> interface.State:
    """Advances by one step with action [A]."""
    return _state(self._step(state.pipeline_state, action))


def adapted(env: Any) -> Any:
  """Wraps an environment if it is one of Playground's."""
  packages = {c.__module__.partition(".")[0] for c in type(env).__mro__}
  return Playground(env) if "mujoco_playground" in packages else env


def create(
  name: str,
  *,
  backend: str | None = None,
  episode_length: int | None = None,
  action_repeat: int = 1,
  **overrides: Any,
) -> base.Environment:
  """Creates an environment of MuJoCo Playground.

  Args:
    name: as in Playground's registry. Those of locomotion and manipulation
      download their robots when the first of them is created.
    backend: None, since there is one only: MJX as written in JAX.
    episode_length: truncates episodes; by default as Playground has it.
    action_repeat: how often each action is applied, at least 1.
    **overrides: of the environment's configuration in Playground.

  Returns:
    The environment. If its observations are dicts, agents get their `state`.

  Raises:
    ValueError: if Playground isn't there, or the name or an override isn't
      known, or a number is out of range.
  """
  try:
    with brax_loading.quiet_brax():
      from mujoco_playground import registry
  except ModuleNotFoundError as error:
    if error.name != "mujoco_playground":
      raise
    raise ValueError(
      f"env_name='playground:{name}' needs MuJoCo Playground; pip install "
      "'qdrl_haiku[playground]'."
    ) from error
  if name not in registry.ALL_ENVS:
    raise ValueError(
      f"env_name='playground:{name}' is unknown; "
      f"{names.nearest(name, registry.ALL_ENVS)}"
    )
  if backend is not None:
    raise ValueError(
      f"backend={backend!r} is not one of 'playground:{name}'; leave it out."
    )
  config = registry.get_default_config(name)
  if "impl" in config:
    overrides = {"impl": _IMPLEMENTATION} | overrides
  for key in overrides:
    if key.partition(".")[0] not in config:
      raise ValueError(
        f"{key} is no part of the configuration of 'playground:{name}'; "
        f"{names.nearest(key, config)}"
      )
  try:
    with brax_loading.quiet_brax():
      env = registry.load(name, config=config, config_overrides=overrides)
  except (OSError, subprocess.CalledProcessError) as error:
    raise ValueError(
      f"env_name='playground:{name}' can't be loaded ({error}): Playground "
      "downloads its robots from github.com; try again where that can be "
      "reached."
    ) from error
  return base.Environment(
    Playground(env),
    episode_length=(
      config.episode_length if episode_length is None else episode_length
    ),
    action_repeat=action_repeat,
  )


def _observation(observation: Any) -> Any:
  """Returns what of an observation agents get."""
  if not isinstance(observation, Mapping):
    return observation
  if _OBSERVED not in observation:
    raise ValueError(
      f"the observation has {', '.join(observation)}, but no {_OBSERVED!r}, "
      "and only vectors can be learned from."
    )
  return observation[_OBSERVED]


def _state(inner: Any) -> interface.State:
  """Returns a state of ours, around Playground's own."""
  return interface.State(
    pipeline_state=inner,
    obs=_observation(inner.obs),
    reward=inner.reward,
    done=inner.done,
    metrics=dict(inner.metrics),
  )
