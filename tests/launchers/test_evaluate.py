"""Tests of looking at the agents that a run left behind."""

import functools
import json
import re
import sys

import jax
import numpy as np
import pytest

from qdrl_haiku import artifacts, environments, learners, skills
from qdrl_haiku.artifacts import export
from tests import configs
from tests.launchers import harness, untrained
from tests.learners import reference

_SMALL = (
  "--env_name=point_maze",
  "--episode_length=20",
  "--hidden_layer_sizes=4,4",
  "--activation=tanh",
  "--num_envs=2",
  "--num_timesteps=16",
  "--nouse_tensorboard",
)
_K = 17
_PRIORS = {"discrete": skills.categorical(_K), "circle": skills.sphere(2)}
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
  "train_sac": (
    "train", "--learner=sac", "--num_seeds=2", "--eval_interval=8"
  ),
  "pbt_sac": (
    "train_pbt", "--learner=sac", "--population_size=3",
    "--perturbation_interval=8", "--num_parents=1", "--num_replaced=1",
  ),
}  # fmt: skip
_ENV = environments.Environment(environments.PointMaze(), episode_length=20)
_ADVANCE = jax.jit(_ENV.advance)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
  with untrained.quick_compilation():
    yield


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
  """The folder of the runs, each begun when it is first asked for."""
  return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def run_of(logs):
  """The directory of a run by name."""

  @functools.cache
  def start(name):
    launcher, *flags = _RUNS[name]
    untrained.start(launcher, *_SMALL, *flags, f"--logdir={logs / name}")
    return logs / name

  return start


def _evaluate(capsys, logdir, *arguments):
  """What is printed: its JSON line, as `json` reads it."""
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={logdir}", *arguments
  )
  assert outcome.code == 0, outcome.err
  return json.loads(
    outcome.out.splitlines()[-1], parse_constant=pytest.fail
  )


def _learner(name):
  """The learner of a run."""
  prior = _PRIORS.get(name)
  sizes = ((4, 4), (4, 4))
  if prior is None:
    return learners.sac(
      2, 2, configs.sized(learners.SACConfig, *sizes, activation="tanh")
    )
  base = learners.sac(2 + prior.size, 2, configs.sized(
    learners.SACConfig, *sizes, activation="tanh", normalize_observations=False
  ))
  config = learners.DIAYNConfig("descriptor", (4, 4), "tanh")
  return learners.diayn(base, 2, prior, 2, config)


