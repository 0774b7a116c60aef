"""Tests of looking at the elites that a run left behind."""

import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from qdrl_haiku import environments, learners, map_elites
from qdrl_haiku.programs import artifacts
from qdrl_haiku.programs.artifacts import export
from qdrl_haiku.programs.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness

_ENV = environments.Environment(environments.PointMaze(), episode_length=20)
# A run with a repertoire, where the elites of the latest are said to have
# ended, and how.
_SETTINGS = {
  "env_name": "point_maze", "episode_length": 20, "learner": "td3",
  "hidden_layer_sizes": ["4", "4"], "normalize_observations": False,
  "activation": "tanh"}
_TD3 = learners.td3(
  2, 2,
  configs.sized(
    learners.TD3Config, (4, 4), (4, 4), activation="tanh",
    normalize_observations=False))
_GRID = map_elites.Grid((4, 4), (-1.0, -1.0), (1.0, 1.0))
_FOUND = {0: (-0.9, -0.8), 3: (-0.9, 0.9), 14: (0.8, 0.1)}
_FEW = "--num_eval_episodes=6"


@jax.jit
def _draw(key):
  """Agents that differ."""
  states = jax.vmap(_TD3.init)(jax.random.split(key, 3))
  policies = jax.tree.map(
    lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape),
    states.policy_params)
  genotypes = jax.vmap(_TD3.genotype)(states._replace(policy_params=policies))
  hyperparams = {
    name: jnp.full(3, value) for name, value in _TD3.hyperparams.items()}
  return map_elites.Elite(genotypes, hyperparams)


@pytest.fixture(scope="module")
def elites():
  """The elites of the latest repertoire."""
  return jax.device_get(_draw(jax.random.key(100)))


