"""Tests of looking at the agents and the elites that a run left behind."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from qdrl_haiku import (
  artifacts,
  environments,
  experiment,
  learners,
  map_elites,
  skills,
)
from qdrl_haiku.artifacts import export
from qdrl_haiku.drawing import films
from qdrl_haiku.storage.directory import RunDirectory
from tests import configs
from tests.launchers import harness, untrained
from tests.learners import reference

_SMALL = (
  "--env_name=point_maze", "--episode_length=20", "--hidden_layer_sizes=4,4",
  "--activation=tanh", "--num_envs=2", "--num_timesteps=16",
  "--nouse_tensorboard",
)  # fmt: skip
_K = 17
# Launcher and flags of each run: more skills than episodes by default, skills
# that are numbers, and agents without skills.
_RUNS = {
  "discrete": (
    "train", "--learner=diayn", f"--num_skills={_K}", "--num_seeds=2",
    "--eval_interval=8", "--nonormalize_observations",
  ),
  "circle": (
    "train_pbt", "--learner=diayn", "--skill_type=continuous",
    "--population_size=2", "--perturbation_interval=8", "--num_parents=1",
    "--num_replaced=1", "--nonormalize_observations",
  ),
  "sac": (
    "train_pbt", "--learner=sac", "--population_size=3",
    "--perturbation_interval=8", "--num_parents=1", "--num_replaced=1",
  ),
}  # fmt: skip
_ENV = environments.Environment(environments.PointMaze(), episode_length=20)
_ADVANCE = jax.jit(_ENV.advance)
# A run with a repertoire, where the elites of the latest are said to have
# ended, and how.
_SETTINGS = {
  "env_name": "point_maze", "episode_length": 20, "learner": "td3",
  "hidden_layer_sizes": ["4", "4"], "normalize_observations": False,
  "activation": "tanh",
}  # fmt: skip
_TD3 = learners.td3(
  2, 2,
  configs.sized(
    learners.TD3Config, (4, 4), (4, 4), activation="tanh",
    normalize_observations=False,
  ),
)  # fmt: skip
_GRID = map_elites.Grid((4, 4), (-1.0, -1.0), (1.0, 1.0))
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
  states = jax.vmap(_TD3.init)(jax.random.split(jax.random.key(seed), 3))
  policies = jax.tree.map(
    lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape),
    states.policy_params,
  )
  genotypes = jax.vmap(_TD3.genotype)(states._replace(policy_params=policies))
  hyperparams = {
    name: jnp.full(3, value) for name, value in _TD3.hyperparams.items()
  }
  return map_elites.Elite(genotypes, hyperparams)


def _write_elites(path):
  """Writes what a run leaves behind, as far as elites are concerned."""
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


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
  """The directory of a run by name, begun when it is first asked for."""
  logs = tmp_path_factory.mktemp("logs")

  @functools.cache
  def start(name):
    if name == "elites":
      _write_elites(logs / name)
    else:
      launcher, *flags = _RUNS[name]
      untrained.start(launcher, *_SMALL, *flags, f"--logdir={logs / name}")
    return logs / name

  return start


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
  """The current directory, which is empty."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def _listing(folder):
  """All that is in a folder, its parts' sizes and times of change included."""
  return {
    str(path): (path.stat().st_mtime_ns, path.stat().st_size)
    for path in [folder, *folder.rglob("*")]
  }


def _evaluate(capsys, logdir, *arguments):
  """What is printed: its JSON line, as `json` reads it."""
  before = _listing(logdir)
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", *arguments
  )
  assert outcome.code == 0, outcome.err
  assert _listing(logdir) == before
  return json.loads(
    outcome.out.splitlines()[-1], parse_constant=pytest.fail
  )


