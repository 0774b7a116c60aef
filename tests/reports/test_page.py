"""Tests of the page's HTML, whatever users have called things."""

import html.parser
import json

import pytest

from qdrl_haiku import reports
from qdrl_haiku.reports import page
from tests.reports import common

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


def _render(runs, elites=None):
  return reports.render(runs, elites or {}, {})


def _data(text):
  """The numbers in a page."""
  start = text.index('id="data">') + len('id="data">')
  return json.loads(
    text[start : text.index("</script>", start)], parse_constant=pytest.fail
  )


def test_what_users_called_things_is_no_markup(tmp_path):
  common.write_population(tmp_path / "a&b", env_name=_EVIL, rename=_EVIL)
  runs = reports.read_runs([str(tmp_path / "a&b")])
  runs = [runs[0]._replace(name=_EVIL)]
  text = _render(runs)
  reader = _Reader(text)
  assert [tag for tag, _ in reader.tags].count("script") == 3
  assert "b" not in {tag for tag, _ in reader.tags}
  assert _EVIL in reader.texts  # The run, and its environment.
  data = _data(text)
  titles = [
    note["text"]
    for figure in data["figures"]
    for note in figure["layout"].get("annotations", [])
  ]
  # For plotly, which reads some markup itself.
  assert any("&lt;/script&gt;" in title for title in titles)
  assert not any("<" in title for title in titles)


def test_numbers_are_strict_json_and_end_no_script():
  text = page.to_json({"a": [float("nan"), float("-inf"), 1.5], "b": _EVIL})
  assert "<" not in text
  assert json.loads(text) == {"a": [None, None, 1.5], "b": _EVIL}


def test_the_page_names_no_other_file(tmp_path):
  common.write_population(tmp_path / "run")
  reader = _Reader(_render(reports.read_runs([str(tmp_path / "run")])))
  for tag, attributes in reader.tags:
    link = attributes.get("href", attributes.get("src", "#"))
    assert link.startswith(("#", "data:")), (tag, link)
  (policy,) = [
    attributes["content"]
    for tag, attributes in reader.tags
    if attributes.get("http-equiv") == "Content-Security-Policy"
  ]
  assert policy.startswith("default-src 'none'")


def test_the_contents_lead_to_all_sections(tmp_path):
  common.write_population(tmp_path / "run")
  reader = _Reader(_render(reports.read_runs([str(tmp_path / "run")])))
  links = [x["href"] for tag, x in reader.tags if tag == "a"]
  headings = [
    f"#{x['id']}" for tag, x in reader.tags if tag in ("h2", "h3")
  ]
  assert links == headings
  assert len(links) == 7


def test_what_a_run_does_not_have_is_left_out(tmp_path):
  common.write_population(tmp_path / "pbt")
  common.write_seeds(tmp_path / "seeds", 1)
  (tmp_path / "begun").mkdir()
  (tmp_path / "begun" / "config.json").write_text("{}")

  def sections(name):
    reader = _Reader(_render(reports.read_runs([str(tmp_path / name)])))
    count = sum(tag == "a" for tag, _ in reader.tags)
    start = reader.texts.index("Runs")
    return [text for text in reader.texts[start:] if text.strip()][:count]

  shared = ["Runs", "Configuration"]
  assert sections("pbt") == [
    *shared, "pbt", "Learning curves", "Hyperparameter schedules", "Lineage",
    "Diagnostics",
  ]  # fmt: skip
  assert sections("seeds") == [*shared, "seeds", "Learning curves"]
  assert sections("begun") == [*shared, "begun"]


def test_what_differs_between_runs_comes_first(tmp_path):
  for i, learner in enumerate(("sac", "td3")):
    common.write_population(tmp_path / f"run{i}", learner=learner, seed=i)
  runs = reports.read_runs([str(tmp_path / f"run{i}") for i in (0, 1)])
  text = _render(runs)
  differ = text.index(">learner</th><td>sac</td><td>td3</td>")
  assert differ < text.index("<dt>env_name</dt><dd>point_maze</dd>")
  assert "<dt>learner</dt>" not in text
  assert "<dt>seed</dt>" not in text
  assert "Comparison" in text


def test_a_run_has_one_colour_in_all_comparisons(tmp_path):
  common.write_seeds(tmp_path / "seeds", 1, learner="td3")
  common.write_population(tmp_path / "pbt")
  paths = [str(tmp_path / name) for name in ("seeds", "pbt")]
  comparison = _data(_render(reports.read_runs(paths)))["figures"][0]
  colors = {}
  for trace in comparison["data"]:
    colors.setdefault(trace["name"], set()).add(trace["line"]["color"])
  assert len(comparison["data"]) == 3  # Only one has a population.
  assert len(colors) == 2
  assert all(len(of_one) == 1 for of_one in colors.values())
  assert colors["learner=sac"] != colors["learner=td3"]


def test_a_run_that_goes_on_says_how_far_it_is(tmp_path):
  common.write_population(tmp_path / "run", num_timesteps=1000)
  text = _render(reports.read_runs([str(tmp_path / "run")]))
  assert "<td>4</td><td>400 of 1000</td>" in text


def test_a_run_of_variations_alone_takes_so_many_steps_at_most(tmp_path):
  common.write_population(
    tmp_path / "run", num_timesteps=1000, emitter="ga"
  )
  text = _render(reports.read_runs([str(tmp_path / "run")]))
  assert "<td>4</td><td>400 of at most 1000</td>" in text


def test_seeds_are_compared_as_one(tmp_path):
  for i in range(3):
    common.write_population(tmp_path / f"run{i}", seed=i, scale=1 + i)
  text = _render(
    reports.read_runs([str(tmp_path / f"run{i}") for i in range(3)])
  )
  # The middle of three is 18, the interval from the least to the greatest.
  assert (
    "<td>best return in the population</td><td>3</td><td>400</td><td>18</td>"
    "<td>9 to 27</td>"
  ) in text