@pytest.fixture(scope="module")
def logdir(elites, tmp_path_factory):
  """What a run leaves behind, as far as elites are concerned."""
  path = tmp_path_factory.mktemp("logs") / "elites"
  path.mkdir()
  RunDirectory(path).write_json("config.json", _SETTINGS)
  other = jax.device_get(_draw(jax.random.key(90)))
  for step, found in ((90, other), (100, elites)):
    empty = map_elites.Repertoire.init(
      jax.tree.map(lambda x: x[0], found), _GRID)
    jax.jit(map_elites.Repertoire.add)(
      empty, found, jnp.array([1.0, 2, 3]), jnp.array(list(_FOUND.values()))
    ).save(path / "repertoire" / f"{step}.npz")
  return path


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
  """The current directory, which is empty."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def _listing(folder):
  """All that is in a folder, its parts' sizes and times of change included."""
  return {
    str(path): (path.stat().st_mtime_ns, path.stat().st_size)
    for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize(("flags", "cell", "seed"), [
  ("--cell=3", 3, 0), ("--descriptor=0.2,0.1 --seed=7", 14, 7)])
def test_an_elite_acts_that_is_chosen_by_its_cell_or_by_what_is_near(
  flags, cell, seed, elites, logdir, capsys
):
  before = _listing(logdir)
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", *flags.split(), _FEW)
  assert outcome.code == 0, outcome.err
  assert _listing(logdir) == before
  first, *lines, last = outcome.out.splitlines()
  found = json.loads(last, parse_constant=pytest.fail)
  index = list(_FOUND).index(cell)
  agent = jax.tree.map(lambda x: x[index], elites.genotype)
  evaluation = artifacts.evaluate_agent(
    _ENV, _TD3, _TD3.from_genotype(agent), jax.random.key(seed), 6)
  x, y = _FOUND[cell]
  agent = f"cell {cell} of the repertoire of step 100, found at {x:g},{y:g}"
  assert found.pop("agent") == agent
  expected = artifacts.summarize_evaluation(evaluation, _ENV.descriptor)
  assert found == pytest.approx(
    expected | {"cell": cell, "cell_return": index + 1}, rel=1e-5)
  # What is printed for people are the same numbers.
  assert first == f"{logdir}: {agent}"
  assert {line.split()[0]: float(line.split()[1]) for line in lines} == {
    name: float(f"{value:g}") for name, value in found.items()}


def test_an_elite_is_exported_and_drawn(
  elites, logdir, here, capsys, monkeypatch
):
  told = {"step_seconds": 0.048, "warnings": ["too light"]}
  monkeypatch.setattr(environments, "policy_interface", lambda env: told)
  flags = (
    f"--logdir={logdir}", "--cell=14", "--num_eval_episodes=1",
    "--export=new/policy.npz", "--render=png", "--render_to=a/b.png")
  outcome = harness.run(capsys, "evaluate", *flags)
  assert outcome.code == 0, outcome.err
  assert "wrote new/policy.npz\nwrote a/b.png\n" in outcome.out
  files = {path for path in here.rglob("*") if path.is_file()}
  assert files == {here / "a" / "b.png", here / "new" / "policy.npz"}
  assert PIL.Image.open("a/b.png").size[0] > 100
  policy = export.load("new/policy.npz")
  observation = np.random.default_rng(0).uniform(-1, 1, (9, 2))
  agent = _TD3.from_genotype(jax.tree.map(lambda x: x[2], elites.genotype))
  np.testing.assert_allclose(
    policy(observation),
    _TD3.act_greedy(agent, jnp.array(observation, jnp.float32), ()).action,
    atol=1e-5)
  assert policy.config["info"]["agent"].startswith("cell 14 of")
  assert policy.config["info"].items() >= told.items()
  assert policy.config["info"]["episode_length"] == _ENV.episode_length
  assert outcome.err == "warning: too light\n"
  before = _listing(here)
  for name, kept in (("export", flags[3]), ("render_to", flags[5])):
    outcome = harness.run(capsys, "evaluate", *flags[:3], *flags[4:5], kept)
    harness.assert_refused(outcome, f"--{name}=.* is there; name a new file")
  assert _listing(here) == before


@pytest.mark.parametrize(("flags", "message"), [
  ("--skill=3", "--skill=3: .*td3, has no skills; leave it out"),
  ("--cell=2", "--cell=2: cell 2 is empty; the nearest .* is 3[.]"),
  ("--cell=16", "cell 16 is none of 0 to 15; the nearest that .* is 14[.]"),
  ("--descriptor=0.2", "--descriptor=0.2: .*give 2 finite numbers"),
  ("--sweep=masss:0.5:2:3", "--sweep=masss:0.5:2:3: "),
  ("--nobest --cell=3", "--nobest chooses no agent; give .* in its place"),
  ("--member=0", "has nothing in checkpoints/"),
  ("--best", "has nothing in best/"),
  ("--cell=3 --in=gymnasium", "--in=gymnasium: .*'gym:<id>'"),
  ("--cell=3 --in=gymnasium --sweep=mass:1:2:3", "--in=.* leave out --goal"),
  ("--cell=3 --render=html", "--render=html: .* take png or gif"),
  ("--cell=3 --render=mp4", "--render=mp4: .*install it .*or take"),
  ("--cell=3 --export=a.npz --opset=18", "--opset=18 has no effect without"),
  ("--cell=3 --export=file/a.npz", "file/a[.].* can't be written .File ex")])
def test_unknown_is_refused(flags, message, logdir, here, capsys, monkeypatch):
  monkeypatch.setenv("PATH", "")  # Without ffmpeg.
  (here / "file").touch()
  before = _listing(logdir)
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", *flags.split())
  harness.assert_refused(outcome, message)
  assert _listing(logdir) == before
  assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.slow
def test_an_agent_of_mjx_does_in_gymnasium_what_it_does_here(
  here, capsys, monkeypatch
):
  pytest.importorskip("gymnasium")
  monkeypatch.setitem(sys.modules, "imageio", types.ModuleType("imageio"))
  # All episodes begin alike.
  flags = (
    "--env_name=gym:InvertedPendulum-v5", "--env_argument=reset_noise_scale=0",
    "--learner=td3", "--hidden_layer_sizes=4,4", "--num_timesteps=64",
    "--perturbation_interval=64", "--min_replay_size=64", "--log_to=",
    "--num_eval_episodes=1", "--logdir=run")
  outcome = harness.run(capsys, "train", *flags)
  assert outcome.code == 0, outcome.err
  outcome = harness.run(
    capsys, "evaluate", "--logdir=run", "--in=gymnasium", _FEW)
  assert outcome.code == 0, outcome.err
  found = json.loads(outcome.out.splitlines()[-1])
  assert 1 < found["length_mean"] < 1000
  for name in ("mean", "mean_low", "mean_high"):
    assert found[f"gymnasium/{name}"] == found[name]
    assert found[f"gymnasium/length_{name}"] == found[f"length_{name}"]
