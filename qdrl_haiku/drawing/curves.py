"""Pictures of a run, from the files that it wrote."""

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qdrl_haiku.drawing import skills
from qdrl_haiku.storage.directory import RunDirectory

Row = dict[str, Any]


def plot_run(directory: RunDirectory) -> list[pathlib.Path]:
  """Draws what a run left behind, into `plots/`.

  Args:
    directory: of the run.

  Returns:
    The files: `learning_curves.png`, `diagnostics.png`; where a controller
    changed hyperparameters, `hyperparameters.png`; and of agents with skills
    `skills.png` and, if their states have descriptors, `trajectories.png`;
    and of a repertoire's metrics `repertoire.png`.
  """
  metrics = directory.rows("metrics.jsonl")
  members = directory.rows("pbt_members.jsonl")
  if not metrics:
    return []
  folder = directory.path / "plots"
  folder.mkdir(exist_ok=True)
  figures = {
    "learning_curves.png": _learning_curves(metrics, members),
    "diagnostics.png": _diagnostics(metrics),
  }
  if members:
    figures["hyperparameters.png"] = _hyperparameters(members)
  diayn = [
    name
    for name in metrics[0]
    if name.startswith("diayn/") and "/seed_" not in name
  ]
  qd = [name for name in metrics[0] if name.startswith("qd/")]
  if qd:
    figures["repertoire.png"] = _curves(metrics, qd)
  if diayn:
    figures["skills.png"] = _curves(metrics, diayn)
    trajectories = skills.trajectories(directory.path / "skills.npz")
    if trajectories is not None:
      figures["trajectories.png"] = trajectories
  for name, figure in figures.items():
    figure.savefig(folder / name, dpi=120)
  return [folder / name for name in figures]


def _learning_curves(metrics: list[Row], members: list[Row]) -> Figure:
  figure = Figure(figsize=(8, 5), layout="constrained")
  axes = figure.subplots()
  if members:
    for curve in _by_member(members):
      axes.plot(
        *_column(curve, "return"), color="tab:blue", alpha=0.3, linewidth=1
      )
    axes.plot(*_column(metrics, "pbt/mean_return"), label="mean")
    axes.plot(*_column(metrics, "pbt/best_return"), label="best")
    axes.legend()
  else:
    seeds = [
      name for name in metrics[0] if name.startswith("eval/episode_return/")
    ]
    for name in seeds:
      axes.plot(
        *_column(metrics, name), linewidth=1, label=name.rsplit("/", 1)[1]
      )
    if len(seeds) > 1:
      axes.plot(
        *_column(metrics, "eval/episode_return_iqm"),
        color="black",
        label="interquartile mean",
      )
    if seeds:
      axes.legend()
    else:
      axes.plot(*_column(metrics, "eval/episode_return"))
  axes.set_ylabel("episode return")
  axes.set_xlabel("environment steps per agent")
  return figure


def _diagnostics(metrics: list[Row]) -> Figure:
  return _curves(
    metrics, [name for name in metrics[0] if name.startswith("training/")]
  )


def _curves(metrics: list[Row], names: list[str]) -> Figure:
  return _grid(
    names,
    lambda axes, name: axes.plot(*_column(metrics, name)),
    title=lambda name: name.split("/", 1)[1],
  )


def _hyperparameters(members: list[Row]) -> Figure:
  curves = _by_member(members)

  def draw(axes: Axes, name: str) -> None:
    for curve in curves:
      steps, values = _column(
        [{"step": row["step"], **row["hyperparams"]} for row in curve], name
      )
      axes.step(steps, values, where="pre", linewidth=1)
    everything = [row["hyperparams"][name] for row in members]
    numbers = [value for value in everything if value is not None]
    if numbers and 0 < 5 * min(numbers) < max(numbers):
      axes.set_yscale("log")

  return _grid(list(members[0]["hyperparams"]), draw, title=str)


def _grid(names: Sequence[str], draw: Any, title: Any) -> Figure:
  """Returns a figure with one small plot per name."""
  columns = min(3, len(names))
  rows = -(-len(names) // columns)
  figure = Figure(figsize=(4 * columns, 2.6 * rows), layout="constrained")
  grid = np.ravel(figure.subplots(rows, columns, squeeze=False))
  for axes, name in itertools.zip_longest(grid, names):
    if name is None:
      axes.axis("off")
      continue
    draw(axes, name)
    axes.set_title(title(name), fontsize="medium")
    axes.locator_params(axis="x", nbins=4)  # More run into each other.
    axes.set_xlabel("environment steps per agent", fontsize="small")
  return figure


def _by_member(rows: list[Row]) -> list[list[Row]]:
  """Returns the rows of each member, in order."""
  count = 1 + max(row["member"] for row in rows)
  return [[row for row in rows if row["member"] == i] for i in range(count)]


def _column(rows: list[Row], name: str) -> tuple[list[int], list[float]]:
  """Steps and values, NaN where there is none."""
  return (
    [row["step"] for row in rows],
    [np.nan if row[name] is None else row[name] for row in rows],
  )
