"""The flags that launchers share, and what is made of them."""

import dataclasses
import datetime
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags, logging

FLAGS = flags.FLAGS

_LEARNERS = ("sac", "td3")
# Of the learners' configurations: the flags that fill them.
_LEARNER_SETTINGS = (
  "activation",
  "layer_norm",
  "normalize_observations",
  "learn_temperature",
  "initial_temperature",
  "policy_delay",
)
_HYPERPARAMETERS = {
  "discount": "discount factor per step",
  "tau": "rate at which target networks follow",
  "policy_learning_rate": "Adam's learning rate for the policy",
  "critic_learning_rate": "Adam's learning rate for the critics",
  "temperature_learning_rate": "Adam's learning rate for SAC's temperature",
  "target_entropy": "SAC's target entropy, in nats",
  "reward_scaling": "what rewards are multiplied by",
  "target_noise_scale": "TD3's noise on target actions",
  "target_noise_clip": "bound of TD3's noise on target actions",
  "exploration_noise": "TD3's noise on actions while collecting",
}
# The values that make sense, where those aren't all from 0 on.
_BOUNDS = {
  "discount": (0.0, 1.0),
  "tau": (0.0, 1.0),
  "target_entropy": (-math.inf, math.inf),
}


def define() -> None:
  """Defines the flags that every training launcher has."""
  flags.DEFINE_string(
    "learner",
    "sac",
    "sac, td3, or package.module:function, called with observation_size and "
    "action_size and returning a Learner.",
  )
  flags.DEFINE_string(
    "env_name",
    "inverted_pendulum",
    "A brax environment, point_maze, or package.module:function, returning "
    "an object with brax's reset and step.",
  )
  flags.DEFINE_string(
    "backend", None, "brax's physics: generalized, spring, positional or mjx."
  )
  flags.DEFINE_integer(
    "episode_length", None, "Steps after which an episode is truncated."
  )
  flags.DEFINE_integer("action_repeat", 1, "How often an action is applied.")
  flags.DEFINE_integer("seed", 0, "Seed of all random numbers.")
  flags.DEFINE_integer(
    "num_timesteps", 100_000, "Environment steps per agent in all."
  )
  flags.DEFINE_integer("num_envs", 8, "Environments per agent.")
  flags.DEFINE_integer("num_eval_episodes", 8, "Episodes per evaluation.")
  flags.DEFINE_integer("batch_size", 256, "Transitions per critic step.")
  flags.DEFINE_float(
    "grad_updates_per_step",
    1.0,
    "Critic steps per environment step; may be a fraction.",
  )
  flags.DEFINE_integer(
    "replay_capacity", 100_000, "Transitions in each agent's replay buffer."
  )
  flags.DEFINE_integer(
    "min_replay_size", 1000, "Transitions before learning starts."
  )
  flags.DEFINE_bool(
    "random_warm_up",
    True,
    "Whether actions are drawn uniformly until learning starts.",
  )
  _define_learner_flags()
  flags.DEFINE_string(
    "logdir",
    None,
    "Where the run is written; by default a new directory in logs/.",
  )
  flags.DEFINE_string("suffix", None, "Appended to the default logdir.")
  flags.DEFINE_bool("resume", False, "Goes on with the run in --logdir.")
  flags.DEFINE_string(
    "warm_start", None, "Directory of a run whose agents to begin with."
  )
  flags.DEFINE_bool("use_tensorboard", True, "Writes TensorBoard events.")
  flags.DEFINE_integer(
    "checkpoint_interval", 1, "Generations from one checkpoint to the next."
  )
  flags.DEFINE_integer("max_checkpoints", 2, "How many checkpoints are kept.")


def _define_learner_flags() -> None:
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
  flags.DEFINE_bool(
    "normalize_observations", False, "Normalises by running statistics."
  )
  flags.DEFINE_bool("learn_temperature", True, "Whether SAC's is learned.")
  flags.DEFINE_float("initial_temperature", 1.0, "What SAC's begins with.")
  flags.DEFINE_integer(
    "policy_delay", 2, "TD3's critic steps per policy step."
  )
  for name, description in _HYPERPARAMETERS.items():
    flags.DEFINE_float(
      name, None, f"Hyperparameter, the learner's own by default: {description}"
    )


