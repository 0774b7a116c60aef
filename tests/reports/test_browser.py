"""Tests of reports in a browser: quiet, self-contained, and quick to answer."""

import json
import shutil
import time

import numpy as np
import pytest

from qdrl_haiku import map_elites, reports
from tests.launchers import harness, untrained
from tests.reports import common

webdriver = pytest.importorskip("selenium.webdriver")
_PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    not all(_PROGRAMS.values()), reason="chromium or chromedriver is missing"
  ),
]
_ARGUMENTS = (
  "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic",
  "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-proxy-server",
  "--window-size=1280,1000",
)  # fmt: skip
_SECONDS = 30
_TRAINING = (
  "--env_name=point_maze", "--learner=td3", "--episode_length=20",
  "--hidden_layer_sizes=4", "--grid_shape=8,4", "--num_initial_genotypes=8",
  "--gradient_population_size=4", "--num_replaced_by_best=1",
  "--num_replaced_by_samples=1", "--variation_batch_size=4", "--num_envs=4",
  "--batch_size=8", "--min_replay_size=16", "--num_eval_episodes=1",
  "--perturbation_interval=40", "--num_generations=3", "--nouse_tensorboard",
)  # fmt: skip
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
  options.set_capability(
    "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
  )
  service = webdriver.ChromeService(_PROGRAMS["chromedriver"])
  driver = webdriver.Chrome(options, service)
  driver.set_page_load_timeout(_SECONDS)
  yield driver
  driver.quit()


def _logged(browser):
  """What pages asked for since the last time, and their complaints."""
  messages = [
    json.loads(entry["message"])["message"]
    for entry in browser.get_log("performance")
  ]
  requests = [
    message["params"]["request"]["url"]
    for message in messages
    if message["method"] == "Network.requestWillBeSent"
  ]
  return requests, browser.get_log("browser")


def _open(browser, path):
  """Opens a page, draws all figures by scrolling, and counts them."""
  browser.get("about:blank")
  _logged(browser)  # Of the browser's own first page.
  browser.get(path.as_uri())
  places = browser.find_elements("css selector", ".plot, .map")
  for place in places:
    browser.execute_script("arguments[0].scrollIntoView()", place)
    _wait(lambda place=place: place.find_elements("css selector", ".main-svg"))
  # Then the fittest elite is chosen, which draws once more.
  _wait(lambda: not browser.find_elements("css selector", "table:empty"))
  return len(places)


def _wait(condition):
  """Waits until something is so, and returns it."""
  end = time.monotonic() + _SECONDS
  while not (found := condition()):
    assert time.monotonic() < end, "the page doesn't answer"
    time.sleep(0.02)
  return found


def _assert_quiet(browser):
  requests, complaints = _logged(browser)
  assert complaints == []
  assert requests
  assert {url.partition(":")[0] for url in requests} <= {"file", "data"}


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


def _assert_numbers(found, saved, cell):
  """Compares what the page says of a cell with the repertoire's file."""
  expected = {
    name.rpartition("/")[2]: saved[name][saved["cells"] == cell][0]
    for name in saved
    if name.startswith("genotypes/hyperparams/")
  }
  names = json.loads(saved["config"].item())["config"]["descriptor_names"]
  expected |= dict(zip(names, saved["descriptors"][cell], strict=True))
  expected["episode return"] = saved["fitness"][cell]
  for name, value in expected.items():
    assert float(found[name]) == pytest.approx(value, rel=1e-5), name
  assert len(expected) > 4


@pytest.mark.parametrize("kind", ["grid", "cvt", "three_axes"])
def test_a_page_with_ten_thousand_cells_answers_a_click(
  kind, browser, tmp_path
):
  if kind == "cvt":  # Of any centroids.
    rng = np.random.default_rng(0)
    centroids = rng.uniform(size=(10_000, 2)).astype(np.float32)
    tessellation = map_elites.CVT(centroids, (0.0, 0.0), (1.0, 1.0))
  else:
    shape = (100, 100) if kind == "grid" else (25, 20, 20)
    bounds = (0.0,) * len(shape), (1.0, 50.0, 1.0)[: len(shape)]
    tessellation = map_elites.Grid(shape, *bounds)
  directory = common.write_population(tmp_path / "run")
  saved_path = common.write_repertoire(
    directory, common.repertoire(tessellation)
  )
  runs = reports.read_runs([str(directory.path)])
  elites, _ = reports.read_elites(directory.path)
  page = tmp_path / "page.html"
  page.write_text(reports.render(runs, {"run": elites}, {}))
  assert _open(browser, page) == 5
  saved = dict(np.load(saved_path))
  cells = saved["cells"][[17, 3000, -5]]
  if kind == "three_axes":  # The fittest are on top.
    cells = np.argsort(saved["fitness"])[-3:]
  for cell in cells:
    found = _click(browser, saved["centroids"][cell], cell)
    _assert_numbers(found, saved, cell)
  _assert_quiet(browser)
  if kind == "grid":
    empty = np.flatnonzero(saved["fitness"] == -np.inf)[5]
    found = _click(browser, saved["centroids"][empty], empty)
    assert found == {"cell": f"{empty} is empty"}


