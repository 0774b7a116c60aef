"""A run's pictures: some of the figures of its report, as files."""

import pathlib

from qdrl_haiku.programs.drawing import with_matplotlib
from qdrl_haiku.programs.reports import curves, member_figures, skill_figures
from qdrl_haiku.programs.reports.runs import read_runs


def draw_run_pictures(path: pathlib.Path) -> list[pathlib.Path]:
  """Draws what a run left behind, into `plots/`."""
  (run,) = read_runs([str(path)])
  figures = {
    "learning_curves.png": curves.learning_curves(run),
    "diagnostics.png": curves.metric_curves(run, "training/"),
    "hyperparameters.png": member_figures.member_hyperparameters_figure(run)[0],
    "repertoire.png": curves.metric_curves(run, "qd/"),
    "skills.png": curves.metric_curves(run, *curves.SKILL_METRICS),
    "trajectories.png": skill_figures.skill_trajectories_figure(run.path)}
  written = []
  for name, figure in figures.items():
    if figure is not None:
      (path / "plots").mkdir(exist_ok=True)
      written.append(path / "plots" / name)
      with_matplotlib.draw_with_matplotlib(figure).savefig(written[-1], dpi=120)
  return written
