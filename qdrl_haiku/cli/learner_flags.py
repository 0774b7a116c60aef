"""The flags that choose and shape the learner, and the learner they make."""

import dataclasses
import inspect
import math
import numbers
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags

FLAGS = flags.FLAGS

_LEARNERS = ("sac", "td3", "diayn")
# Of the learners' configurations: the flags that fill them.
_LEARNER_SETTINGS = (
  "activation",
  "layer_norm",
  "policy_final_init",
  "normalize_observations",
  "learn_temperature",
  "initial_temperature",
  "policy_delay",
)


class Agent(NamedTuple):
  """What training needs of the agents that the flags ask for.

  Attributes:
    env: the environment in which they collect.
    eval_env: the one in which they are evaluated.
    learner: the learner, its hyperparameters as the flags have them.
    evaluate: see `training.Setup`.
    replay_extras: see `training.TrainingConfig`.
    fitness: see `training.TrainingConfig`.
    num_eval_episodes: how many it takes to see all that they can do; None if
      any number will do.
  """

  env: Any
  eval_env: Any
  learner: Any
  evaluate: Any = None
  replay_extras: tuple[str, ...] = ()
  fitness: str = "episode_return"
  num_eval_episodes: int | None = None


def define() -> None:
  """Defines the flags that choose and shape the learner."""
  flags.DEFINE_string(
    "learner",
    "sac",
    "sac, td3, diayn, or package.module:function, called with "
    "observation_size and action_size and returning a Learner.",
  )
  flags.DEFINE_list(
    "hidden_layer_sizes", ["256", "256"], "Widths of the hidden layers."
  )
  flags.DEFINE_list(
    "policy_hidden_layer_sizes", None, "The same for policies alone."
  )
  flags.DEFINE_list(
    "critic_hidden_layer_sizes", None, "The same for critics alone."
  )
  flags.DEFINE_string("activation", "relu", "Of the hidden layers.")
  flags.DEFINE_bool("layer_norm", False, "Normalises the hidden layers.")
  flags.DEFINE_string(
    "policy_final_init",
    "small",
    "How a policy's last layer starts: small, near 0, or fan_in, as the hidden "
    "layers.",
  )
  flags.DEFINE_bool(
    "normalize_observations", False, "Normalises by running statistics."
  )
  flags.DEFINE_bool("learn_temperature", True, "Whether SAC's is learned.")
  flags.DEFINE_float("initial_temperature", 1.0, "What SAC's begins with.")
  flags.DEFINE_integer(
    "policy_delay", 2, "TD3's critic steps per policy step."
  )
  from qdrl_haiku import learners

  for name, declared in learners.HYPERPARAMETERS.items():
    default = "" if declared.default is None else f" ({declared.default:g})"
    flags.DEFINE_float(
      name, None, f"Hyperparameter{default}: {declared.help}."
    )
  flags.DEFINE_multi_string(
    "hyperparam",
    [],
    "name=value, of a learner of your own. Repeatable, the last of a name "
    "counts.",
  )


def make_learner(env: Any) -> Any:
  """Returns a learner without skills.

  Args:
    env: the environment, for its sizes.

  Returns:
    The learner, with its own hyperparameters.

  Raises:
    ValueError: if a flag has no meaning for the learner.
  """
  from qdrl_haiku import learners, names

  sizes = (env.observation_size, env.action_size)
  if ":" in FLAGS.learner:
    refuse_given(_learner_flags(), "the learner is your own")
    function = users_function("learner", "observation_size", "action_size")
    learner = function(*sizes)
    check_users_result("learner", learner, learners.Learner)
    _check_hyperparams(learner)
    return learner
  if FLAGS.learner not in _LEARNERS:
    raise ValueError(
      f"--learner={FLAGS.learner} is unknown; "
      f"{names.nearest(FLAGS.learner, _LEARNERS)} Your own is given as "
      "'package.module:function'."
    )
  config = make_config(
    {"sac": learners.SACConfig, "td3": learners.TD3Config}[FLAGS.learner]
  )
  return getattr(learners, FLAGS.learner)(*sizes, config)


