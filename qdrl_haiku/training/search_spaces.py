"""What a controller searches: by default, and as users say it."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from qdrl_haiku import controllers, names, types
from qdrl_haiku.controllers import lineage

# What matters most for how fast and how well SAC and TD3 learn; any learner
# that has a hyperparameter of such a name gets its range.
_DEFAULTS: dict[str, controllers.Range] = {
  "discount": controllers.OneMinusLogUniform(0.96, 0.998),
  "policy_learning_rate": controllers.LogUniform(2e-4, 2e-3),
  "critic_learning_rate": controllers.LogUniform(5e-4, 5e-3),
  "temperature_learning_rate": controllers.LogUniform(3e-4, 3e-3),
  "reward_scaling": controllers.LogUniform(0.3, 5.0),
  "target_noise_scale": controllers.Uniform(0.02, 0.2),
  "exploration_noise": controllers.Uniform(0.1, 0.5),
}


def search_space(
  hyperparams: types.Hyperparams,
  specifications: Sequence[str],
  given: Mapping[str, float],
) -> Any:
  """A range for each hyperparameter of a learner.

  Args:
    hyperparams: the learner's, a tree of the values that they have where they
      aren't searched. A name is a leaf's path in it, joined by "/".
    specifications: like "tau:log_uniform:1e-3:1e-1", see
      `controllers.search_space.parse`; of two for one name the later counts.
      If there is none, the default ranges are searched.
    given: values that the user has fixed, by name.

  Returns:
    A tree of the same structure, its leaves ranges; `Fixed` for those that
    aren't searched.

  Raises:
    ValueError: if a specification is wrong, or names no hyperparameter, or
      names one that is fixed.
  """
  named = lineage.named_leaves(hyperparams)
  said = dict(
    controllers.search_space.parse(text) for text in specifications
  )
  for name in said:
    if name not in named:
      raise ValueError(
        f"search_space names {name!r}, which is no hyperparameter of the "
        f"learner; {names.nearest(name, named)}"
      )
    if name in given:
      raise ValueError(
        f"--{name}={given[name]} fixes what --search_space searches; leave out "
        "one of the two."
      )
  searched = said or {
    name: _DEFAULTS[name]
    for name in named
    if name in _DEFAULTS and name not in given
  }
  ranges = [
    searched.get(name, controllers.Fixed(value))
    for name, value in named.items()
  ]
  return jax.tree.unflatten(jax.tree.structure(hyperparams), ranges)
