"""Settings with which a learner was found to learn an environment faster."""

from typing import Any

from absl import flags

FLAGS = flags.FLAGS

# By environment and learner; how they were found is in BUILD.md. Returns in
# `reacher` depend on the target so much that those of few episodes say little.
_TUNED: dict[tuple[str, str], dict[str, Any]] = {
  ("reacher", "sac"): {
    "discount": 0.97,
    "tau": 0.01,
    "policy_learning_rate": 3e-3,
    "critic_learning_rate": 3e-3,
    "temperature_learning_rate": 3e-3,
    "target_entropy": -0.5,
    "initial_temperature": 0.05,
    "layer_norm": True,
    "num_eval_episodes": 32,
  },
  ("reacher", "td3"): {
    "discount": 0.97,
    "tau": 0.01,
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 3e-3,
    "target_noise_scale": 0.1,
    "exploration_noise": 0.25,
    "num_eval_episodes": 32,
  },
}


def apply() -> str:
  """Gives the flags these values, where the command line doesn't.

  A run that is resumed has its settings already.

  Returns:
    What was set, as a line; empty if nothing was.
  """
  settings = _TUNED.get((FLAGS.env_name, FLAGS.learner), {})
  chosen = {
    name: value for name, value in settings.items() if not FLAGS[name].present
  }
  if FLAGS.resume or not chosen:
    return ""
  for name, value in chosen.items():
    FLAGS[name].value = value
  listed = ", ".join(f"{name}={value}" for name, value in chosen.items())
  return f"tuned for {FLAGS.learner} on {FLAGS.env_name}: {listed}"
