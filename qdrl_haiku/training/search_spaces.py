"""What a controller searches: by default, and as users say it."""

from collections.abc import Mapping, Sequence

from qdrl_haiku import controllers, names

SearchSpace = dict[str, controllers.Range]

# What matters most for how fast and how well SAC and TD3 learn; any learner
# that has a hyperparameter of such a name gets its range.
_DEFAULTS: SearchSpace = {
  "discount": controllers.OneMinusLogUniform(0.96, 0.998),
  "policy_learning_rate": controllers.LogUniform(2e-4, 2e-3),
  "critic_learning_rate": controllers.LogUniform(5e-4, 5e-3),
  "temperature_learning_rate": controllers.LogUniform(3e-4, 3e-3),
  "reward_scaling": controllers.LogUniform(0.3, 5.0),
  "target_noise_scale": controllers.Uniform(0.02, 0.2),
  "exploration_noise": controllers.Uniform(0.1, 0.5),
}


def search_space(
  hyperparams: Mapping[str, float],
  specifications: Sequence[str],
  given: Mapping[str, float],
) -> SearchSpace:
  """A range for each hyperparameter of a learner.

  Args:
    hyperparams: the learner's, by name, with their values where they aren't
      searched.
    specifications: like "tau:log_uniform:1e-3:1e-1", see
      `controllers.search_space.parse`; of two for one name the later counts.
      If there is none, the default ranges are searched.
    given: values that the user has fixed.

  Returns:
    A range by name; `Fixed` for those that aren't searched.

  Raises:
    ValueError: if a specification is wrong, or names no hyperparameter, or
      names one that is fixed.
  """
  said = dict(
    controllers.search_space.parse(text) for text in specifications
  )
  for name in said:
    if name not in hyperparams:
      raise ValueError(
        f"search_space names {name!r}, which is no hyperparameter of the "
        f"learner; {names.nearest(name, hyperparams)}"
      )
    if name in given:
      raise ValueError(
        f"--{name}={given[name]} fixes what --search_space searches; leave out "
        "one of the two."
      )
  searched = said or {
    name: _DEFAULTS[name]
    for name in hyperparams
    if name in _DEFAULTS and name not in given
  }
  return {
    name: searched.get(name, controllers.Fixed(value))
    for name, value in hyperparams.items()
  }
