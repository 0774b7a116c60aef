"""A check of the numbers that an environment returns, by running it.

A NaN in a user's environment is then reported by the name of the field, not as
agents that all diverge.
"""

from typing import Any

import jax
import numpy as np

_NUM_STEPS = 8


def check_values(env: Any) -> None:
  """Runs one instance for a few steps with random actions, and looks at it."""

  def fields(state: Any) -> dict[str, Any]:
    # As the environment itself returned them.
    state = state.pipeline_state
    named = {"obs": state.obs, "reward": state.reward, "done": state.done}
    for name in ("state_descriptor", "truncation"):
      if name in state.info:
        named[f"info['{name}']"] = state.info[name]
    return named

  def step(state: Any, action: Any) -> Any:
    state = env.advance(state, action)
    return state, fields(state)

  @jax.jit
  def run(key: Any) -> Any:
    reset_key, action_key = jax.random.split(key)
    state = env.reset(reset_key)
    actions = jax.random.uniform(
      action_key, (_NUM_STEPS, env.action_size), minval=-1.0, maxval=1.0
    )
    return fields(state), jax.lax.scan(step, state, actions)[1]

  first, later = jax.device_get(run(jax.random.key(0)))
  _check_values("env.reset", first)
  for name in ("done", "info['truncation']"):
    if first.get(name, 0):
      raise ValueError(
        f"env.reset returned {name}=1: the episode ends before its first step; "
        "return 0."
      )
  for i in range(_NUM_STEPS):
    values = {name: x[i] for name, x in later.items()}
    _check_values("env.step", values)
    if values["done"] or values.get("info['truncation']"):
      break  # What comes after the end isn't used.


def _check_values(method: str, values: dict[str, np.ndarray]) -> None:
  """Checks what one call returned."""
  for name, value in values.items():
    value = np.asarray(value, np.float64)
    for index in np.argwhere(~np.isfinite(value))[:1]:
      number = float(value[tuple(index)])
      place = f"{name}{list(index.tolist())}" if index.size else name
      raise ValueError(
        f"{method} returned {'NaN' if np.isnan(number) else number} in "
        f"{place}; return finite numbers."
      )
    if name in ("done", "info['truncation']") and value not in (0, 1):
      raise ValueError(
        f"{method} returned {name}={value:g}; return 1 where an episode ends, "
        "else 0."
      )
