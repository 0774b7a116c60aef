"""Tests of reports in a browser: quiet, and quick to answer."""

import shutil
import time

import numpy as np
import pytest

from qdrl_haiku import environments, map_elites
from qdrl_haiku.programs import reports
from qdrl_haiku.programs.reports import rollouts
from tests import toy
from tests.programs.reports import common

webdriver = pytest.importorskip("selenium.webdriver")
_PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    not all(_PROGRAMS.values()), reason="chromium or chromedriver is missing")]
_ARGUMENTS = (
  "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic",
  "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-proxy-server",
  "--window-size=1280,1000")
_SECONDS = 30
# Where on the screen a place of the picture is, once one can see it.
_WHERE = """
const [column, row] = arguments;
const map = document.querySelector(".map");
map.scrollIntoView({block: "center"});
const {x, y} = map.querySelector(".nsewdrag").getBoundingClientRect();
const {xaxis, yaxis} = map._fullLayout;
return [x + xaxis.d2p(column), y + yaxis.d2p(row)];
"""
_TABLE = """
return [...document.querySelectorAll('.cell tr')].map(
  (row) => [...row.children].map((part) => part.textContent))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
  options = webdriver.ChromeOptions()
  options.binary_location = _PROGRAMS["chromium"]
  profile = tmp_path_factory.mktemp("profile")
  for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
    options.add_argument(argument)
  options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
  service = webdriver.ChromeService(_PROGRAMS["chromedriver"])
  driver = webdriver.Chrome(options, service)
  driver.set_page_load_timeout(_SECONDS)
  yield driver
  driver.quit()


def _open(browser, path):
  """Opens a page, and draws all figures by scrolling."""
  browser.get(path.as_uri())
  for place in browser.find_elements("css selector", ".plot, .map"):
    browser.execute_script("arguments[0].scrollIntoView()", place)
    _wait(lambda place=place: place.find_elements("css selector", ".main-svg"))
  # Then the fittest elite is chosen, which draws once more.
  _wait(lambda: not browser.find_elements("css selector", "table:empty"))


def _wait(condition):
  """Waits until something is so, and returns it."""
  end = time.monotonic() + _SECONDS
  while not (found := condition()):
    assert time.monotonic() < end, "the page doesn't answer"
    time.sleep(0.02)
  return found


def _act(browser, what):
  """Does something with the mouse."""
  actions = webdriver.ActionChains(browser, duration=0)
  what(actions.w3c_actions.pointer_action)
  actions.perform()


def _click(browser, middle, cell):
  """Clicks into the middle of a cell; returns what the page then says."""
  x, y = browser.execute_script(_WHERE, *map(float, middle[:2]))

  def hints():
    return browser.find_elements("css selector", ".map .hovertext")

  _act(browser, lambda mouse: mouse.move_to_location(1, 1))
  _wait(lambda: not hints())
  _act(browser, lambda mouse: mouse.move_to_location(round(x), round(y)))
  # plotly looks where the mouse is 20 times a second, at most.
  _wait(hints)
  _act(browser, lambda mouse: mouse.click())

  def answer():
    table = dict(browser.execute_script(_TABLE))
    return table if table["cell"].split()[0] == str(cell) else None

  return _wait(answer)


def test_a_page_with_ten_thousand_cells_answers_a_click(browser, tmp_path):
  directory = common.write_population(tmp_path / "run")
  grid = map_elites.Grid((100, 100), (-1.0, -1.0), (1.0, 1.0))
  learner = toy.linear_learner()
  elites = common.agents(learner, grid, [17, 3000, 9990])
  saved = dict(np.load(common.write_repertoire(directory, elites)))
  again, _ = common.look_again(directory.path, saved["cells"], 4)
  runs = reports.read_runs([str(directory.path)])
  elites, _ = reports.read_elite_table(directory.path)
  env = environments.Environment(toy.Walk(), episode_length=20)
  ways = {"run": rollouts.roll_out_elites(env, learner, elites, 2)}
  page = tmp_path / "page.html"
  page.write_text(reports.render_sections(runs, {"run": elites}, ways))
  _open(browser, page)
  for i, cell in enumerate(saved["cells"]):
    found = _click(browser, saved["centroids"][cell], cell)
    expected = dict(zip("ab", saved["descriptors"][cell], strict=True))
    expected |= {"episode return": saved["fitness"][cell], "noise": 0.1}
    for name, value in expected.items():
      assert float(found[name]) == pytest.approx(value, rel=1e-5), name
    mean, spread = found["episode return, 4 times again"].split(" ± ")
    assert float(mean) == pytest.approx(again[i].mean(), rel=1e-4)
    assert float(spread) == pytest.approx(again[i].std(ddof=1), rel=1e-4)
    value = found["return of the episode below"]
    if cell == 3000:
      assert value == "none; see --rollouts"
      continue
    way, end = browser.execute_script(
      "return document.querySelector('.way').data.map(({x, y}) => [x, y])")
    assert len(way[0]) == 21 and end == [[x[-1]] for x in way]
    # The rewards are the places.
    assert float(value) == pytest.approx(sum(way[0][1:]), rel=1e-3)
  found = _click(browser, saved["centroids"][500], 500)
  assert found == {"cell": "500 is empty"}
  assert browser.get_log("browser") == []
  # Two quick clicks are no double click, which would move what is to be hit.
  x, y = browser.execute_script(_WHERE, 0.0, 0.0)
  browser.execute_script(
    "window.changes = []; document.querySelector('.map')"
    ".on('plotly_relayout', (change) => changes.push(...Object.keys(change)))")

  def twice(mouse):
    mouse.move_to_location(round(x), round(y))
    mouse.pause(0.2)
    for _ in range(2):
      mouse.click()

  _act(browser, twice)
  time.sleep(0.5)  # plotly waits for another click for so long.
  assert browser.execute_script("return changes") == []
