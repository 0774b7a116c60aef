"""The flags that choose and shape the learner, and the learner they make."""

import dataclasses
import inspect
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

from qdrl_haiku import checks, learners
from qdrl_haiku.cli.flags import Flags, flag

_LEARNERS = ("sac", "td3", "crossq", "xqc", "diayn")
# Of the learners' configurations: the flags that fill them.
_LEARNER_SETTINGS = (
  "activation",
  "layer_norm",
  "critic_layer_norm",
  "residual",
  "critic_residual",
  "policy_final_init",
  "normalize_observations",
  "learn_temperature",
  "initial_temperature",
  "policy_delay",
  "own_critics",
  "num_atoms",
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


def _help(declared: learners.Hyperparameter) -> str:
  """Returns what `--help` says of a hyperparameter."""
  default = "" if declared.default is None else f" ({declared.default:g})"
  return f"Hyperparameter{default}: {declared.help}."


if TYPE_CHECKING:

  class _HyperparamFlags(Flags):
    """Has a flag for each declared hyperparameter of the learners."""

else:
  _HyperparamFlags = dataclasses.make_dataclass(
    "_HyperparamFlags",
    [
      (name, float | None, flag(None, _help(declared)))
      for name, declared in learners.HYPERPARAMETERS.items()
    ],
    bases=(Flags,),
    frozen=True,
    kw_only=True,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerFlags(_HyperparamFlags):
  """Choose and shape the learner."""

  learner: str = flag(
    "sac",
    "sac, td3, crossq, xqc, diayn, or package.module:function, called with "
    "observation_size and action_size and returning a Learner.",
  )
  hidden_layer_sizes: tuple[str, ...] = flag(
    ("256", "256"), "Widths of the hidden layers."
  )
  policy_hidden_layer_sizes: tuple[str, ...] | None = flag(
    None, "The same for policies alone."
  )
  critic_hidden_layer_sizes: tuple[str, ...] | None = flag(
    None, "The same for critics alone."
  )
  activation: str = flag("relu", "Of the hidden layers.")
  layer_norm: bool = flag(False, "Normalises the hidden layers.")
  critic_layer_norm: bool | None = flag(
    None, "The same for sac's and td3's critics alone."
  )
  residual: bool = flag(
    False,
    "Makes sac's and td3's hidden layers residual blocks (SimBa) of one width.",
  )
  critic_residual: bool | None = flag(None, "The same for critics alone.")
  policy_final_init: str = flag(
    "small",
    "How a policy's last layer starts: small, near 0, or fan_in, as the hidden "
    "layers.",
  )
  normalize_observations: bool = flag(
    True, "Normalises observations by the agent's own running statistics."
  )
  learn_temperature: bool = flag(True, "Whether SAC's is learned.")
  initial_temperature: float = flag(0.3, "What SAC's begins with.")
  policy_delay: int = flag(
    2, "Critic steps per policy step, of td3, crossq and xqc."
  )
  own_critics: bool = flag(
    True,
    "Whether a TD3 agent has critics; those of a repertoire whose emitters "
    "(ga, pga, dcrl) train none need none, and have none with pga or dcrl.",
  )
  num_atoms: int = flag(51, "Of the values of xqc's critics.")
  hyperparam: tuple[str, ...] = flag(
    (),
    "name=value, of a learner of your own. Repeatable, the last of a name "
    "counts.",
    repeatable=True,
  )


def make_learner(flags: LearnerFlags, env: Any) -> Any:
  """Returns a learner without skills.

  Args:
    flags: that shape it.
    env: the environment, for its sizes.

  Returns:
    The learner, with its own hyperparameters.

  Raises:
    ValueError: if a flag has no meaning for the learner.
  """
  from qdrl_haiku import names

  sizes = (env.observation_size, env.action_size)
  if ":" in flags.learner:
    flags.refuse_given(_learner_flags(), "the learner is your own")
    sizes_ = ("observation_size", "action_size")
    learner = flags.users_function("learner", *sizes_)(*sizes)
    flags.check_users_result("learner", learner, learners.Learner)
    _check_hyperparams(flags, learner)
    return learner
  if flags.learner not in _LEARNERS:
    raise ValueError(
      f"--learner={flags.learner} is unknown; "
      f"{names.nearest(flags.learner, _LEARNERS)} Your own is given as "
      "'package.module:function'."
    )
  config_class = {
    "sac": learners.SACConfig,
    "td3": learners.TD3Config,
    "crossq": learners.CrossQConfig,
    "xqc": learners.XQCConfig,
  }[flags.learner]
  config = make_config(flags, config_class)
  return getattr(learners, flags.learner)(*sizes, config)


def make_config(
  flags: LearnerFlags, config_class: Any, **settings: Any
) -> Any:
  """Returns a learner's configuration.

  Args:
    flags: that say what it is.
    config_class: of the learner.
    **settings: what isn't the value of the flag of the same name.

  Returns:
    The configuration.

  Raises:
    ValueError: if a flag was given that it has no setting for.
  """
  known = inspect.signature(config_class).parameters
  flags.refuse_given(
    [name for name in _LEARNER_SETTINGS if name not in known],
    f"{flags.learner} has no such setting",
  )
  if all(getattr(flags, name) is not None for name in _sizes_apart(flags)):
    flags.refuse_given(
      ["hidden_layer_sizes"],
      f"{' and '.join(f'--{name}' for name in _sizes_apart(flags))} are given",
      "critic_hidden_layer_sizes",
    )
  values = {
    name: getattr(flags, name)
    for name in _LEARNER_SETTINGS
    # What is left open is the learner's own default.
    if name in known and getattr(flags, name) is not None
  }
  return config_class(
    policy_hidden_layer_sizes=layer_sizes(flags, "policy_hidden_layer_sizes"),
    critic_hidden_layer_sizes=layer_sizes(flags, "critic_hidden_layer_sizes"),
    **(values | settings),
  )


def with_given_hyperparams(flags: LearnerFlags, learner: Any) -> Any:
  """Returns the learner with the hyperparameters that were given as flags.

  Args:
    flags: that give them.
    learner: the learner.

  Raises:
    ValueError: if it has no such hyperparameter, or a value makes no sense.
  """
  import jax

  from qdrl_haiku import names, training
  from qdrl_haiku.controllers import lineage

  given = given_hyperparams(flags)
  named = lineage.named_leaves(learner.hyperparams)
  unknown = [name for name in given if name not in named]
  flags.refuse_given(
    [name for name in unknown if name in learners.HYPERPARAMETERS],
    f"the learner's hyperparameters are {', '.join(named)}",
  )
  for name in unknown:
    raise ValueError(
      f"--hyperparam={name}={given[name]:g} is no hyperparameter of the "
      f"learner; {names.nearest(name, named)}"
    )
  for name, value in given.items():
    where = f"{training.flag_of(name)}={value}"
    _check_hyperparam(learner, name, value, where)
  leaves = [given.get(name, value) for name, value in named.items()]
  structure = jax.tree.structure(learner.hyperparams)
  return learner._replace(hyperparams=jax.tree.unflatten(structure, leaves))


def learner_name(flags: LearnerFlags) -> str:
  """Returns the learner's name, fit for the name of a directory.

  Args:
    flags: that name it.
  """
  return flags.learner.replace(":", "-")


def hyperparam_flags() -> list[str]:
  """Returns the flags that give hyperparameters."""
  return [*learners.HYPERPARAMETERS, "hyperparam"]


def given_hyperparams(flags: LearnerFlags) -> dict[str, float]:
  """Returns the hyperparameters that were given, by flags of their own or not.

  Args:
    flags: that give them.

  Raises:
    ValueError: if a `--hyperparam` isn't of its form, or names one that has a
      flag of its own.
  """
  given = {
    name: getattr(flags, name)
    for name in learners.HYPERPARAMETERS
    if getattr(flags, name) is not None
  }
  for text in flags.hyperparam:
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
  from qdrl_haiku import controllers

  for name, values in controllers.lineage.named_leaves(search_space).items():
    is_choice = isinstance(values, controllers.Choice)
    for value in values.values if is_choice else dataclasses.astuple(values):
      _check_hyperparam(
        learner, name, value, f"--search_space: {name}={value}"
      )


def layer_sizes(flags: LearnerFlags, name: str) -> tuple[int, ...]:
  """Returns the widths of layers.

  Args:
    flags: that give them.
    name: of the flag; where it isn't given, `hidden_layer_sizes` counts.

  Returns:
    The widths.

  Raises:
    ValueError: if the flag is no list of widths.
  """
  text = getattr(flags, name)
  if text is None:
    name, text = "hidden_layer_sizes", flags.hidden_layer_sizes
  if not all(
    size.isdecimal() and 0 < int(size) <= checks.LARGEST for size in text
  ):
    raise ValueError(
      f"--{name}={','.join(text)} is no list of widths; give it like 256,256."
    )
  return tuple(int(size) for size in text)


def _check_hyperparams(flags: LearnerFlags, learner: Any) -> None:
  """Refuses hyperparameters of a user's learner that are no tree of numbers."""
  from qdrl_haiku.controllers import lineage

  named = lineage.named_leaves(learner.hyperparams)
  if not named:
    raise ValueError(
      f"--learner={flags.learner} has no hyperparameters; give it one, such as "
      "{'discount': 0.99}, though it needn't heed it."
    )
  for name, value in named.items():
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
      raise ValueError(
        f"--learner={flags.learner} has the hyperparameter {name}={value!r}; "
        "give a Python float."
      )


def _check_hyperparam(
  learner: Any, name: str, value: float, where: str
) -> None:
  """Refuses a value that makes no sense, of a hyperparameter that is known."""
  from qdrl_haiku import training

  known = training.declaration(name, learner.declared)
  if known is not None:
    known.check(where, value)


def _sizes_apart(flags: LearnerFlags) -> list[str]:
  """Returns the flags that take the place of `hidden_layer_sizes`."""
  networks = ["policy", "critic"]
  if flags.learner == "diayn":
    networks.append("discriminator")
  return [f"{network}_hidden_layer_sizes" for network in networks]


def _learner_flags() -> list[str]:
  return [
    "hidden_layer_sizes",
    "policy_hidden_layer_sizes",
    "critic_hidden_layer_sizes",
    *_LEARNER_SETTINGS,
  ]