def _returns(state, num_episodes, skill=None, seed=0):
  """The returns of greedy episodes, of a policy in float64.

  The state is of one agent, the skill [K] or [N, K].
  """
  params = reference.float64(getattr(state, "agent", state).policy_params)
  key = jax.random.fold_in(jax.random.key(seed), 0)
  state = _ENV.reset(jax.random.split(key, num_episodes))
  returns = np.zeros(num_episodes)
  for _ in range(20):
    observation = np.asarray(state.obs, np.float64)
    if skill is not None:
      skill = np.broadcast_to(skill, (num_episodes, np.shape(skill)[-1]))
      observation = np.concatenate([observation, skill], axis=1)
    action = np.tanh(reference.mlp(params, observation)[:, :2])
    state = _ADVANCE(state, np.float32(action))
    returns += np.asarray(state.reward, np.float64)
  return returns


def _assert_summary(found, returns):
  """Compares what was printed with NumPy on the returns."""
  cut = len(returns) // 4
  middle = np.sort(returns)[cut : len(returns) - cut]
  assert found["num_episodes"] == len(returns)
  for name, value in (
    ("mean", np.mean(returns)),
    ("std", np.std(returns)),
    ("iqm", np.mean(middle)),
  ):
    assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-3), name
  assert found["iqm_low"] <= found["iqm"] <= found["iqm_high"]


def _learner(logdir):
  return experiment.make_agent(experiment.read_config(str(logdir))).learner


def _member(logdir, i):
  states, _ = artifacts.read_agents(_learner(logdir), str(logdir))
  return jax.tree.map(lambda x: x[i], states)


def _best(logdir):
  return artifacts.read_best(_learner(logdir), str(logdir))[0]


def _elite(index):
  """The agent of one of the elites of the latest repertoire."""
  return _TD3.from_genotype(
    jax.tree.map(lambda x: x[index], _elites(seed=100).genotype)
  )


@pytest.mark.slow
def test_the_best_agent_acts_for_sixteen_episodes_by_default(run_of, capsys):
  found = _evaluate(capsys, run_of("sac"))
  _assert_summary(found, _returns(_best(run_of("sac")), 16))
  lines = (run_of("sac") / "metrics.jsonl").read_text().splitlines()
  best = max(map(json.loads, lines), key=lambda row: row["pbt/best_return"])
  assert found["agent"] == f"best agent, of step {best['step']}"


def test_members_of_the_latest_checkpoint_can_be_chosen(run_of, capsys):
  for i in range(2):
    found = _evaluate(capsys, run_of("sac"), f"--member={i}", _FEW)
    _assert_summary(found, _returns(_member(run_of("sac"), i), 6))
    assert found["agent"] == f"member {i} after generation 2"


def test_the_seed_decides_the_numbers(run_of, capsys):
  found = [
    _evaluate(capsys, run_of("sac"), f"--seed={seed}", _FEW)
    for seed in (7, 7, 8)
  ]
  assert found[0] == found[1]
  assert found[0]["mean"] != found[2]["mean"]
  _assert_summary(found[0], _returns(_best(run_of("sac")), 6, seed=7))


@pytest.mark.slow
def test_all_skills_are_evaluated_by_default(run_of, capsys):
  """Also where there are more of them than other agents have episodes."""
  found = _evaluate(capsys, run_of("discrete"))
  num = found["num_episodes"]
  assert num >= _K
  dealt = np.eye(_K)[np.arange(num) % _K]
  _assert_summary(found, _returns(_best(run_of("discrete")), num, dealt))


@pytest.mark.slow
def test_one_skill_of_one_member_is_evaluated(run_of, capsys):
  """It needs no episode for each of the others."""
  found = _evaluate(
    capsys, run_of("discrete"), "--skill=3", "--member=1", _FEW
  )
  state = _member(run_of("discrete"), 1)
  _assert_summary(found, _returns(state, 6, np.eye(_K)[3]))
  assert found["agent"] == "member 1 after generation 2, skill 3"


@pytest.mark.slow
@pytest.mark.parametrize(
  ("skill", "direction"),
  [("0.6,0.8", (0.6, 0.8)), ("-3,0", (-1.0, 0.0))],
)
def test_one_direction_is_evaluated_by_its_numbers(
  skill, direction, run_of, capsys
):
  found = _evaluate(capsys, run_of("circle"), f"--skill={skill}", _FEW)
  _assert_summary(found, _returns(_best(run_of("circle")), 6, direction))


