"""Evaluates an agent that a run left behind; the run stays as it is.

python launchers/evaluate.py --logdir=logs/my_run --member=3 --render=gif
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import jax
import numpy as np

from qdrl_haiku import artifacts, environments, skills, types
from qdrl_haiku import config as config_lib
from qdrl_haiku.artifacts import export, repertoires, sweep
from qdrl_haiku.cli import devices, launch
from qdrl_haiku.cli.flags import Given
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.environments import (
  BatchedEnvironment,
  EnvironmentConfig,
  randomization,
)
from qdrl_haiku.experiment import Config, make_experiment_agent, read_config
from qdrl_haiku.learners import DIAYNAgentConfig, Learner
from qdrl_haiku.storage import strict_json

_DEFAULT_EPISODES = 16
# Each of these settings chooses one agent.
_AGENTS = ("best", "cell", "descriptor", "member")
_FORMATS = ("gif", "html", "mp4", "png")


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(Settings):
  """Says which agent of a run is evaluated, and how."""

  title = "Evaluation"

  logdir: str = setting("", "Directory of the run.")
  best: bool | None = setting(
    None, "Evaluates the best agent that the run ever evaluated: the default."
  )
  member: int | None = setting(
    None, "Evaluates this member of the latest checkpoint.", low=0
  )
  cell: int | None = setting(
    None, "Evaluates the elite of this cell of the latest repertoire.", low=0
  )
  descriptor: tuple[float, ...] | None = setting(
    None,
    "Evaluates the elite of the occupied cell nearest to this descriptor in "
    "the latest repertoire, like 0.2,0.8.",
  )
  skill: tuple[str, ...] | None = setting(
    None,
    "Evaluates one skill of DIAYN: an index, like 3, or numbers, like 0.6,0.8; "
    "by default all skills.",
  )
  # Beyond the bound, resampling them takes minutes.
  num_eval_episodes: int | None = setting(
    None,
    f"Episodes to evaluate; by default {_DEFAULT_EPISODES}, or with skills 2 "
    "for each.",
    low=1, high=100_000,
  )
  seed: int = setting(
    0, "Seed of the episodes' random numbers.", low=0, high=2**32 - 1
  )
  export: str | None = setting(
    None,
    "New file to which the policy is written: .npz, for NumPy, or .onnx; or a "
    "new directory, ending in /, for all elites of the repertoire.",
  )
  render: str | None = setting(
    None,
    "Draws the first episode: png, gif, mp4 (with ffmpeg), or html (brax's "
    "viewer, of its robots).",
    choices=_FORMATS,
  )
  render_to: str | None = setting(
    None,
    "New file to draw to; by default one in the current directory.",
  )
  sweep: str | None = setting(
    None,
    "name:low:high:number: evaluates at so many values of one of --randomize, "
    "all else as in the file or by --randomize, and draws the curve.",
  )
  environment: EnvironmentConfig = EnvironmentConfig()

  @property
  def choices(self) -> list[str]:
    """The settings that choose the agent: one, or it's refused."""
    given = [name for name in _AGENTS if getattr(self, name) is not None]
    return given or ["best"]

  def text(self, name: str) -> str:
    """Returns the value of a setting as it is typed."""
    value = getattr(self, name)
    if isinstance(value, tuple):
      return ",".join(f"{x:g}" if isinstance(x, float) else x for x in value)
    return str(value)

  @contextlib.contextmanager
  def blamed(self, name: str) -> Iterator[None]:
    """Makes errors say that it was this setting that asked for it."""
    flag = f"--{name}={self.text(name)}"
    try:
      yield
    except OSError as error:
      reason = error.strerror
      raise ValueError(f"{flag} can't be written ({reason}).") from error
    except ValueError as error:
      raise ValueError(f"{flag}: {error}") from error


