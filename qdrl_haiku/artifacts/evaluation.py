"""Many episodes of one agent, in bounded memory, and their summary."""

import jax
import numpy as np

from qdrl_haiku import actors, environments, learners, types

# Environments that run side by side.
_BATCH = 1024
_CONFIDENCE = 0.95
# Numbers that are resampled at a time.
_RESAMPLED = 10_000_000


def evaluate_agent(
  env: environments.BatchedEnvironment,
  learner: learners.Learner,
  state: types.State,
  key: types.Key,
  num_episodes: int,
) -> actors.Evaluation:
  """Runs greedy episodes of one agent, a thousand at a time.

  Args:
    env: the environment; the episodes have a descriptor if it has one.
    learner: the agent's.
    state: of one agent.
    key: consumed; batch i draws from `fold_in(key, i)`.
    num_episodes: N, >= 1. Skills that are dealt out go on from batch to batch.

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
  evaluate = jax.jit(
    lambda state, key: actors.evaluate(
      env, learner, state, key, size, function
    )
  )
  batches = [
    jax.device_get(evaluate(population, jax.random.fold_in(key, i)[None]))
    for i in range(num_batches)
  ]
  return jax.tree.map(
    lambda *x: np.concatenate(x, axis=1)[:, :num_episodes], *batches
  )


def summarize_evaluation(
  evaluation: actors.Evaluation,
  descriptor: environments.Descriptor | None,
) -> dict[str, float]:
  """Summarises the episodes of one agent.

  Args:
    evaluation: of a population of one, on the host.
    descriptor: of the environment.

  Returns:
    What `summarize_evaluated_returns` says of the returns, and likewise by name
    the lengths and each axis of the descriptor, where there is one.
  """
  lengths = evaluation.lengths[0]
  summary = summarize_evaluated_returns(np.asarray(evaluation.returns[0])) | {
    "length_mean": float(np.mean(lengths)),
    "length_min": int(np.min(lengths)),
    "length_max": int(np.max(lengths)),
  }
  if evaluation.descriptors is not None:
    assert descriptor is not None
    descriptors = np.asarray(evaluation.descriptors[0], np.float64)
    summary |= {
      f"descriptor/{name}": float(np.mean(values))
      for name, values in zip(descriptor.names, descriptors.T, strict=True)
    }
  return summary


def summarize_evaluated_returns(returns: np.ndarray) -> dict[str, float]:
  """Summarises episodes.

  Args:
    returns: [N], of the episodes.

  Returns:
    `num_episodes`, `mean`, `std`, `iqm` (interquartile mean) and `iqm_low`,
    `iqm_high`, its 95 % bootstrap interval (Agarwal et al., arXiv 2108.13264).
  """
  from scipy import stats  # Here, since importing it takes long.

  def iqm(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return stats.trim_mean(x, 0.25, axis=axis)

  returns = np.asarray(returns, np.float64)
  low = high = float(iqm(returns))
  if np.ptp(returns) > 0:
    interval = stats.bootstrap(
      (returns,),
      iqm,
      confidence_level=_CONFIDENCE,
      batch=max(1, _RESAMPLED // len(returns)),
      method="percentile",
      rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = float(interval.low), float(interval.high)
  return {
    "num_episodes": len(returns),
    "mean": float(np.mean(returns)),
    "std": float(np.std(returns)),
    "iqm": float(iqm(returns)),
    "iqm_low": low,
    "iqm_high": high,
  }
