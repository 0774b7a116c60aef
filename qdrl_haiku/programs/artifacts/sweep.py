"""Sweeps: how well one agent does while one thing about a robot changes."""

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import actors, environments, learners, platform, types
from qdrl_haiku.environments.randomizing import drawn_values

# Episodes that are begun for each that is run, so that each value has enough.
_SPARE = 4


def parse_sweep(text: str) -> tuple[str, tuple[float, ...]]:
  """Reads a sweep from the command line, or refuses it.

  Args:
    text: "name:low:high:number", the name one of `--randomize`.

  Returns:
    The name, and as many values from low to high, evenly spaced.
  """
  try:
    name, *ends, number = text.split(":")
    (start, end), count = map(float, ends), int(number)
  except ValueError:
    raise ValueError(
      "it is malformed; write it as friction:0.3:2:10.") from None
  if not (2 <= count <= 1000 and -np.inf < start < end < np.inf):
    raise ValueError(
      f"it goes from {start:g} to {end:g} in {count} values; give 2 to 1000 "
      "values, the smallest first.")
  return name, tuple(np.linspace(start, end, count).tolist())


def sweep_specification(name: str, values: tuple[float, ...]) -> str:
  """Returns what an environment is randomised by for a sweep."""
  return ":".join([name, "choice", *map(repr, values)])


def sweep_agent(
  env: environments.BatchedEnvironment, learner: learners.Learner,
  state: types.State, key: types.Key, name: str, values: tuple[float, ...],
  num_episodes: int,
) -> np.ndarray:
  """Evaluates one agent N times at each of K values: returns [K, N].

  Args:
    env: draws the value of the name by `sweep_specification`.
    learner: whose `act_greedy` acts.
    state: the agent's.
    key: consumed.
    name: what is swept, one of `--randomize`.
    values: the K values.
    num_episodes: N.
  """
  size = _SPARE * len(values) * (num_episodes + 8)
  keys = jax.random.split(key, size)
  begun = platform.compiled(env.reset, keys)(keys)
  drawn = np.asarray(drawn_values(begun)[name])
  chosen = np.stack([
    np.argsort(drawn != np.float32(value), kind="stable")[:num_episodes]
    for value in values])
  env_states = jax.tree.map(lambda x: x[chosen], begun)
  states = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (len(values), *jnp.shape(x))), state)
  evaluate = platform.compiled(
    lambda *args: actors.evaluate_from_states(env, learner, *args),
    states, env_states, often=True)
  return np.asarray(evaluate(states, env_states).returns)