def _main(given: Given) -> None:
  """Evaluates the agent that the flags ask for, exports it and draws it."""
  config = _checked(given.fill(EvaluateConfig()))
  run = read_config(config.logdir)
  run = dataclasses.replace(run, environment=given.fill(run.environment))
  devices.prepare_jax_devices(given.fill(devices.ProcessConfig()))
  from qdrl_haiku.drawing import films  # With matplotlib.

  num_episodes = config.num_eval_episodes
  swept = None
  if config.sweep:
    swept = sweep.parse_sweep(config.sweep)
    run = _with_randomize(run, sweep.sweep_specification(*swept), swept[0])
  if config.skill is None and num_episodes is not None:
    changed = dataclasses.replace(run.training, num_eval_episodes=num_episodes)
    run = dataclasses.replace(run, training=changed)
  setup = make_experiment_agent(run)
  learner, eval_env = setup.learner, setup.eval_env
  if config.skill is not None:
    eval_env = _one_skill(run, eval_env, config.skill)
  elif num_episodes is None and isinstance(run.learner, DIAYNAgentConfig):
    num_episodes = setup.config.num_eval_episodes
  if config.render:
    with config.blamed("render"):
      scene = environments.scene(eval_env)
      films.check_film_format(scene, config.render)
  state, which, facts = _read_agent(config, run, learner)
  if config.skill is not None:
    which += f", skill {config.text('skill')}"
  key = jax.random.key(config.seed)
  if swept is not None:
    returns = sweep.sweep_agent(
      eval_env, learner, state, key, *swept, num_episodes or _DEFAULT_EPISODES
    )
    _report_sweep(config, which, *swept, returns)
    return
  evaluation = artifacts.evaluate_agent(
    eval_env, learner, state, key, num_episodes or _DEFAULT_EPISODES
  )
  numbers = artifacts.summarize_evaluation(evaluation, eval_env.descriptor)
  summary = facts | numbers
  env_name = run.environment.env_name
  if config.export:
    with config.blamed("export"):
      info: dict[str, object] = {"env_name": env_name, "agent": which}
      _export(config, learner, eval_env.observation_size, state, info)
  if config.render:
    episode = films.first_film_episode(eval_env, learner, state, key, scene)
    title = f"{env_name}: {which}"
    path = str(config.render_to)
    with config.blamed("render_to"):
      films.render_film(path, config.render, scene, episode, title)
  print(f"{config.logdir}: {which}")
  width = max(map(len, summary))
  for name, value in summary.items():
    print(f"  {name:<{width}} {value:g}")
  for path in filter(None, (config.export, config.render_to)):
    print(f"wrote {path}")
  print(strict_json.to_strict_json({"agent": which, **summary}))


def _export(
  config: EvaluateConfig,
  learner: Learner,
  observation_size: int,
  state: types.State,
  info: dict[str, object],
) -> None:
  """Writes the policy, or all of a repertoire's."""
  path = str(config.export)
  if path.endswith("/"):
    found, step = repertoires.read_latest_repertoire(learner, config.logdir)
    export.export_repertoire(
      path, learner, found, info={**info, "agent": f"elites of step {step}"}
    )
  elif path.endswith(".onnx"):
    export.export_onnx(path, learner, state, observation_size, info=info)
  else:
    export.export_policy(path, learner, state, info=info)


def _with_randomize(run: Config, specification: str, name: str) -> Config:
  """Returns a run in whose environment one thing is drawn differently."""
  others = [
    x for x in run.environment.randomize if x.partition(":")[0] != name
  ]
  environment = dataclasses.replace(
    run.environment, randomize=(*others, specification)
  )
  return dataclasses.replace(run, environment=environment)


def _report_sweep(
  config: EvaluateConfig,
  which: str,
  name: str,
  values: tuple[float, ...],
  returns: np.ndarray,
) -> None:
  """Prints and draws the returns [K, N] of a sweep."""
  from qdrl_haiku.drawing.sweep import sweep_figure
  from qdrl_haiku.drawing.with_matplotlib import draw_with_matplotlib

  path = str(config.render_to)
  is_factor = randomization.is_factor(name)
  title = f"{name}, as a factor" if is_factor else name
  picture = draw_with_matplotlib(sweep_figure(title, values, returns))
  with config.blamed("render_to"):
    picture.savefig(path)
  means = returns.mean(axis=1).tolist()
  print(f"{config.logdir}: {which}")
  for value, mean in zip(values, means, strict=True):
    print(f"  {name}={value:<10g} {mean:g}")
  print(f"wrote {path}")
  record = {"agent": which, "sweep": name, "values": values, "mean": means}
  print(strict_json.to_strict_json(record))


