"""Settings with which a learner was found to learn an environment faster."""

import dataclasses
from typing import Any, TypeVar

from qdrl_haiku.cli.shared_flags import TrainingFlags

_T = TypeVar("_T", bound=TrainingFlags)

# By environment and learner; how they were found is in RESULTS.md.
_ALWAYS: dict[tuple[str, str], dict[str, Any]] = {
  ("halfcheetah", "sac"): {"normalize_observations": True},
}
# Where no controller searches. Returns in `reacher` depend on the target so
# much that those of few episodes say little.
_ALONE: dict[tuple[str, str], dict[str, Any]] = {
  ("reacher", "sac"): {
    "discount": 0.95,
    "tau": 0.01,
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 3e-3,
    "temperature_learning_rate": 3e-3,
    "target_entropy": -0.5,
    "initial_temperature": 0.05,
    "activation": "swish",
    "layer_norm": True,
    "num_eval_episodes": 32,
  },
  ("reacher", "td3"): {
    "discount": 0.95,
    "tau": 0.01,
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 3e-3,
    "policy_delay": 1,
    "target_noise_scale": 0.05,
    "exploration_noise": 0.25,
    "activation": "swish",
    "num_eval_episodes": 32,
  },
}
_OF_TEMPERATURE = (
  "temperature_learning_rate", "target_entropy", "initial_temperature"
)


def apply(flags: _T, *, searched: bool) -> _T:
  """Returns flags with these values, where none were given, and says so.

  A run that is resumed has its settings already.

  Args:
    flags: of the run.
    searched: whether a controller searches hyperparameters.
  """
  import jax

  pair = (flags.env_name, flags.learner)
  settings = _ALWAYS.get(pair, {}) | ({} if searched else _ALONE.get(pair, {}))
  # Found with a temperature that is learned.
  without = () if flags.learn_temperature else _OF_TEMPERATURE
  chosen = {
    name: value
    for name, value in settings.items()
    if name not in flags.given and name not in without
  }
  if flags.resume or not chosen:
    return flags
  if jax.process_index() == 0:
    listed = ", ".join(f"{name}={value}" for name, value in chosen.items())
    print(
      f"tuned for {flags.learner} on {flags.env_name}: {listed}", flush=True
    )
  return dataclasses.replace(flags, **chosen)
