"""Tests of processes: what one leaves for the next, and where it writes."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.launchers import harness, kill, users_module

_TRAIN = [
  "--learner=sac", "--num_seeds=2", "--hidden_layer_sizes=4", "--num_envs=2",
  "--batch_size=8", "--min_replay_size=8", "--eval_interval=20",
  "--num_timesteps=40", "--num_eval_episodes=1", "--episode_length=10",
  "--nouse_tensorboard",
]  # fmt: skip
_TRACED = "module conversion jit(train)"
# So that a process says when its environment is traced.
_STEP = "  def step(self, state, action):\n"
_LOUD = f"{_STEP}    print('traced')\n"


def _launch(name, *flags, cwd=None, **variables):
  """Starts a launcher in a process of its own; returns what it printed."""
  done = subprocess.run(
    [sys.executable, "-u", str(harness.LAUNCHERS / f"{name}.py"), *flags],
    cwd=cwd,
    env=os.environ
    | {"JAX_LOG_COMPILES": "1", "PYTHONPATH": os.getcwd()}
    | variables,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  assert done.returncode == 0, (name, done.stdout)
  return done.stdout


def _start(folder, name, *flags, num_devices=1):
  """Trains with a cache in a folder; returns what was printed."""
  return _launch(
    "train", *_TRAIN, f"--logdir={name}",
    f"--compilation_cache_dir={folder / 'cache'}", *flags,
    cwd=folder, JAX_NUM_CPU_DEVICES=str(num_devices),
  )  # fmt: skip


def _rows(folder, name):
  """The rows of a run, without what clocks say."""
  rows = (folder / name / "metrics.jsonl").read_text().splitlines()
  return [
    {k: v for k, v in json.loads(row).items() if not kill.TIMES.search(k)}
    for row in rows
  ]


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_second_start_traces_nothing_and_computes_the_same(
  tmp_path, num_devices
):
  def start(name, *flags):
    flags = ("--env_name=point_maze", *flags)
    return _start(tmp_path, name, *flags, num_devices=num_devices)

  assert _TRACED in start("first")
  assert _TRACED not in start("second")
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")
  assert _TRACED not in start("seed", "--seed=3")
  assert _rows(tmp_path, "seed") != _rows(tmp_path, "second")
  # Another setting makes other programs.
  assert _TRACED in start("other", "--num_envs=4")


@pytest.mark.slow
def test_damage_to_all_that_is_kept_is_mended(tmp_path):
  flags = ("--env_name=point_maze",)
  _start(tmp_path, "first", *flags)
  for path in (tmp_path / "cache" / "kept").iterdir():
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
  assert _TRACED in _start(tmp_path, "second", *flags)
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_users_environment_is_traced_and_checked_at_each_start(
  tmp_path, num_devices
):
  path = tmp_path / "lines_of_mine.py"
  path.write_text(users_module.SOURCE.replace(_STEP, _LOUD))
  flags = ("--env_name=lines_of_mine:make_env",)
  for name in ("first", "second"):
    printed = _start(tmp_path, name, *flags, num_devices=num_devices)
    assert "traced" in printed.splitlines()
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")


@pytest.mark.slow
def test_an_environment_whose_data_have_changed_is_another(tmp_path):
  """Nothing tells that a user's code has read a file."""
  reward = "reward=-jnp.sum((action - 0.5) ** 2)"
  assert reward in users_module.SOURCE
  (tmp_path / "line_env.py").write_text(
    "SPEED = float(open('speed').read())\n"
    + users_module.SOURCE.replace(reward, "reward=jnp.float32(SPEED)")
  )
  for speed in (1.0, 5.0):
    (tmp_path / "speed").write_text(str(speed))
    _start(tmp_path, str(speed), "--env_name=line_env:make_env")
    last = _rows(tmp_path, str(speed))[-1]
    assert last["eval/episode_return"] == 10 * speed