def run_main(
  main: Callable[[], None], flag_names: Mapping[str, str] | None = None
) -> None:
  """Parses flags, calls `main`, and turns a user's mistake into one line.

  Args:
    main: of a launcher.
    flag_names: what the launcher's flags call settings that have another name
      in the package, for messages.
  """

  def guarded(argv: Sequence[str]) -> None:
    # orbax reports every file that it writes.
    logging.set_verbosity(logging.WARNING)
    try:
      if len(argv) > 1:
        raise ValueError(
          f"unexpected argument {argv[1]!r}; flags begin with --."
        )
      main()
    except ValueError as error:
      if FLAGS.debug:
        raise
      message = str(error)
      for name, flag in (flag_names or {}).items():
        message = message.replace(name, flag)
      print(f"error: {message}", file=sys.stderr)
      sys.exit(2)

  flags.DEFINE_bool("debug", False, "Shows where an error comes from.")
  app.run(guarded)


def use_all_cores() -> None:
  """Makes one device of each core, unless the environment says how many.

  Physics gains from it what it can't gain from threads. To be called before
  jax looks for devices.
  """
  import jax

  if "JAX_NUM_CPU_DEVICES" not in os.environ:
    jax.config.update("jax_num_cpu_devices", os.cpu_count())


def make_environment() -> Any:
  """Returns the environment that the flags ask for."""
  from qdrl_haiku import environments

  return environments.create(
    FLAGS.env_name,
    backend=FLAGS.backend or None,
    episode_length=FLAGS.episode_length,
    action_repeat=FLAGS.action_repeat,
  )


def make_learner(env: Any) -> Any:
  """Returns the learner that the flags ask for.

  Args:
    env: the environment, for its sizes.

  Returns:
    The learner, its hyperparameters as the flags have them.

  Raises:
    ValueError: if a flag has no meaning for the learner.
  """
  from qdrl_haiku import learners, names

  sizes = (env.observation_size, env.action_size)
  if ":" in FLAGS.learner:
    _refuse_given(_learner_flags(), "the learner is your own")
    learner = names.load_function(FLAGS.learner)(*sizes)
    if not isinstance(learner, learners.Learner):
      raise ValueError(
        f"--learner={FLAGS.learner} returned a {type(learner).__name__}; "
        "return a qdrl_haiku.learners.Learner."
      )
  elif FLAGS.learner not in _LEARNERS:
    raise ValueError(
      f"--learner={FLAGS.learner} is unknown; "
      f"{names.nearest(FLAGS.learner, _LEARNERS)} Your own is given as "
      "'package.module:function'."
    )
  else:
    config_class = {"sac": learners.SACConfig, "td3": learners.TD3Config}[
      FLAGS.learner
    ]
    known = inspect.signature(config_class).parameters
    _refuse_given(
      [name for name in _LEARNER_SETTINGS if name not in known],
      f"{FLAGS.learner} has no such setting",
    )
    config = config_class(
      policy_hidden_layer_sizes=_layer_sizes("policy_hidden_layer_sizes"),
      critic_hidden_layer_sizes=_layer_sizes("critic_hidden_layer_sizes"),
      **{
        name: getattr(FLAGS, name)
        for name in _LEARNER_SETTINGS
        if name in known
      },
    )
    learner = getattr(learners, FLAGS.learner)(*sizes, config)
  given = given_hyperparams()
  _refuse_given(
    [name for name in given if name not in learner.hyperparams],
    f"the learner's hyperparameters are {', '.join(learner.hyperparams)}",
  )
  for name, value in given.items():
    _check_hyperparam(name, value, f"--{name}={value}")
  return learner._replace(hyperparams=learner.hyperparams | given)


def learner_name() -> str:
  """Returns the learner's name, fit for the name of a directory."""
  return FLAGS.learner.replace(":", "-")


def interval(flag: str, learner: Any) -> int:
  """Decides how many environment steps a generation takes.

  Args:
    flag: the name of the flag that says so; it's set where it wasn't given.
    learner: the learner.

  Returns:
    The flag's value; else that of the run which is resumed; else what cuts
    the run into about twenty generations.

  Raises:
    ValueError: if there is no such number near by.
  """
  from qdrl_haiku import training
  from qdrl_haiku.training import logs

  if FLAGS[flag].value is None and FLAGS.resume and FLAGS.logdir:
    # The default depends on --num_timesteps, which may be another now.
    FLAGS[flag].value = logs.RunDirectory(FLAGS.logdir).settings().get(flag)
  if FLAGS[flag].value is None:
    FLAGS[flag].value = training.default_interval(
      FLAGS.num_timesteps,
      num_envs=FLAGS.num_envs,
      grad_updates_per_step=FLAGS.grad_updates_per_step,
      batches_per_update=learner.batches_per_update,
    )
  return FLAGS[flag].value


