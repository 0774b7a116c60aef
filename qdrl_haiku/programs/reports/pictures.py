"""A run's pictures: some of the figures of its report, as files."""

import pathlib

import jax

from qdrl_haiku import environments
from qdrl_haiku.programs import artifacts
from qdrl_haiku.programs.drawing import with_matplotlib
from qdrl_haiku.programs.drawing.figure import Figure
from qdrl_haiku.programs.reports import curves, member_figures, skill_figures
from qdrl_haiku.programs.reports.runs import read_runs
from qdrl_haiku.training.setup import Setup

# Of a picture of the lineage, which would be a wall with more, and of a film.
_MOST_GENERATIONS, _FILM_SECONDS = 100, 10


def draw_run_pictures(path: pathlib.Path) -> list[pathlib.Path]:
  """Draws what a run left behind, into `plots/`."""
  (run,) = read_runs([str(path)])
  figures = {
    "learning_curves.png": curves.learning_curves(run),
    "diagnostics.png": curves.metric_curves(run, "training/"),
    "lineage.png": member_figures.member_tree_figure(run),
    "hyperparameters.png": member_figures.member_hyperparameters_figure(run)[0],
    "repertoire.png": curves.metric_curves(run, "qd/"),
    "skills.png": curves.metric_curves(run, *curves.SKILL_METRICS),
    "trajectories.png": skill_figures.skill_trajectories_figure(run.path)}
  return [
    _draw(path, name, figure)
    for name, figure in figures.items() if figure is not None]


def draw_lineage_picture(path: pathlib.Path, step: int) -> None:
  """Draws which members took over from which, of a run's latest generations.

  The `path` is the run's, and the file is `plots/lineage_<step>.png`.
  """
  (run,) = read_runs([str(path)])
  figure = member_figures.member_tree_figure(run)
  if figure is None:
    return
  (panel,), last = figure.panels, run.last["generation"]
  if last > _MOST_GENERATIONS:
    x = panel.x._replace(range=(last - _MOST_GENERATIONS, last))
    figure = figure._replace(panels=[panel._replace(x=x)])
  _draw(path, f"lineage_{step}.png", figure)


def draw_best_film(path: pathlib.Path, step: int, setup: Setup) -> None:
  """Films the best agent that a run evaluated, in `plots/best_<step>.gif`.

  It's the film that `evaluate.py --render=gif` makes; of a robot, its first
  ten seconds.

  Args:
    path: the run's directory.
    step: at which the run ended; one that has its film keeps it.
    setup: of the run.

  Raises:
    ValueError: if nothing of the environment can be drawn.
  """
  from qdrl_haiku.programs.drawing import films  # Its imports take long.

  film = path / "plots" / f"best_{step}.gif"
  if film.exists():
    return
  env, learner = setup.eval_env, setup.learner
  scene = environments.scene(env)
  agent, record = artifacts.read_best(learner, str(path))
  most_steps = env.episode_length
  if isinstance(scene, environments.RobotScene):
    most_steps = round(_FILM_SECONDS / scene.step_seconds)
  key = jax.random.key(0)  # As evaluate.py has it.
  episode = films.first_film_episode(
    env, learner, agent, key, scene, most_steps)
  title = f"best agent, of step {record['step']}"
  films.render_film(film, "gif", scene, episode, title)


def _draw(path: pathlib.Path, name: str, figure: Figure) -> pathlib.Path:
  """Writes one figure into `plots/`."""
  return with_matplotlib.save_with_matplotlib(
    with_matplotlib.draw_with_matplotlib(figure), path / "plots" / name)
