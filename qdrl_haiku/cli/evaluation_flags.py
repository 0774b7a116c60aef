"""The flags that say which agent is looked at, and how."""

import dataclasses
import os

from qdrl_haiku.cli import devices, learner_flags
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.shared_flags import TrainingFlags

# Beyond that, resampling them takes minutes.
_MAX_EPISODES = 100_000
_FORMATS = ("gif", "html", "mp4", "png")
_OF_TRAINING = (
  "batch_size", "checkpoint_interval", "checkpoint_replay", "dry_run",
  "exact_placement", "grad_updates_per_step", "max_checkpoints",
  "min_replay_size", "n_step", "num_envs", "num_timesteps", "on_divergence",
  "random_warm_up", "replay_capacity", "resume", "suffix", "use_tensorboard",
  "warm_start",
)  # fmt: skip
# Each of them chooses one agent.
_AGENTS = ("best", "cell", "descriptor", "member")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationFlags(TrainingFlags):
  """Say which agent of a run is looked at, and how."""

  section = "Agent to evaluate"
  hidden_sections = frozenset({
    "Controller", "Devices and processes", "Environment", "Hyperparameters",
    "Learner", "Population", "Run", "Skills of DIAYN (--learner=diayn)",
    "Training",
  })  # fmt: skip
  help_note = "Settings of training are read from the run's config.json."

  logdir: str | None = flag(
    None, "Directory of the run to look at.", section="Agent to evaluate"
  )
  seed: int = flag(
    0, "Seed of the episodes of the evaluation.", section="Evaluation"
  )
  best: bool | None = flag(
    None,
    "Whether the best agent that the run ever evaluated is looked at, which is "
    "the default.",
  )
  member: int | None = flag(
    None,
    "Number of an agent of the latest checkpoint to look at, counted from 0.",
  )
  cell: int | None = flag(
    None,
    "Number of a cell of the latest repertoire whose elite to look at, counted "
    "from 0.",
  )
  descriptor: tuple[str, ...] | None = flag(
    None,
    "Descriptor, such as 0.2,0.8: the elite of the nearest occupied cell of "
    "the latest repertoire is looked at.",
  )
  skill: tuple[str, ...] | None = flag(
    None,
    "Skill of a DIAYN agent to look at: an index, such as 3, or the numbers of "
    "a continuous one, such as 0.6,0.8; by default all skills.",
  )
  export: str | None = flag(
    None, "New .npz file to which the policy is written; by default none."
  )
  render: str | None = flag(
    None,
    "Format in which the first episode is drawn: png, gif, mp4 (needs ffmpeg), "
    "or html (brax's viewer, for its robots); by default none.",
  )
  render_to: str | None = flag(
    None,
    "New file for the drawing of --render; by default one in the current "
    "directory, named after the run.",
  )


def checked(flags: EvaluationFlags) -> tuple[EvaluationFlags, str, str]:
  """Checks what can be checked without the run.

  Args:
    flags: of the launcher.

  Returns:
    The flags with the file to draw to, if anything is drawn; the run's
    directory; and the name of the flag that chooses the agent.

  Raises:
    ValueError: if a flag makes no sense.
  """
  logdir = flags.logdir
  if not logdir:
    raise ValueError("--logdir is missing: which run is to be evaluated?")
  flags.refuse_given(
    [
      *devices.PROCESS_FLAGS,
      *_OF_TRAINING,
      *learner_flags.hyperparam_flags(),
    ],
    "a look at a run trains nothing",
  )
  if not 0 <= flags.seed < 2**32:
    raise ValueError(
      f"--seed={flags.seed} must be at least 0 and below 2**32."
    )
  num_episodes = flags.num_eval_episodes
  if num_episodes is not None and not 1 <= num_episodes <= _MAX_EPISODES:
    raise ValueError(
      f"--num_eval_episodes={num_episodes} must be at least 1 and at most "
      f"{_MAX_EPISODES}; leave it out for the default."
    )
  choice = _choice(flags)
  numbers_of_descriptor(flags)
  if flags.export:
    _check_new_file("export", flags.export)
  flags.check_choice("render", _FORMATS)
  if flags.render is None:
    flags.refuse_given(["render_to"], "without --render nothing is drawn")
  else:
    path = flags.render_to or _default_file(flags, logdir, choice)
    if not path.endswith(f".{flags.render}"):
      raise ValueError(
        f"--render_to={path} doesn't end in .{flags.render}, as --render has "
        "it; name such a file."
      )
    _check_new_file("render_to", path)
    flags = dataclasses.replace(flags, render_to=path)
  return flags, logdir, choice


def numbers_of_descriptor(flags: EvaluationFlags) -> list[float]:
  """Returns the numbers that --descriptor lists.

  Args:
    flags: of the launcher.

  Raises:
    ValueError: if it lists something else.
  """
  try:
    return [float(text) for text in flags.descriptor or ()]
  except ValueError:
    raise ValueError(
      f"--descriptor={flags.text_of('descriptor')} is no list of numbers; give "
      "it like 0.2,0.8."
    ) from None


def _choice(flags: EvaluationFlags) -> str:
  """Returns which flag chooses the agent."""
  given = [name for name in _AGENTS if getattr(flags, name) is not None]
  if len(given) > 1:
    raise ValueError(
      f"{' and '.join(f'--{name}' for name in given)} choose one agent each; "
      "give one of them."
    )
  if flags.best is False:
    raise ValueError("--nobest chooses no agent; give --member or --cell.")
  return given[0] if given else "best"


def _default_file(flags: EvaluationFlags, logdir: str, choice: str) -> str:
  """Returns the name of the file to draw to, where it isn't given."""
  parts = [os.path.basename(os.path.abspath(logdir)), choice]
  if choice != "best":
    parts.append(flags.text_of(choice))
  if flags.skill is not None:
    parts += ["skill", flags.text_of("skill")]
  here, run = os.path.realpath("."), os.path.realpath(logdir)
  if os.path.commonpath([here, run]) == run:
    raise ValueError(
      f"--render={flags.render} would write into the run; name a file by "
      "--render_to."
    )
  return f"{'-'.join(parts)}.{flags.render}"


def _check_new_file(name: str, path: str) -> None:
  """Checks that a file can be made where a flag names one."""
  if os.path.lexists(path):
    raise ValueError(f"--{name}={path} is there; name a new file.")
  folder = os.path.dirname(os.path.abspath(path))
  while not os.path.lexists(folder):  # It will be made.
    folder = os.path.dirname(folder)
  if not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
    raise ValueError(
      f"--{name}={path} can't be written in {folder}; name another file."
    )