@pytest.mark.slow
def test_drawn_directions_are_evaluated_by_default(run_of, capsys):
  found = _evaluate(capsys, run_of("circle"), _FEW)
  key = jax.random.fold_in(jax.random.key(0), 0)
  env = environments.SkillEnvironment(_ENV, skills.sphere(2), "fixed")
  drawn = env.reset(jax.random.split(key, 6)).info["skill"]
  _assert_summary(found, _returns(_best(run_of("circle")), 6, drawn))


@pytest.mark.parametrize(
  ("flag", "cell"),
  [
    ("--cell=3", 3),
    ("--descriptor=-0.7,-0.7", 0),
    ("--descriptor=0.2,0.1", 14),
  ],
)
def test_an_elite_is_chosen_by_its_cell_or_by_what_is_near(
  flag, cell, run_of, capsys
):
  found = _evaluate(capsys, run_of("elites"), flag, _FEW)
  index = list(_FOUND).index(cell)
  _assert_summary(found, _returns(_elite(index), 6))
  assert (found["cell"], found["cell_return"]) == (cell, index + 1)
  x, y = _FOUND[cell]
  assert found["agent"] == (
    f"cell {cell} of the repertoire of step 100, found at {x:g},{y:g}"
  )


def test_lengths_and_descriptors_are_reported(run_of, capsys):
  found = _evaluate(capsys, run_of("elites"), "--cell=3", _FEW)
  for name in ("length_mean", "length_min", "length_max"):
    assert found[name] == 20
  key = jax.random.fold_in(jax.random.key(0), 0)
  state, agent = _ENV.reset(jax.random.split(key, 6)), _elite(1)
  for _ in range(20):
    state = _ADVANCE(state, _TD3.act_greedy(agent, state.obs))
  x, y = np.mean(np.asarray(state.obs, np.float64), axis=0)
  assert found["descriptor/x"] == pytest.approx(x, abs=1e-4)
  assert found["descriptor/y"] == pytest.approx(y, abs=1e-4)


def test_an_elite_is_exported_as_it_acts(run_of, here, capsys):
  _evaluate(
    capsys, run_of("elites"), "--cell=14", _FEW, "--export=new/policy.npz"
  )
  policy = export.load(here / "new" / "policy.npz")
  observation = np.random.default_rng(0).uniform(-1, 1, (9, 2))
  np.testing.assert_allclose(
    policy(observation),
    _TD3.act_greedy(_elite(2), jnp.array(observation, jnp.float32)),
    atol=1e-5,
  )
  assert policy.config["info"]["agent"].startswith("cell 14 of")


@pytest.mark.parametrize(
  ("flags", "name"),
  [
    pytest.param(
      ("--descriptor=0.5,0", "--render=gif"),
      "elites-descriptor-0.5,0.gif",
      marks=pytest.mark.slow,
    ),
    (("--cell=3", "--render=png", "--render_to=a/b.png"), "a/b.png"),
  ],
)
def test_the_episode_is_drawn_to_a_new_file(flags, name, run_of, here, capsys):
  arguments = (f"--logdir={run_of('elites')}", *flags, _FEW)
  outcome = harness.run(capsys, "evaluate", *arguments)
  assert outcome.code == 0, outcome.err
  assert f"wrote {name}\n" in outcome.out
  files = [path for path in here.rglob("*") if path.is_file()]
  assert files == [here / name]
  image = PIL.Image.open(files[0])
  assert getattr(image, "n_frames", 1) == (21 if name.endswith("gif") else 1)
  before = _listing(here)
  outcome = harness.run(capsys, "evaluate", *arguments)
  assert outcome.code == 2
  assert f"--render_to={name} is there; name a new file" in outcome.err
  assert _listing(here) == before