def _checked(config: EvaluateConfig) -> EvaluateConfig:
  """Checks what can be checked without the run, and names the file to draw."""
  if not config.logdir:
    raise ValueError("--logdir is missing: which run is to be evaluated?")
  if len(config.choices) > 1:
    flags = " and ".join(f"--{name}" for name in config.choices)
    raise ValueError(f"{flags} choose one agent each; give one of them.")
  if config.best is False:
    raise ValueError("--nobest chooses no agent; give --member or --cell.")
  if config.sweep:
    if config.render or config.export:
      raise ValueError(
        f"--sweep={config.sweep} draws a curve, and exports nothing; leave out "
        "--render and --export."
      )
    path = config.render_to or _default_file(config, "-sweep.png")
    config = dataclasses.replace(config, render_to=path)
  elif config.render:
    path = config.render_to or _default_file(config, f".{config.render}")
    if not path.endswith(f".{config.render}"):
      raise ValueError(
        f"--render_to={path} doesn't end in .{config.render}, as --render has "
        "it; name such a file."
      )
    config = dataclasses.replace(config, render_to=path)
  elif config.render_to:
    raise ValueError(
      f"--render_to={config.render_to} has no effect without --render or "
      "--sweep; give one of them, or leave it out."
    )
  for name in ("export", "render_to"):
    path = getattr(config, name)
    if name == "export" and path and not path.endswith((".npz", ".onnx", "/")):
      raise ValueError(
        f"--export={path} ends in none of .npz, .onnx and /; name such a file, "
        "or a directory."
      )
    if path and os.path.lexists(path):
      raise ValueError(f"--{name}={path} is there; name a new file.")
  return config


def _default_file(config: EvaluateConfig, ending: str) -> str:
  """Returns the name of the file to draw to, where it isn't given."""
  (choice,) = config.choices
  parts = [os.path.basename(os.path.abspath(config.logdir)), choice]
  if choice != "best":
    parts.append(config.text(choice))
  if config.skill is not None:
    parts += ["skill", config.text("skill")]
  return "-".join(parts) + ending


def _one_skill(
  run: Config, env: BatchedEnvironment, given: tuple[str, ...]
) -> BatchedEnvironment:
  """Returns an environment all of whose episodes have one skill."""
  text = ",".join(given)
  if not isinstance(run.learner, DIAYNAgentConfig):
    learner = config_lib.kind_in_config_tree(run, "learner")
    raise ValueError(
      f"--skill={text}, but the run's learner, {learner}, has no skills; leave "
      "it out."
    )
  assert isinstance(env, environments.SkillEnvironment)
  prior = run.learner.skills.prior()
  try:
    numbers = [float(x) for x in given]
    is_index = prior.num_skills is not None and len(numbers) == 1
    skill = int(given[0]) if is_index else numbers
  except ValueError:
    raise ValueError(
      f"--skill={text} is neither an index nor numbers; give it like 3 or "
      "0.6,0.8."
    ) from None
  return environments.SkillEnvironment(
    env.env, skills.constant_skill(prior, skill), "episode"
  )


def _read_agent(
  config: EvaluateConfig, run: Config, learner: Learner
) -> tuple[types.State, str, dict[str, float]]:
  """Reads the chosen agent: its state, which it is, what else is known."""
  if config.choices == ["best"]:
    state, record = artifacts.read_best(learner, config.logdir)
    return state, f"best agent, of step {record['step']}", {}
  if config.member is None:
    return _read_elite(config, learner)
  member, repertoire = config.member, run.repertoire
  if repertoire is not None and not repertoire.has_members:
    raise ValueError(
      f"--member={member}, but no agents trained in a run with --emitter="
      f"{repertoire.emitter}; leave it out for the best elite, or give --cell."
    )
  states, record = artifacts.read_agents(learner, config.logdir)
  size = len(record["returns"])
  if member >= size:
    raise ValueError(
      f"--member={member}, but there are {size} agents; give one from 0 to "
      f"{size - 1}."
    )
  which = f"member {member} after generation {record['generation']}"
  return jax.tree.map(lambda x: x[member], states), which, {}


def _read_elite(
  config: EvaluateConfig, learner: Learner
) -> tuple[types.State, str, dict[str, float]]:
  """Reads the agent of --cell or --descriptor, as `_read_agent` does."""
  repertoire, step = repertoires.read_latest_repertoire(learner, config.logdir)
  cell = config.cell
  with config.blamed(*config.choices):
    if cell is not None:
      repertoires.check_repertoire_cell(repertoire, cell)
    else:
      near = config.descriptor or ()
      cell = repertoires.nearest_occupied_cell(repertoire, near)
  genotype = jax.tree.map(lambda x: x[cell], repertoire.genotypes.genotype)
  where = ",".join(f"{x:.3g}" for x in repertoire.descriptors[cell])
  return (
    learner.from_genotype(genotype),
    f"cell {cell} of the repertoire of step {step}, found at {where}",
    {"cell": cell, "cell_return": float(repertoire.fitness[cell])},
  )


def evaluate_from_flags() -> None:
  """Starts this launcher with the arguments of the command line."""
  own = config_lib.config_tree_flags(EvaluateConfig())
  own |= config_lib.config_tree_flags(devices.ProcessConfig())
  launch.launch_main(_main, own, __doc__)
