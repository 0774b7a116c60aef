"""The flags that say which agent is looked at, and how."""

import os
from typing import Any

from absl import flags

from qdrl_haiku.cli import devices, learner_flags

FLAGS = flags.FLAGS

# Beyond that, resampling them takes minutes.
_MAX_EPISODES = 100_000
_FORMATS = ("gif", "html", "mp4", "png")
_OF_TRAINING = (
  "batch_size", "checkpoint_interval", "checkpoint_replay", "dry_run",
  "exact_placement", "grad_updates_per_step", "max_checkpoints",
  "min_replay_size", "num_envs", "num_timesteps", "on_divergence",
  "random_warm_up", "replay_capacity", "resume", "suffix", "use_tensorboard",
  "warm_start",
)  # fmt: skip
# Each of them chooses one agent.
_AGENTS = ("best", "cell", "descriptor", "member")


def define() -> None:
  """Defines the flags."""
  flags.DEFINE_bool(
    "best", None, "The best agent that the run ever evaluated: the default."
  )
  flags.DEFINE_integer("member", None, "Which agent of the latest checkpoint.")
  flags.DEFINE_integer("cell", None, "Which cell of the latest repertoire.")
  flags.DEFINE_list(
    "descriptor",
    None,
    "Of the latest repertoire the occupied cell nearest to it, like 0.2,0.8.",
  )
  flags.DEFINE_list(
    "skill",
    None,
    "Of DIAYN: an index, like 3, or numbers, like 0.6,0.8; by default all.",
  )
  flags.DEFINE_string(
    "export", None, "A new file, .npz, to which the policy is written."
  )
  flags.DEFINE_string(
    "render",
    None,
    "Draws the first episode: png, gif, mp4 (with ffmpeg), or html (brax's "
    "viewer, of its robots).",
  )
  flags.DEFINE_string(
    "render_to", None, "The new file; by default in the current directory."
  )


def check() -> str:
  """Checks what can be checked without the run.

  `render_to` is set where it isn't given.

  Returns:
    The name of the flag that chooses the agent.

  Raises:
    ValueError: if a flag makes no sense.
  """
  if not FLAGS.logdir:
    raise ValueError("--logdir is missing: which run is to be evaluated?")
  learner_flags.refuse_given(
    [
      *devices.PROCESS_FLAGS,
      *_OF_TRAINING,
      *learner_flags.hyperparam_flags(),
    ],
    "a look at a run trains nothing",
  )
  if not 0 <= FLAGS.seed < 2**32:
    raise ValueError(
      f"--seed={FLAGS.seed} must be at least 0 and below 2**32."
    )
  num_episodes = FLAGS.num_eval_episodes
  if num_episodes is not None and not 1 <= num_episodes <= _MAX_EPISODES:
    raise ValueError(
      f"--num_eval_episodes={num_episodes} must be at least 1 and at most "
      f"{_MAX_EPISODES}; leave it out for the default."
    )
  choice = _choice()
  if choice == "descriptor":
    numbers(choice)
  if FLAGS.export:
    _check_new_file("export")
  learner_flags.check_choice("render", _FORMATS)
  if FLAGS.render is None:
    learner_flags.refuse_given(
      ["render_to"], "without --render nothing is drawn"
    )
  else:
    _check_render_to(choice)
  return choice


def numbers(name: str) -> list[float]:
  """Returns the numbers that a flag lists.

  Args:
    name: of the flag.

  Raises:
    ValueError: if it lists something else.
  """
  try:
    return [float(text) for text in FLAGS[name].value or ()]
  except ValueError:
    raise ValueError(
      f"--{name}={text_of(name)} is no list of numbers; give it like 0.2,0.8."
    ) from None


def text_of(name: str) -> str:
  """Returns the value of a flag as it was given.

  Args:
    name: of the flag.
  """
  value: Any = FLAGS[name].value
  return ",".join(value) if isinstance(value, list) else str(value)


def _choice() -> str:
  """Returns which flag chooses the agent."""
  given = [name for name in _AGENTS if FLAGS[name].value is not None]
  if len(given) > 1:
    raise ValueError(
      f"{' and '.join(f'--{name}' for name in given)} choose one agent each; "
      "give one of them."
    )
  if FLAGS.best is False:
    raise ValueError("--nobest chooses no agent; give --member or --cell.")
  return given[0] if given else "best"


def _check_render_to(choice: str) -> None:
  """Names the file to draw to, where it isn't named, and checks the name."""
  if FLAGS.render_to is None:
    parts = [os.path.basename(os.path.abspath(FLAGS.logdir)), choice]
    if choice != "best":
      parts.append(text_of(choice))
    if FLAGS.skill is not None:
      parts += ["skill", text_of("skill")]
    FLAGS["render_to"].value = f"{'-'.join(parts)}.{FLAGS.render}"
    here, run = os.path.realpath("."), os.path.realpath(FLAGS.logdir)
    if os.path.commonpath([here, run]) == run:
      raise ValueError(
        f"--render={FLAGS.render} would write into the run; name a file by "
        "--render_to."
      )
  if not FLAGS.render_to.endswith(f".{FLAGS.render}"):
    raise ValueError(
      f"--render_to={FLAGS.render_to} doesn't end in .{FLAGS.render}, as "
      "--render has it; name such a file."
    )
  _check_new_file("render_to")


def _check_new_file(name: str) -> None:
  """Checks that a file can be made where a flag names one."""
  path = str(FLAGS[name].value)
  if os.path.lexists(path):
    raise ValueError(f"--{name}={path} is there; name a new file.")
  folder = os.path.dirname(os.path.abspath(path))
  while not os.path.lexists(folder):  # It will be made.
    folder = os.path.dirname(folder)
  if not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
    raise ValueError(
      f"--{name}={path} can't be written in {folder}; name another file."
    )
