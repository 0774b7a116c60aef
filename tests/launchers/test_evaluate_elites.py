"""Tests of looking at elites of a repertoire, and of drawing what they do."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from qdrl_haiku import environments, learners, map_elites
from qdrl_haiku.artifacts import export
from qdrl_haiku.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness, test_evaluate, untrained

_SETTINGS = {
  "env_name": "point_maze",
  "episode_length": 20,
  "learner": "td3",
  "hidden_layer_sizes": ["4", "4"],
  "normalize_observations": False,
  "activation": "tanh",
}
_LEARNER = learners.td3(
  2,
  2,
  configs.sized(
    learners.TD3Config,
    (4, 4),
    (4, 4),
    activation="tanh",
    normalize_observations=False,
  ),
)
_GRID = map_elites.Grid((4, 4), (-1.0, -1.0), (1.0, 1.0))
# Where the elites of the latest repertoire are said to have ended, and how.
_FOUND = {0: (-0.9, -0.8), 3: (-0.9, 0.9), 14: (0.8, 0.1)}
_FEW = "--num_eval_episodes=6"


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with untrained.quick_compilation():
    yield


@functools.cache
def _elites(seed):
  """Agents that differ."""
  return jax.device_get(jax.jit(_draw, static_argnums=0)(seed))


def _draw(seed):
  states = jax.vmap(_LEARNER.init)(jax.random.split(jax.random.key(seed), 3))
  policies = jax.tree.map(
    lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape),
    states.policy_params,
  )
  genotypes = jax.vmap(_LEARNER.genotype)(
    states._replace(policy_params=policies)
  )
  hyperparams = {
    name: jnp.full(3, value) for name, value in _LEARNER.hyperparams.items()
  }
  return map_elites.Elite(genotypes, hyperparams)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """What a run leaves behind, as far as elites are concerned."""
  path = tmp_path_factory.mktemp("logs") / "run"
  path.mkdir()
  RunDirectory(path).write_json("config.json", _SETTINGS)
  for step in (90, 100):
    elites = _elites(seed=step)
    empty = map_elites.Repertoire.init(
      jax.tree.map(lambda x: x[0], elites), _GRID
    )
    jax.jit(map_elites.Repertoire.add)(
      empty, elites, jnp.array([1.0, 2, 3]), jnp.array(list(_FOUND.values()))
    ).save(path / "repertoire" / f"{step}.npz")
  return path


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
  """The current directory, which is empty."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def _state(index):
  """The agent of one of the elites of the latest repertoire."""
  return _LEARNER.from_genotype(
    jax.tree.map(lambda x: x[index], _elites(seed=100).genotype)
  )


@pytest.mark.parametrize(
  ("flag", "cell"),
  [
    ("--cell=3", 3),
    ("--descriptor=-0.7,-0.7", 0),
    ("--descriptor=0.2,0.1", 14),
  ],
)
def test_an_elite_is_chosen_by_its_cell_or_by_what_is_near(
  flag, cell, run, capsys
):
  before = test_evaluate._listing(run)
  found = test_evaluate._evaluate(capsys, run, flag, _FEW)
  index = list(_FOUND).index(cell)
  test_evaluate._assert_summary(
    found, test_evaluate._returns(_state(index), 6)
  )
  assert found["cell"] == cell
  assert found["cell_return"] == index + 1
  x, y = _FOUND[cell]
  assert found["agent"] == (
    f"cell {cell} of the repertoire of step 100, found at {x:g},{y:g}"
  )
  assert test_evaluate._listing(run) == before


def test_lengths_and_descriptors_are_reported(run, capsys):
  found = test_evaluate._evaluate(capsys, run, "--cell=3", _FEW)
  for name in ("length_mean", "length_min", "length_max"):
    assert found[name] == 20
  key = jax.random.fold_in(jax.random.key(0), 0)
  env = environments.create("point_maze", episode_length=20)
  env_states, agent = env.reset(jax.random.split(key, 6)), _state(1)
  step = jax.jit(
    lambda env_states: env.advance(
      env_states, _LEARNER.act_greedy(agent, env_states.obs)
    )
  )
  for _ in range(20):
    env_states = step(env_states)
  x, y = np.mean(np.asarray(env_states.obs, np.float64), axis=0)
  assert found["descriptor/x"] == pytest.approx(x, abs=1e-4)
  assert found["descriptor/y"] == pytest.approx(y, abs=1e-4)


def test_an_elite_is_exported_as_it_acts(run, here, capsys):
  test_evaluate._evaluate(
    capsys, run, "--cell=14", _FEW, "--export=new/policy.npz"
  )
  policy = export.load(here / "new" / "policy.npz")
  observation = np.random.default_rng(0).uniform(-1, 1, (9, 2))
  np.testing.assert_allclose(
    policy(observation),
    _LEARNER.act_greedy(_state(2), jnp.array(observation, jnp.float32)),
    atol=1e-5,
  )
  assert policy.config["info"]["agent"].startswith("cell 14 of")