def _returns(state, num_episodes, skill=None, seed=0):
  """The returns of greedy episodes, of a policy in float64.

  Args:
    state: of one agent.
    num_episodes: N.
    skill: [K] or [N, K].
    seed: of the evaluation.
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


def _member(run_of, name, i):
  states, _ = artifacts.read_agents(_learner(name), str(run_of(name)))
  return jax.tree.map(lambda x: x[i], states)


def _best(run_of, name):
  return artifacts.read_best(_learner(name), str(run_of(name)))[0]


@pytest.mark.parametrize("name", ["train_sac", "pbt_sac"])
def test_the_best_agent_is_evaluated_by_default(name, run_of, capsys):
  found = _evaluate(capsys, run_of(name), "--num_eval_episodes=6")
  _assert_summary(found, _returns(_best(run_of, name), 6))
  lines = (run_of(name) / "metrics.jsonl").read_text().splitlines()
  rows = [json.loads(line) for line in lines]

  def best_return(row):
    seeds = [v for k, v in row.items() if k.startswith("eval/episode_return/")]
    return max(seeds or [row.get("pbt/best_return")])

  step = max(rows, key=best_return)["step"]
  assert found["agent"] == f"best agent, of step {step}"


@pytest.mark.parametrize("name", ["train_sac", "pbt_sac"])
def test_members_of_the_latest_checkpoint_can_be_chosen(name, run_of, capsys):
  means = set()
  for i in range(2):
    found = _evaluate(
      capsys, run_of(name), f"--member={i}", "--num_eval_episodes=6"
    )
    _assert_summary(found, _returns(_member(run_of, name, i), 6))
    assert found["agent"] == f"member {i} after generation 2"
    means.add(found["mean"])
  # Of the population, one may be the child of the other.
  assert len(means) == 2 or name == "pbt_sac"


def test_sixteen_episodes_are_the_default(run_of, capsys):
  found = _evaluate(capsys, run_of("pbt_sac"))
  _assert_summary(found, _returns(_best(run_of, "pbt_sac"), 16))


def test_the_seed_decides_the_numbers(run_of, capsys):
  logdir, flags = run_of("pbt_sac"), ("--num_eval_episodes=6",)
  found = [
    _evaluate(capsys, logdir, f"--seed={seed}", *flags) for seed in (7, 7, 8)
  ]
  assert found[0] == found[1]
  assert found[0]["mean"] != found[2]["mean"]
  _assert_summary(found[0], _returns(_best(run_of, "pbt_sac"), 6, seed=7))


@pytest.mark.slow
def test_all_skills_are_evaluated_by_default(run_of, capsys):
  """Also where there are more of them than other agents have episodes."""
  found = _evaluate(capsys, run_of("discrete"))
  assert found["num_episodes"] >= _K
  num = found["num_episodes"]
  dealt = np.eye(_K)[np.arange(num) % _K]
  _assert_summary(found, _returns(_best(run_of, "discrete"), num, dealt))


@pytest.mark.parametrize("skill", [0, 3])
def test_one_skill_is_evaluated_by_its_index(skill, run_of, capsys):
  found = _evaluate(
    capsys, run_of("discrete"), f"--skill={skill}", f"--num_eval_episodes={_K}"
  )
  _assert_summary(
    found, _returns(_best(run_of, "discrete"), _K, np.eye(_K)[skill])
  )
  assert found["agent"].endswith(f", skill {skill}")


def test_one_skill_needs_no_episode_for_each_of_the_others(run_of, capsys):
  found = _evaluate(
    capsys, run_of("discrete"), "--skill=3", "--num_eval_episodes=2"
  )
  assert found["num_episodes"] == 2


def test_one_skill_of_one_member_is_evaluated(run_of, capsys):
  found = _evaluate(
    capsys, run_of("discrete"), "--skill=3", "--member=1",
    f"--num_eval_episodes={_K}",
  )  # fmt: skip
  state = _member(run_of, "discrete", 1)
  _assert_summary(found, _returns(state, _K, np.eye(_K)[3]))
  assert found["agent"] == "member 1 after generation 2, skill 3"


@pytest.mark.slow
@pytest.mark.parametrize(
  ("skill", "direction"),
  [("0.6,0.8", (0.6, 0.8)), ("-3,0", (-1.0, 0.0))],
)
def test_one_direction_is_evaluated_by_its_numbers(
  skill, direction, run_of, capsys
):
  found = _evaluate(
    capsys, run_of("circle"), f"--skill={skill}", "--num_eval_episodes=6"
  )
  _assert_summary(found, _returns(_best(run_of, "circle"), 6, direction))


@pytest.mark.slow
def test_drawn_directions_are_evaluated_by_default(run_of, capsys):
  found = _evaluate(capsys, run_of("circle"), "--num_eval_episodes=6")
  key = jax.random.fold_in(jax.random.key(0), 0)
  env = environments.SkillEnvironment(_ENV, _PRIORS["circle"], "fixed")
  drawn = env.reset(jax.random.split(key, 6)).info["skill"]
  _assert_summary(found, _returns(_best(run_of, "circle"), 6, drawn))


def _listing(folder):
  """All that is in a folder, its parts' sizes and times of change included."""
  return {
    str(path): (path.stat().st_mtime_ns, path.stat().st_size)
    for path in [folder, *folder.rglob("*")]
  }


@pytest.mark.parametrize(
  ("name", "arguments"),
  [
    ("pbt_sac", ()),
    ("train_sac", ("--member=1",)),
    ("discrete", (f"--num_eval_episodes={_K}",)),
    pytest.param(
      "circle", ("--skill=0.6,0.8", "--member=0"), marks=pytest.mark.slow
    ),
  ],
)
def test_the_run_stays_as_it_is(
  name, arguments, run_of, capsys, tmp_path, monkeypatch
):
  before = _listing(run_of(name))
  monkeypatch.chdir(tmp_path)
  _evaluate(capsys, run_of(name), *arguments)
  assert _listing(run_of(name)) == before
  assert list(tmp_path.iterdir()) == []