@pytest.mark.slow
def test_where_all_diverge_a_start_that_traced_nothing_begins_anew(tmp_path):
  flags = ("--env_name=point_maze", "--critic_learning_rate=1e30")
  first = _start(tmp_path, "first", *flags)
  assert "diverged" in first
  assert _start(tmp_path, "second", *flags).count("diverged") == (
    first.count("diverged")
  )
  assert _rows(tmp_path, "first") == _rows(tmp_path, "second")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags"), [
  ("train_pbt", (
    "--learner=diayn", "--num_skills=4", "--num_eval_episodes=4",
    "--population_size=4", "--perturbation_interval=40",
    "--num_timesteps=160", "--num_replaced=1",
  )),
  ("train_me_pbt", (
    "--learner=td3", "--gradient_population_size=4",
    "--variation_batch_size=4", "--num_initial_genotypes=4",
    "--num_replaced_by_best=1",
    "--grid_shape=4,4", "--perturbation_interval=40", "--num_generations=4",
    "--adding=adaptive", "--num_eval_episodes=2",
  )),
])  # fmt: skip
def test_nothing_compiles_after_the_first_generation(name, flags, tmp_path):
  printed = _launch(name, *kill.SMALL, *flags, f"--logdir={tmp_path / 'run'}")
  first, *later = re.split(r"generation \d+/4 ", printed)
  assert "Compiling jit" in first  # That is how jax calls it.
  assert len(later) == 4
  # After the last generation a repertoire is evaluated again and written.
  alike = later[:2] if name == "train_me_pbt" else later
  assert re.findall(r"Compiling (jit\S+)", "".join(alike)) == []


# MuJoCo warns of a word in the model, by default into the current directory.
_SOURCE = '''
import mujoco

from qdrl_haiku import environments

_MODEL = """<mujoco><compiler settotalmass="1"/><worldbody><body><freejoint/>
<geom size="1"/></body></worldbody></mujoco>"""


def make():
  mujoco.MjModel.from_xml_string(_MODEL)
  return environments.PointMaze()
'''
_TASK = (
  "--env_name=warning_maze:make", "--episode_length=20",
  "--hidden_layer_sizes=4", "--num_eval_episodes=2",
)  # fmt: skip
_SMALL = (
  *_TASK, "--num_envs=2", "--batch_size=8", "--replay_capacity=200",
  "--min_replay_size=16",
)  # fmt: skip
_PBT = (
  *_SMALL, "--population_size=2", "--perturbation_interval=40",
  "--num_timesteps=80",
)  # fmt: skip
_PROGRAMS = (
  ("train", *_SMALL, "--eval_interval=40", "--num_timesteps=40",
   "--logdir={}/train"),
  ("train", *_SMALL, "--dry_run"),
  ("train_pbt", *_PBT, "--logdir={}/pbt"),
  ("train_me_pbt", *_TASK, "--emitter=ga", "--variation_batch_size=4",
   "--num_generations=1", "--logdir={}/me_pbt"),
  ("evaluate", "--logdir={}/pbt", "--render=gif", "--render_to={}/episode.gif",
   "--export={}/policy.npz"),
  ("report", "--logdir={}/pbt", "--logdir={}/me_pbt",
   "--output={}/report.html"),
  ("compare", f"--command=train_pbt {' '.join(_PBT)}", "--task=maze: ",
   "--method=pbt: ", "--num_seeds=1", "--output={}/compared"),
  ("benchmark", *_PBT, "--repetitions=1"),
)  # fmt: skip


@pytest.mark.slow
def test_every_program_leaves_an_empty_folder_empty(tmp_path):
  programs = {path.stem for path in harness.LAUNCHERS.glob("*.py")}
  assert {name for name, *_ in _PROGRAMS} == programs
  places = {x: tmp_path / x for x in ("empty", "modules", "written", "cache")}
  for place in places.values():
    place.mkdir()
  places["cache"].chmod(0o700)
  (places["modules"] / "warning_maze.py").write_text(_SOURCE)
  for name, *flags in _PROGRAMS:
    _launch(
      name,
      *(flag.replace("{}", str(places["written"])) for flag in flags),
      cwd=places["empty"],
      JAX_COMPILATION_CACHE_DIR=str(places["cache"]),
      PYTHONPATH=f"{os.getcwd()}:{places['modules']}",
    )
    assert list(places["empty"].iterdir()) == [], name