def test_what_is_drawn_is_the_first_episode(run_of, capsys, monkeypatch):

  drawn = []
  monkeypatch.setattr(films, "render", lambda *args: drawn.append(args))
  flags = ("--cell=3", "--render=gif", "--seed=4", _FEW)
  _evaluate(capsys, run_of("elites"), *flags)
  ((path, file_format, scene, positions, title),) = drawn
  assert (path, file_format) == ("elites-cell-3.gif", "gif")
  assert title.startswith("point_maze: cell 3 of")
  np.testing.assert_array_equal(scene.goal, environments.PointMaze().goal)
  key = jax.random.fold_in(jax.random.key(4), 0)
  state = _ENV.reset(jax.random.split(key, 6))
  np.testing.assert_allclose(positions[0], state.obs[0], rtol=1e-6)
  assert positions.shape == (21, 2)


def test_what_is_printed_for_people_are_the_same_numbers(run_of, capsys):
  logdir = run_of("elites")
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", "--cell=3", _FEW
  )
  first, *lines, last = outcome.out.splitlines()
  numbers = json.loads(last)
  assert first == f"{logdir}: {numbers.pop('agent')}"
  assert {line.split()[0]: float(line.split()[1]) for line in lines} == {
    name: float(f"{value:g}") for name, value in numbers.items()
  }


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    ("sac", "--member=3", "--member=3, but .* 3 agents; .* 0 to 2"),
    ("sac", "--skill=3", "--skill=3, .*sac, has no skills; leave it out"),
    ("sac", "--num_eval_episodes=99999999999", "at most 100000, got 9{11}"),
    ("sac", "--env_name=point_mase", "'point_mase' .*'point_maze'"),
    ("sac", "--learner=td3", "--learner is no flag of this launcher"),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ("discrete", "--skill=17", "skill is 17: .* 0 to 16"),
        ("discrete", "--skill=two", "--skill=two is neither .*like 3 or"),
        ("discrete", "--skill=0.6,0.8", "skill is .*one-hot vector of 17"),
        ("discrete", "--num_eval_episodes=3", "episodes=3 can't .*_skills=17"),
        ("circle", "--skill=1,nan", "give 2 finite"),
      )
    ),
    ("elites", "--cell=2", "--cell=2: cell 2 is empty; the nearest .* is 3[.]"),
    ("elites", "--cell=16", "--cell=16: cell 16 is none of 0 to 15; .* is 14"),
    ("elites", "--descriptor=0.2", "--descriptor=0.2: .*give 2 finite numbers"),
    ("elites", "--best --cell=3", "--best and --cell choose one agent each;"),
    ("elites", "--nobest", "--nobest chooses no agent; give --member or"),
    ("elites", "--member=0", "has nothing in checkpoints/"),
    ("elites", "--best", "has nothing in best/"),
    ("elites", "--cell=3 --render=html", "--render=html: .* take png or gif"),
    ("elites", "--render_to=a.gif", "_to=a.gif has no effect: --render=None"),
    ("elites", "--render=png --render_to=a.gif", "doesn't end in .png"),
    ("elites", "--export=file/a.npz", "file/a[.].* can't be written in .*file"),
  ],
)
def test_what_there_is_not_is_refused(
  name, arguments, message, run_of, here, capsys
):
  (here / "file").touch()
  before = _listing(run_of(name))
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={run_of(name)}", *arguments.split()
  )
  assert (outcome.code, outcome.out) == (2, "")
  assert outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
  assert _listing(run_of(name)) == before
  assert [path.name for path in here.iterdir()] == ["file"]


def test_a_film_that_needs_ffmpeg_is_refused_without(
  run_of, capsys, monkeypatch
):
  monkeypatch.setenv("PATH", "")
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={run_of('elites')}", "--cell=3",
    "--render=mp4",
  )  # fmt: skip
  assert re.search("--render=mp4: .*install it .*or take", outcome.err)


def test_nothing_is_drawn_into_the_run_unless_asked(
  run_of, capsys, monkeypatch
):
  logdir = run_of("elites")
  monkeypatch.chdir(logdir / "repertoire")
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", "--cell=3", "--render=png"
  )
  assert re.search("into the run; name .*--render_to", outcome.err)
