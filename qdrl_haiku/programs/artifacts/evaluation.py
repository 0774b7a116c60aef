"""Many episodes of one agent, in bounded memory, and their summary."""

import jax
import numpy as np

from qdrl_haiku import actors, environments, learners, platform, types
from qdrl_haiku.programs.artifacts import statistics

# Environments that run side by side.
_BATCH = 1024


def evaluate_agent(
  env: environments.BatchedEnvironment, learner: learners.Learner,
  state: types.State, key: types.Key, num_episodes: int,
) -> actors.Evaluation:
  """Runs N greedy episodes of one agent, a thousand at a time.

  The episodes have a descriptor if the environment has one, and skills that are
  dealt out go on from batch to batch.

  Args:
    env: the environment.
    learner: whose `act_greedy` acts.
    state: the agent's.
    key: batch i draws from `fold_in(key, i)`.
    num_episodes: N.

  Returns:
    The evaluation of a population of one, on the host.
  """
  num_batches = -(-num_episodes // _BATCH)
  size = -(-num_episodes // num_batches)
  if num_batches > 1 and isinstance(env, environments.SkillEnvironment):
    num_skills = env.prior.num_skills or 1
    size = -(-size // num_skills) * num_skills
  descriptor = env.descriptor
  function = None if descriptor is None else descriptor.function
  population = jax.tree.map(lambda x: x[None], state)
  keys = [jax.random.fold_in(key, i)[None] for i in range(num_batches)]
  evaluate = platform.compiled(
    lambda state, key: actors.evaluate(
      env, learner, state, key, size, function),
    population, keys[0], often=True)
  batches = [jax.device_get(evaluate(population, key)) for key in keys]
  return jax.tree.map(
    lambda *x: np.concatenate(x, axis=1)[:, :num_episodes], *batches)


def summarize_evaluation(
  evaluation: actors.Evaluation, descriptor: environments.Descriptor | None
) -> dict[str, float]:
  """Summarises the episodes of one agent, of `evaluate_agent`.

  Returns:
    `num_episodes`; of returns `mean`, `std`, `iqm` (interquartile mean) and its
    95 % bootstrap interval, `iqm_low`, `iqm_high` (Agarwal et al., arXiv
    2108.13264); lengths, and the mean of each axis of the descriptor.
  """
  returns = np.asarray(evaluation.returns[0], np.float64)
  lengths = evaluation.lengths[0]
  iqm, low, high = map(float, statistics.pooled_interquartile_mean([returns]))
  means: dict[str, float] = {}
  if evaluation.descriptors is not None:
    assert descriptor is not None
    found = np.asarray(evaluation.descriptors[0], np.float64).mean(axis=0)
    names = [f"descriptor/{name}" for name in descriptor.names]
    means = dict(zip(names, found.tolist(), strict=True))
  return {
    "num_episodes": len(returns),
    "mean": float(np.mean(returns)), "std": float(np.std(returns)),
    "iqm": iqm, "iqm_low": low, "iqm_high": high,
    "length_mean": float(np.mean(lengths)),
    "length_min": int(np.min(lengths)), "length_max": int(np.max(lengths)),
    **means}


def mean_intervals(evaluation: actors.Evaluation) -> dict[str, float]:
  """Returns mean return and length of an agent, with 95 % intervals."""
  found: dict[str, float] = {}
  for prefix, values in (
    ("", evaluation.returns), ("length_", evaluation.lengths)):
    interval = map(float, statistics.mean_interval(np.asarray(values[0])))
    names = (f"{prefix}{x}" for x in ("mean", "mean_low", "mean_high"))
    found |= zip(names, interval, strict=True)
  return found