@pytest.mark.parametrize(
  ("flags", "name"),
  [
    pytest.param(
      ("--descriptor=0.5,0", "--render=gif"),
      "run-descriptor-0.5,0.gif",
      marks=pytest.mark.slow,
    ),
    (("--cell=3", "--render=png", "--render_to=a/b.png"), "a/b.png"),
  ],
)
def test_the_episode_is_drawn_to_a_new_file(flags, name, run, here, capsys):
  arguments = (f"--logdir={run}", *flags, _FEW)
  outcome = harness.run(capsys, "evaluate", *arguments)
  assert outcome.code == 0, outcome.err
  assert f"wrote {name}\n" in outcome.out
  files = [path for path in here.rglob("*") if path.is_file()]
  assert files == [here / name]
  image = PIL.Image.open(files[0])
  assert getattr(image, "n_frames", 1) == (21 if name.endswith("gif") else 1)
  before = test_evaluate._listing(here)
  outcome = harness.run(capsys, "evaluate", *arguments)
  assert outcome.code == 2
  assert f"--render_to={name} is there; name a new file" in outcome.err
  assert test_evaluate._listing(here) == before


def test_what_is_drawn_is_the_first_episode(run, capsys, monkeypatch):
  from qdrl_haiku.drawing import films

  drawn = []
  monkeypatch.setattr(films, "render", lambda *args: drawn.append(args))
  test_evaluate._evaluate(
    capsys, run, "--cell=3", "--render=gif", "--seed=4", _FEW
  )
  ((path, file_format, scene, positions, title),) = drawn
  assert (path, file_format) == ("run-cell-3.gif", "gif")
  assert title.startswith("point_maze: cell 3 of")
  np.testing.assert_array_equal(scene.goal, environments.PointMaze().goal)
  key = jax.random.fold_in(jax.random.key(4), 0)
  env = environments.create("point_maze", episode_length=20)
  state = env.reset(jax.random.split(key, 6))
  np.testing.assert_allclose(positions[0], state.obs[0], rtol=1e-6)
  assert positions.shape == (21, 2)


def _refused(capsys, run, arguments, message):
  before = test_evaluate._listing(run)
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={run}", *arguments.split()
  )
  assert outcome.code == 2
  assert outcome.out == ""
  assert outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
  assert test_evaluate._listing(run) == before


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ("--cell=2", "--cell=2: cell 2 is empty; the nearest .* is 3[.]"),
    ("--cell=16", "--cell=16: cell 16 is none of 0 to 15; .* is 14[.]"),
    ("--cell=-1", "cell must be at least 0, got -1"),
    ("--cell=x", "--cell=x .*give an integer"),
    ("--descriptor=0.2", "--descriptor=0.2: .*give 2 finite numbers"),
    ("--descriptor=0.2,inf", "descriptor must be finite, got inf"),
    ("--descriptor=a,b", "--descriptor=a,b is no list of numbers"),
    ("--descriptor=", "--descriptor=: .*give 2 finite numbers"),
    ("--best --cell=3", "--best and --cell choose one agent each; give one"),
    ("--cell=3 --member=0", "--cell and --member choose"),
    ("--cell=3 --descriptor=0,0", "--cell and --descriptor choose"),
    ("--nobest", "--nobest chooses no agent; give --member or --cell"),
    ("--cell=3 --skill=1", "--skill=1, .* td3, has no skills"),
    ("--cell=3 --hidden_layer_sizes=5", "--hidden_layer_sizes is no flag"),
    ("--member=0", "has nothing in checkpoints/"),
    ("--best", "has nothing in best/"),
    ("--cell=3 --num_eval_episodes=2147483647", "at most 100000"),
    ("--cell=3 --render=pgn", "render='pgn' is unknown; did you mean 'png'"),
    ("--cell=3 --render=html", "--render=html: .* take png or gif"),
    ("--cell=3 --render_to=a.gif", "--render_to=a.gif has no effect: without"),
    ("--cell=3 --render=png --render_to=a.gif", "doesn't end in .png"),
  ],
)
def test_what_there_is_not_is_refused(arguments, message, run, here, capsys):
  _refused(capsys, run, arguments, message)
  assert list(here.iterdir()) == []


def test_a_film_that_needs_ffmpeg_is_refused_without(run, capsys, monkeypatch):
  monkeypatch.setenv("PATH", "")
  _refused(
    capsys, run, "--cell=3 --render=mp4", "--render=mp4: .*install it .*or take"
  )


def test_nothing_is_drawn_into_the_run_unless_asked(run, capsys, monkeypatch):
  monkeypatch.chdir(run / "repertoire")
  _refused(
    capsys, run, "--cell=3 --render=png", "into the run; name .*--render_to"
  )


@pytest.mark.parametrize(
  "flags", ["--export=file/a.npz", "--render=png --render_to=file/a.png"]
)
def test_where_no_file_can_be_is_said_at_once(flags, run, here, capsys):
  (here / "file").touch()
  _refused(
    capsys, run, f"--cell=3 {flags}", "file/a[.].* can't be written in .*file;"
  )