def users_function(flag: str, *arguments: str) -> Any:
  """Returns the function of a user's own that a flag names.

  Args:
    flag: its name.
    *arguments: what the function is called with.

  Returns:
    The function.

  Raises:
    ValueError: if there is none, or if it can't be called so.
  """
  from qdrl_haiku import names

  path = getattr(FLAGS, flag)
  function = names.load_function(path)
  try:
    inspect.signature(function).bind(*arguments)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"--{flag}={path} can't be called with {' and '.join(arguments)} "
      f"({error}); give a function of that."
    ) from error
  return function


def check_users_result(flag: str, result: Any, kind: type) -> None:
  """Refuses what a user's own function returned if it's something else.

  Args:
    flag: that names the function.
    result: what it returned.
    kind: what it should be.

  Raises:
    ValueError: if it isn't.
  """
  if not isinstance(result, kind):
    module = ".".join(kind.__module__.split(".")[:2])
    raise ValueError(
      f"--{flag}={getattr(FLAGS, flag)} returned a {type(result).__name__}; "
      f"return a {module}.{kind.__name__}."
    )


def make_config(config_class: Any, **settings: Any) -> Any:
  """Returns a learner's configuration.

  Args:
    config_class: of the learner.
    **settings: what isn't the value of the flag of the same name.

  Returns:
    The configuration.

  Raises:
    ValueError: if a flag was given that it has no setting for.
  """
  known = inspect.signature(config_class).parameters
  refuse_given(
    [name for name in _LEARNER_SETTINGS if name not in known],
    f"{FLAGS.learner} has no such setting",
  )
  if all(getattr(FLAGS, name) is not None for name in _sizes_apart()):
    refuse_given(
      ["hidden_layer_sizes"],
      f"{' and '.join(f'--{name}' for name in _sizes_apart())} are given",
      "critic_hidden_layer_sizes",
    )
  values = {
    name: getattr(FLAGS, name) for name in _LEARNER_SETTINGS if name in known
  }
  return config_class(
    policy_hidden_layer_sizes=layer_sizes("policy_hidden_layer_sizes"),
    critic_hidden_layer_sizes=layer_sizes("critic_hidden_layer_sizes"),
    **(values | settings),
  )


def with_given_hyperparams(learner: Any) -> Any:
  """Returns the learner with the hyperparameters that were given as flags.

  Args:
    learner: the learner.

  Raises:
    ValueError: if it has no such hyperparameter, or a value makes no sense.
  """
  import jax

  from qdrl_haiku import learners, names, training
  from qdrl_haiku.controllers import lineage

  given = given_hyperparams()
  named = lineage.named_leaves(learner.hyperparams)
  unknown = [name for name in given if name not in named]
  refuse_given(
    [name for name in unknown if name in learners.HYPERPARAMETERS],
    f"the learner's hyperparameters are {', '.join(named)}",
  )
  for name in unknown:
    raise ValueError(
      f"--hyperparam={name}={given[name]:g} is no hyperparameter of the "
      f"learner; {names.nearest(name, named)}"
    )
  for name, value in given.items():
    flag = training.flag_of(name)
    _check_hyperparam(learner, name, value, f"{flag}={value}")
  leaves = [given.get(name, value) for name, value in named.items()]
  structure = jax.tree.structure(learner.hyperparams)
  return learner._replace(hyperparams=jax.tree.unflatten(structure, leaves))


def learner_name() -> str:
  """Returns the learner's name, fit for the name of a directory."""
  return FLAGS.learner.replace(":", "-")


def hyperparam_flags() -> list[str]:
  """Returns the flags that give hyperparameters."""
  from qdrl_haiku import learners

  return [*learners.HYPERPARAMETERS, "hyperparam"]


def given_hyperparams() -> dict[str, float]:
  """Returns the hyperparameters that were given, by flags of their own or not.

  Raises:
    ValueError: if a `--hyperparam` isn't of its form, or names one that has a
      flag of its own.
  """
  from qdrl_haiku import learners

  given = {
    name: getattr(FLAGS, name)
    for name in learners.HYPERPARAMETERS
    if getattr(FLAGS, name) is not None
  }
  for text in FLAGS.hyperparam:
    name, _, value = text.partition("=")
    if name in learners.HYPERPARAMETERS:
      raise ValueError(
        f"--hyperparam={text} is for what has no flag of its own; give "
        f"--{name}={value}."
      )
    try:
      given[name] = float(value)
    except ValueError:
      raise ValueError(
        f"--hyperparam={text} is not of the form name=value; give it like "
        "speed=0.01."
      ) from None
  return given