def given_hyperparams() -> dict[str, float]:
  """Returns the hyperparameters that were given as flags."""
  return {
    name: getattr(FLAGS, name)
    for name in _HYPERPARAMETERS
    if getattr(FLAGS, name) is not None
  }


def check_search_space(search_space: Mapping[str, Any]) -> None:
  """Checks the bounds of ranges.

  Args:
    search_space: ranges by name.

  Raises:
    ValueError: if a hyperparameter could get a value that makes no sense.
  """
  for name, values in search_space.items():
    for value in dataclasses.astuple(values):
      _check_hyperparam(name, value, f"--search_space: {name}={value}")


def make_training_config(**settings: Any) -> Any:
  """Returns the configuration of training.

  Args:
    **settings: what isn't the value of the flag of the same name.

  Returns:
    A `training.TrainingConfig`.
  """
  from qdrl_haiku import training

  shared = (
    "num_envs",
    "batch_size",
    "grad_updates_per_step",
    "replay_capacity",
    "min_replay_size",
    "random_warm_up",
    "num_eval_episodes",
  )
  return training.TrainingConfig(
    **{name: getattr(FLAGS, name) for name in shared}, **settings
  )


def run_training(setup: Any, algorithm: str, seeds: Sequence[int]) -> None:
  """Trains, and says where the result is.

  Args:
    setup: what the population is composed of.
    algorithm: for the name of the directory.
    seeds: one, or one per member.

  Raises:
    ValueError: if a setting is not valid.
  """
  from qdrl_haiku import training

  if FLAGS.resume and not FLAGS.logdir:
    raise ValueError("--resume needs --logdir: which run is to go on?")
  logdir = FLAGS.logdir or _default_logdir(algorithm)
  names = [flag.name for flag in _own_flags()]
  config = training.RunConfig(
    logdir=logdir,
    seeds=tuple(seeds),
    num_timesteps=FLAGS.num_timesteps,
    resume=FLAGS.resume,
    warm_start=FLAGS.warm_start,
    use_tensorboard=FLAGS.use_tensorboard,
    checkpoint_interval=FLAGS.checkpoint_interval,
    max_checkpoints=FLAGS.max_checkpoints,
  )
  print(f"writing to {logdir}", flush=True)
  training.run(setup, config, {name: getattr(FLAGS, name) for name in names})
  print(f"done: {logdir}")


def _own_flags() -> list[Any]:
  """The flags that the launchers define, without absl's own."""
  by_module = FLAGS.flags_by_module_dict()
  own = [sys.argv[0], __name__, __file__]
  return [
    flag
    for module, module_flags in by_module.items()
    if module in own
    for flag in module_flags
    if flag.name not in ("debug",)
  ]


def _default_logdir(algorithm: str) -> str:
  env_name = FLAGS.env_name.replace(":", "-")
  time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
  suffix = f"-{FLAGS.suffix}" if FLAGS.suffix else ""
  return os.path.join("logs", f"{env_name}-{algorithm}-{time}{suffix}")


def _layer_sizes(name: str) -> tuple[int, ...]:
  text = getattr(FLAGS, name)
  if text is None:
    name, text = "hidden_layer_sizes", FLAGS.hidden_layer_sizes
  if not all(size.isdecimal() and int(size) > 0 for size in text):
    raise ValueError(
      f"--{name}={','.join(text)} is no list of widths; give it like 256,256."
    )
  return tuple(int(size) for size in text)


def _check_hyperparam(name: str, value: float, where: str) -> None:
  """Refuses a value that makes no sense, of a hyperparameter that we know."""
  if name not in _HYPERPARAMETERS:
    return
  low, high = _BOUNDS.get(name, (0.0, math.inf))
  if not (math.isfinite(value) and low <= value <= high):
    raise ValueError(
      f"{where} makes no sense; give a finite number from {low:g} to {high:g}."
    )


def _learner_flags() -> list[str]:
  return [
    "hidden_layer_sizes",
    "policy_hidden_layer_sizes",
    "critic_hidden_layer_sizes",
    *_LEARNER_SETTINGS,
  ]


def _refuse_given(names: Sequence[str], why: str) -> None:
  """Refuses flags that were given and would have no effect."""
  for name in names:
    if FLAGS[name].present:
      raise ValueError(
        f"--{name}={FLAGS[name].value} has no effect: {why}; leave it out."
      )