def test_what_is_printed_for_people_are_the_same_numbers(run_of, capsys):
  logdir = run_of("pbt_sac")
  outcome = harness.run(capsys, "evaluate", f"--logdir={logdir}")
  first, *lines, last = outcome.out.splitlines()
  numbers = json.loads(last)
  assert first == f"{logdir}: {numbers.pop('agent')}"
  assert {line.split()[0]: float(line.split()[1]) for line in lines} == {
    name: float(f"{value:g}") for name, value in numbers.items()
  }


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    ("pbt_sac", "--member=3", "--member=3, but .* 3 agents; .* 0 to 2"),
    ("pbt_sac", "--member=-1", "member must be at least 0, got -1"),
    ("pbt_sac", "--skill=3", "--skill=3, .*sac, has no skills; leave it out"),
    ("pbt_sac", "--num_eval_episodes=0", "must be at least 1, got 0"),
    ("pbt_sac", "--num_eval_episodes=-2", "must be at least 1, got -2"),
    ("pbt_sac", "--num_eval_episodes=99999999999", "at most 100000, got 9{11}"),
    ("pbt_sac", "--seed=-1", "seed must be at least 0, got -1"),
    (
      "pbt_sac",
      "--seed=99999999999",
      "seed must be at most 4294967295, got 9{11}",
    ),
    ("pbt_sac", "--resume", "--resume is no flag of this launcher"),
    ("pbt_sac", "--warm_start=x", "--warm_start is no flag of this launcher"),
    (
      "pbt_sac",
      "--episode_length=0",
      "episode_length must be at least 1, got 0",
    ),
    ("pbt_sac", "--discount=7", "--discount is no flag of this launcher"),
    ("pbt_sac", "--env_name=point_mase", "'point_mase' .*'point_maze'"),
    ("pbt_sac", "--hidden_layer_sizes=5,5", "--hidden_layer_sizes is no flag"),
    ("pbt_sac", "--learner=td3", "--learner is no flag of this launcher"),
    (
      "pbt_sac",
      "--activation=relu",
      "--activation is no flag of this launcher",
    ),
    ("discrete", "--skill=17", "skill is 17: .* 0 to 16"),
    ("discrete", "--skill=-1", "skill is -1: .* 0 to 16"),
    ("discrete", "--skill=two", "--skill=two is neither .*like 3 or"),
    ("discrete", "--skill=0.6,0.8", "skill is .*one-hot vector of 17"),
    ("discrete", "--skill=", "skill is .*index from 0 to 16"),
    ("discrete", "--num_eval_episodes=3", "episodes=3 can't .*_skills=17"),
    ("circle", "--skill=3", r"skill is \[3.0\]: give 2 finite numbers"),
    ("circle", "--skill=0,0", "not all 0"),
    ("circle", "--skill=1,nan", "give 2 finite numbers"),
    ("circle", "--skill=a,b", "--skill=a,b is neither .*0.6,0.8"),
  ],
)
def test_what_there_is_not_is_refused(
  name, arguments, message, run_of, capsys
):
  before = _listing(run_of(name))
  outcome = harness.run(
    capsys, "evaluate", f"--logdir={run_of(name)}", *arguments.split()
  )
  assert outcome.code == 2
  assert outcome.err.count("\n") == 1
  assert re.search(message, outcome.err), outcome.err
  assert _listing(run_of(name)) == before


@pytest.mark.parametrize(
  "flag", ["--num_timesteps=10", "--nouse_tensorboard", "--tau=0.1"]
)
def test_what_only_training_heeds_is_refused(flag, capsys, tmp_path):
  outcome = harness.run(capsys, "evaluate", f"--logdir={tmp_path}", flag)
  assert outcome.code == 2
  name = flag.partition("=")[0]
  assert outcome.err.startswith(f"error: {name} is no flag of this launcher; ")


def test_without_a_run_there_is_nothing_to_evaluate(capsys, tmp_path):
  (tmp_path / "begun").mkdir()
  (tmp_path / "begun" / "config.json").write_text(
    json.dumps({"env_name": "point_maze", "learner": "sac"})
  )
  before = _listing(tmp_path)
  for arguments, message in (
    ((), "--logdir is missing"),
    ((f"--logdir={tmp_path}/none",), "none holds no run.*name the directory"),
    ((f"--logdir={tmp_path}",), "holds no run"),
    ((f"--logdir={tmp_path}/begun",), "has nothing in best/"),
    ((f"--logdir={tmp_path}/begun", "--member=0"), "nothing in checkpoints/"),
  ):
    outcome = harness.run(capsys, "evaluate", *arguments)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert re.search(message, outcome.err), outcome.err
  assert _listing(tmp_path) == before


@pytest.mark.slow
def test_our_own_policy_of_a_users_learner_is_exported(
  tmp_path, monkeypatch, capsys
):
  (tmp_path / "users_sac.py").write_text(
    "from qdrl_haiku import learners, networks\n"
    "def make(observation_size, action_size):\n"
    "  network = networks.ResidualNetworkConfig(\n"
    "    (4, 4), (4, 4), (4,), activation='elu'\n"
    "  )\n"
    "  config = learners.SACConfig(network)\n"
    "  return learners.sac(observation_size, action_size, config)\n"
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  flags = [flag for flag in _SMALL if not flag.startswith(("--hid", "--act"))]
  logdir = tmp_path / "run"
  untrained.start(
    "train", *flags, "--learner=users_sac:make", "--eval_interval=8",
    f"--logdir={logdir}",
  )  # fmt: skip
  _evaluate(capsys, logdir, f"--export={tmp_path}/policy.npz")
  policy = export.load(tmp_path / "policy.npz")
  assert policy.config["activation"] == "elu"
  learner = learners.sac(
    2, 2, configs.sized(learners.SACConfig, (4, 4), (4,), activation="elu")
  )
  state, _ = artifacts.read_best(learner, str(logdir))
  observation = np.float32([[0.2, -0.3], [0.9, 0.1]])
  np.testing.assert_allclose(
    policy(observation), learner.act_greedy(state, observation), atol=1e-5
  )
  sys.modules.pop("users_sac")