def check_search_space(learner: Any, search_space: Any) -> None:
  """Checks the bounds of ranges.

  Args:
    learner: whose hyperparameters are searched.
    search_space: a tree whose leaves are ranges.

  Raises:
    ValueError: if a hyperparameter could get a value that makes no sense.
  """
  from qdrl_haiku.controllers import lineage

  for name, values in lineage.named_leaves(search_space).items():
    for value in dataclasses.astuple(values):
      _check_hyperparam(
        learner, name, value, f"--search_space: {name}={value}"
      )


def check_choice(flag: str, choices: Iterable[str]) -> None:
  """Checks that a flag, if it has a value, is one of several words.

  Args:
    flag: its name.
    choices: the words.

  Raises:
    ValueError: if it is another word.
  """
  from qdrl_haiku import names

  value = getattr(FLAGS, flag)
  if value is not None and value not in choices:
    raise ValueError(
      f"--{flag}={value} is unknown; {names.nearest(value, choices)}"
    )


def layer_sizes(name: str) -> tuple[int, ...]:
  """Returns the widths of layers.

  Args:
    name: of the flag; where it isn't given, `hidden_layer_sizes` counts.

  Returns:
    The widths.

  Raises:
    ValueError: if the flag is no list of widths.
  """
  text = getattr(FLAGS, name)
  if text is None:
    name, text = "hidden_layer_sizes", FLAGS.hidden_layer_sizes
  if not all(size.isdecimal() and int(size) > 0 for size in text):
    raise ValueError(
      f"--{name}={','.join(text)} is no list of widths; give it like 256,256."
    )
  return tuple(int(size) for size in text)


def _check_hyperparams(learner: Any) -> None:
  """Refuses hyperparameters of a user's learner that are no tree of numbers."""
  from qdrl_haiku.controllers import lineage

  named = lineage.named_leaves(learner.hyperparams)
  if not named:
    raise ValueError(
      f"--learner={FLAGS.learner} has no hyperparameters; give it one, such as "
      "{'discount': 0.99}, though it needn't heed it."
    )
  for name, value in named.items():
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
      raise ValueError(
        f"--learner={FLAGS.learner} has the hyperparameter {name}={value!r}; "
        "give a Python float."
      )


def _check_hyperparam(
  learner: Any, name: str, value: float, where: str
) -> None:
  """Refuses a value that makes no sense, of a hyperparameter that is known."""
  from qdrl_haiku import training

  known = training.declaration(name, learner.declared)
  if known is None:
    return
  low, high = known.low, known.high
  with np.errstate(over="ignore"):
    is_finite = np.isfinite(np.float32(value))
  if not (is_finite and low <= value <= high):
    bounds = f" from {low:g}" if low > -math.inf else ""
    bounds += f" to {high:g}" if high < math.inf else " on" if bounds else ""
    raise ValueError(
      f"{where} makes no sense; give a finite number{bounds}."
    )


def _sizes_apart() -> list[str]:
  """Returns the flags that take the place of `hidden_layer_sizes`."""
  networks = ["policy", "critic"]
  if FLAGS.learner == "diayn":
    networks.append("discriminator")
  return [f"{network}_hidden_layer_sizes" for network in networks]


def _is_typed(name: str) -> bool:
  """Returns whether a flag is on the command line itself, not in a file."""
  pattern = re.compile(rf"--?(no)?{name}(=.*)?", re.DOTALL)
  return any(pattern.fullmatch(argument) for argument in sys.argv[1:])


def _learner_flags() -> list[str]:
  return [
    "hidden_layer_sizes",
    "policy_hidden_layer_sizes",
    "critic_hidden_layer_sizes",
    *_LEARNER_SETTINGS,
  ]


def refuse_given(
  names: Sequence[str], why: str, choice: str | None = None
) -> None:
  """Refuses flags that were given and would have no effect.

  Args:
    names: of the flags.
    why: they have no effect.
    choice: the flag that takes their effect. Where it is on the command line
      itself, what a flagfile says for another choice is overridden, as the
      choice is, and not refused.

  Raises:
    ValueError: if one of them was given.
  """
  may_be_overridden = choice is not None and _is_typed(choice)
  for name in names:
    if FLAGS[name].present and not (may_be_overridden and not _is_typed(name)):
      raise ValueError(
        f"--{name}={FLAGS[name].value} has no effect: {why}; leave it out."
      )