def test_strange_names_are_shown_as_they_are(browser, tmp_path):
  strange = "<img src='https://example.org/x.png' onerror='alert(1)'>&amp;"
  common.write_population(tmp_path / "run", rename=strange, env_name=strange)
  (run,) = reports.read_runs([str(tmp_path / "run")])
  page = tmp_path / "page.html"
  page.write_text(reports.render([run._replace(name=strange)], {}, {}))
  _open(browser, page)
  _assert_quiet(browser)
  assert browser.find_elements("css selector", "img") == []
  titles = browser.execute_script(
    "return [...document.querySelectorAll('.annotation-text, h2, td')]"
    ".map((x) => x.textContent)"
  )
  # Of the section, in the table of runs, and over a plot.
  assert titles.count(strange) == 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A tiny run of ME-PBT, and the page about it."""
  path = tmp_path_factory.mktemp("logs")
  with untrained.quick_compilation():
    harness.start("train_me_pbt", *_TRAINING, f"--logdir={path}/maze")
    before = _listing(path / "maze")
    harness.start(
      "report", f"--logdir={path}/maze", f"--output={path}/page.html"
    )
  assert _listing(path / "maze") == before
  return path


def _listing(folder):
  return {
    str(path): (path.stat().st_mtime_ns, path.stat().st_size)
    for path in [folder, *folder.rglob("*")]
  }


def test_two_quick_clicks_are_no_double_click(browser, trained):
  """Which would move what is about to be hit."""
  _open(browser, trained / "page.html")
  x, y = browser.execute_script(_WHERE, 0.0, 0.0)
  browser.execute_script(
    "window.changes = []; document.querySelector('.map')"
    ".on('plotly_relayout', (change) => changes.push(...Object.keys(change)))"
  )

  def twice(mouse):
    mouse.move_to_location(round(x), round(y))
    mouse.pause(0.2)
    for _ in range(2):
      mouse.click()

  _act(browser, twice)
  time.sleep(0.5)  # plotly waits for another click for so long.
  assert browser.execute_script("return changes") == []


def test_the_report_of_a_real_run_shows_its_elites(browser, trained):
  _open(browser, trained / "page.html")
  saved = dict(np.load(trained / "maze" / "repertoire" / "120.npz"))
  again = dict(np.load(trained / "maze" / "reevaluation" / "120.npz"))
  assert len(saved["cells"]) > 1
  for cell in saved["cells"][:2]:
    found = _click(browser, saved["centroids"][cell], cell)
    _assert_numbers(found, saved, cell)
    looked = again["fitness"][again["cells"] == cell][0]
    mean, spread = found["episode return, 2 times again"].split(" ± ")
    assert float(mean) == pytest.approx(looked.mean(), rel=1e-4)
    assert float(spread) == pytest.approx(looked.std(ddof=1), rel=1e-4)
    assert float(found["return of the episode below"]) < 40
    shown = {
      name: (x, y)
      for name, x, y in browser.execute_script(
        "return document.querySelector('.way').data"
        ".map(({name, x, y}) => [name, x, y])"
      )
    }
    x, y = shown["way"]
    assert len(x) == 21 and shown["end"] == ([x[-1]], [y[-1]])
    # Around where episodes start.
    assert abs(x[0] + 0.8) <= 0.05 and abs(y[0] + 0.8) <= 0.05
    # What an episode's descriptor is; episodes differ in their starts alone.
    np.testing.assert_allclose(
      (x[-1], y[-1]), saved["descriptors"][cell], atol=0.5
    )
  _assert_quiet(browser)
  assert "point_maze" in browser.page_source
