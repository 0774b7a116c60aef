"""The settings of evaluating an agent, and which of them go together."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from qdrl_haiku import checks
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.environments import EnvironmentConfig

DEFAULT_EPISODES = 16
"""Episodes of an agent without skills."""
# Each of these settings chooses one agent.
_AGENTS = ("best", "cell", "descriptor", "member")
_FORMATS = ("gif", "html", "mp4", "pdf", "png", "svg")


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(Settings):
  """Says which agent of a run is evaluated, and how."""

  title = "Evaluation"

  logdir: str = setting("", "Directory of the run.")
  best: bool | None = setting(
    None, "Evaluates the best agent that the run ever evaluated: the default.")
  member: int | None = setting(
    None, "Evaluates this member of the latest checkpoint.", low=0)
  cell: int | None = setting(
    None,
    "Evaluates one elite of the latest repertoire, by the number of its cell, "
    "as reports and `cells` in repertoire/<step>.npz have it; without cells, "
    "by that of its place in the file's arrays.",
    low=0)
  descriptor: tuple[float, ...] | None = setting(
    None,
    "Evaluates the elite of the occupied cell nearest to this descriptor in "
    "the latest repertoire, like 0.2,0.8.")
  weights: tuple[float, ...] | None = setting(
    None,
    "Evaluates the elite of the latest repertoire with the largest sum of "
    "objectives, each times its weight, like 1,0.2; with --cell or "
    "--descriptor, of that cell's front.")
  skill: tuple[str, ...] | None = setting(
    None,
    "Evaluates one skill: an index, like 3, or numbers, like 0.6,0.8; by "
    "default all skills.")
  goal: tuple[float, ...] | None = setting(
    None,
    "State to reach, like 0.5,-0.2: at each step the skill of diayn, metra or "
    "smerl that leads there is chosen. Its numbers are as their discriminator "
    "or representation sees states.")
  # Beyond the bound, resampling them takes minutes.
  num_eval_episodes: int | None = setting(
    None,
    f"Episodes to evaluate; by default {DEFAULT_EPISODES}, or with skills, "
    "unless --skill chooses one, as many as the run's evaluations have.",
    low=1, high=100_000)
  seed: int = setting(
    0, "Seed of the episodes' random numbers.", low=0, high=2**32 - 1)
  export: str | None = setting(
    None,
    "New file to which the policy is written: .npz, for NumPy, or .onnx; or a "
    "new directory, ending in /, for all elites of the repertoire.")
  opset: int | None = setting(
    None,
    "ONNX's operator set of an exported .onnx; by default 18, which ONNX "
    "Runtime reads from 1.15 on.",
    low=1)
  render: str | None = setting(
    None,
    "Draws the first episode: png, pdf, svg, gif, mp4 (with ffmpeg), or html "
    "(brax's viewer, of its robots).",
    choices=_FORMATS)
  render_to: str | None = setting(
    None, "New file to draw to; by default one in the current directory.")
  sweep: str | None = setting(
    None,
    "name:low:high:number: evaluates at that many values of one name of "
    "--randomize, and draws the curve; all else stays as without --sweep.")
  where: str | None = setting(
    None,
    "gymnasium: evaluates an agent of gym:<id>, whose physics is MJX, in "
    "Gymnasium's own environment as well, whose physics is MuJoCo, and prints "
    "both.",
    choices=("gymnasium",), flag="in")
  environment: EnvironmentConfig = EnvironmentConfig()

  @property
  def choices(self) -> list[str]:
    """The settings that choose the agent; more than one are refused."""
    given = [name for name in _AGENTS if getattr(self, name) is not None]
    return given or ["best" if self.weights is None else "weights"]

  def text(self, name: str) -> str:
    """Returns the value of a setting as a user types it."""
    value = getattr(self, name)
    if isinstance(value, tuple):
      return ",".join(f"{x:g}" if isinstance(x, float) else x for x in value)
    return str(value)

  @contextlib.contextmanager
  def blamed(self, name: str) -> Iterator[None]:
    """Names this setting's flag in errors that are raised inside the `with`."""
    flag = f"--{name}={self.text(name)}"
    try:
      yield
    except OSError as error:
      reason = error.strerror
      raise ValueError(f"{flag} can't be written ({reason}).") from error
    except ValueError as error:
      raise ValueError(f"{flag}: {error}") from error


def check_evaluate_config(config: EvaluateConfig) -> EvaluateConfig:
  """Checks what can be checked without the run, and names the file to draw."""
  with checks.Refusals() as refusals:
    if not config.logdir:
      refusals.refuse("--logdir is missing: which run is to be evaluated?")
    if config.best is False:
      refusals.refuse(
        "--nobest chooses no agent; give --member or --cell in its place.")
    elif len(config.choices) > 1:
      flags = " and ".join(f"--{name}" for name in config.choices)
      refusals.refuse(f"{flags} choose one agent each; give one of them.")
    if config.weights is not None and config.choices[0] in ("best", "member"):
      refusals.refuse(
        f"--weights={config.text('weights')} chooses an elite; leave out "
        f"--{config.choices[0]}.")
    if config.goal is not None and (config.skill is not None or config.sweep):
      refusals.refuse(
        f"--goal={config.text('goal')} chooses the skills of episodes to one "
        "goal; leave out --skill and --sweep.")
    if config.where and (config.goal is not None or config.sweep):
      refusals.refuse(
        f"--in={config.where} evaluates one agent; leave out --goal and "
        "--sweep.")
    if config.sweep and (config.render or config.export):
      refusals.refuse(
        f"--sweep={config.sweep} draws a curve, and exports nothing; leave out "
        "--render and --export.")
    ending = "-sweep.png" if config.sweep else f".{config.render}"
    path = config.render_to
    if config.render_to and not (config.sweep or config.render):
      refusals.refuse(
        f"--render_to={path} has no effect without --render or --sweep; give "
        "one of them, or leave it out.")
    elif config.sweep or config.render:
      path = path or _default_file(config, ending)
      if not (config.sweep or path.endswith(ending)):
        refusals.refuse(
          f"--render_to={path} doesn't end in {ending}, as --render has it; "
          "name such a file.")
    export = config.export
    if config.opset and not (export or "").endswith(".onnx"):
      refusals.refuse(
        f"--opset={config.opset} has no effect without --export of an .onnx; "
        "give that, or leave it out.")
    if export and not export.endswith((".npz", ".onnx", "/")):
      refusals.refuse(
        f"--export={export} ends in none of .npz, .onnx and /; name such a "
        "file, or a directory.")
    for name, file in (("export", export), ("render_to", path)):
      if file and os.path.lexists(file):
        refusals.refuse(f"--{name}={file} is there; name a new file.")
  return dataclasses.replace(config, render_to=path)


def _default_file(config: EvaluateConfig, ending: str) -> str:
  """Returns the name of the file to draw to, where it isn't given."""
  choice = config.choices[0]
  parts = [os.path.basename(os.path.abspath(config.logdir)), choice]
  if choice != "best":
    parts.append(config.text(choice))
  if config.skill is not None:
    parts += ["skill", config.text("skill")]
  return "-".join(parts) + ending
