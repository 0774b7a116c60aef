"""Tests of the page's HTML, whatever users have called things."""

import html.parser
import json

import numpy as np
import pytest

from qdrl_haiku.programs import reports
from qdrl_haiku.programs.drawing import figure as figures
from qdrl_haiku.programs.reports import with_plotly
from tests.programs.reports import common

_EVIL = "</script><script>alert(1)</script>&<b>"


class _Reader(html.parser.HTMLParser):
  """Collects tags, text, and what is in scripts, as browsers see them."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.texts, self.scripts = [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_data(self, data):
    is_script = self.tags and self.cdata_elem == "script"
    (self.scripts if is_script else self.texts).append(data)


def _render(*paths):
  runs = reports.read_runs([str(path) for path in paths])
  return reports.render_sections(runs, {}, {})


def test_what_users_called_things_is_no_markup(tmp_path):
  common.write_population(tmp_path / "a&b", env_name=_EVIL, rename=_EVIL)
  (run,) = reports.read_runs([str(tmp_path / "a&b")])
  reader = _Reader(reports.render_sections([run._replace(name=_EVIL)], {}, {}))
  figures = [
    json.loads(text, parse_constant=pytest.fail)  # It's strict JSON.
    for text in reader.scripts if text.startswith("{")]
  scripts = [tag for tag, _ in reader.tags].count("script")
  assert scripts == len(figures) + 2 == 6
  assert "b" not in {tag for tag, _ in reader.tags}
  assert _EVIL in reader.texts  # The run, and its environment.
  layouts = [figure["layout"] for figure in figures]
  titles = [x["text"] for f in layouts for x in f.get("annotations", [])]
  # For plotly, which reads some markup itself.
  assert any("&lt;/script&gt;" in title for title in titles)
  assert not any("<" in title for title in titles)


def test_the_page_is_one_file_and_its_contents_lead_anywhere(tmp_path):
  common.write_population(tmp_path / "run")
  reader = _Reader(_render(tmp_path / "run"))
  for tag, attributes in reader.tags:
    link = attributes.get("href", attributes.get("src", "#"))
    assert link.startswith(("#", "data:")), (tag, link)
  policies = [x.get("http-equiv") for _, x in reader.tags]
  assert "Content-Security-Policy" in policies
  links = [x["href"] for tag, x in reader.tags if tag == "a"]
  headings = [f"#{x['id']}" for tag, x in reader.tags if tag in ("h2", "h3")]
  assert links == headings
  # What a run doesn't have is left out.
  texts = [text for text in reader.texts if text.strip()]
  assert texts[texts.index("Runs") :][:7] == [
    "Runs", "Configuration", "run", "Learning curves",
    "Hyperparameter schedules", "Lineage", "Diagnostics"]


def test_what_differs_between_runs_comes_first(tmp_path):
  for i, learner in enumerate(("sac", "td3")):
    common.write_population(
      tmp_path / f"run{i}", learner=learner, seed=i, num_timesteps=1000)
  (tmp_path / "begun").mkdir()
  (tmp_path / "begun" / "config.json").write_text('{"env_name": "point_maze"}')
  text = _render(tmp_path / "run0", tmp_path / "run1", tmp_path / "begun")
  differ = text.index(">learner</th><td>sac</td><td>td3</td>")
  assert differ < text.index("<dt>env_name</dt><dd>point_maze</dd>")
  assert "<dt>learner</dt>" not in text and "<dt>seed</dt>" not in text
  # How far each is.
  assert "<td>4</td><td>400 of at most 1000</td>" in text
  assert "<p>No generation has ended yet.</p>" in text


def test_the_best_of_seeds_side_by_side_is_a_seeds_and_not_their_mean(tmp_path):
  common.write_seeds(tmp_path / "run", 3)
  row = "<td>point_maze</td><td>sac</td><td>0</td><td>3</td><td>300</td>"
  assert f"{row}<td>302</td>" in _render(tmp_path / "run")


def test_seeds_that_diverged_from_the_beginning_are_not_passed_over(tmp_path):
  for i, scale in enumerate((1.0, 2.0, np.nan)):
    common.write_population(tmp_path / f"run{i}", scale=scale, seed=i)
  text = _render(*(tmp_path / f"run{i}" for i in range(3)))
  assert "<td>2 of 3, without those that never were finite</td>" in text


def test_plotly_is_told_what_is_described():
  trace = figures.Trace(
    [0, 1, None], [1.5, float("nan"), None], "a<b", "#0072b2", 3, dash="dot",
    symbol="circle-open", sizes=[1, 2, 3], hover="%{text}\n%{x}",
    texts=["p", "q", "r"])
  area = figures.figure_rectangle(0, 0, 1, 1, "#00000040")
  log = figures.Axis("x", is_log=True)
  cells = figures.Heatmap(np.eye(2), (0.0, 1.0), (0.0, 8.0), "return")
  panels = [
    figures.Panel("first", [trace, area]),
    figures.Panel("log", [trace], log, is_isometric=True),
    figures.Panel("cells", [], y=figures.Axis(names=["a", "b"]), heatmap=cells),
    figures.Panel("alone in its row", [trace])]
  found = with_plotly.draw_with_plotly(figures.Figure(panels))
  line, area, again, heatmap, _ = found["data"]
  assert (line["name"], line["hovertemplate"]) == (
    "a&lt;b", "%{text}<br>%{x}<extra></extra>")
  assert (line["showlegend"], again["showlegend"]) == (True, False)
  assert (area["fill"], area["mode"]) == ("toself", "none")
  assert (again["xaxis"], heatmap["yaxis"]) == ("x2", "y3")
  assert (heatmap["x0"], heatmap["dy"]) == (0.25, 4.0)
  layout = found["layout"]
  assert layout["xaxis2"]["type"] == "log"
  assert layout["yaxis3"]["ticktext"] == ["a", "b"]
  assert layout["yaxis3"]["range"] == [-0.5, 1.5]
  assert "xaxis4" in layout and "xaxis5" not in layout
  titles = [note["text"] for note in layout["annotations"]]
  assert titles == ["first", "log", "cells", "alone in its row"]
