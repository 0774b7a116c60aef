"""Runs every snippet of the documents, on small settings where it can."""

import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from qdrl_haiku import training
from tests.launchers import harness

_ROOT = pathlib.Path(__file__).parents[1]
# Physics takes long to compile, and is tested elsewhere.
_SMALL = [
  "--backend=",
  "--episode_length=20",
  "--num_envs=2",
  "--batch_size=4",
  "--min_replay_size=4",
  "--num_eval_episodes=2",
]
_USERS_MODULE = '''
import jax.numpy as jnp
from qdrl_haiku import environments

class Still:
  observation_size = 1
  action_size = 1

  def reset(self, key):
    zero = jnp.zeros(())
    return environments.State(zero, jnp.zeros(1), zero, zero)

  def step(self, state, action):
    return state.replace(reward=-jnp.abs(action[0] - 0.5))

def make_env():
  return Still()
'''


def _snippets(document: str, language: str) -> list[str]:
  text = (_ROOT / document).read_text()
  return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _commands() -> list[str]:
  lines = "\n".join(_snippets("README.md", "sh")).splitlines()
  return [
    line
    for line in lines
    if line.startswith("python launchers/") and "--process_id" not in line
  ]


def _python(document: str, first_line: str) -> str:
  (snippet,) = [
    text for text in _snippets(document, "python") if first_line in text
  ]
  return snippet


def test_the_documents_have_the_snippets_that_are_run_here():
  assert len(_commands()) == 35
  assert len(_snippets("README.md", "python")) == 5
  assert len(_snippets("BUILD.md", "python")) == 3


@pytest.mark.slow
def test_pipeline_by_hand_has_25_lines_and_learns():
  snippet = _python("README.md", "actors.collect")
  assert len(snippet.splitlines()) <= 25
  shorter = snippet.replace("1001", "601")
  assert shorter != snippet
  names: dict = {}
  exec(shorter, names)
  # Standing still is worth 0, and 8 is all there is.
  assert names["fitness"].max() > 4


def test_setup_by_hand_trains_a_population():
  names: dict = {}
  exec(_python("BUILD.md", "training.Setup"), names)
  config = dataclasses.replace(
    names["setup"].config,
    num_envs=2,
    perturbation_interval=40,
    batch_size=4,
    min_replay_size=4,
    num_eval_episodes=1,
  )
  setup = names["setup"]._replace(config=config)
  key = jax.random.key(0)
  population = jax.jit(lambda: training.init_population(setup, key))()
  _, report = jax.jit(
    lambda population: training.train_generation(setup, population, key)
  )(population)
  assert report.num_updates.tolist() == [40 - 4 + 2] * 4


def test_controller_by_hand_anneals():
  names: dict = {}
  exec(_python("BUILD.md", "def annealing"), names)
  learner = names["learner"]
  controller = names["annealing"](learner.hyperparams)
  hyperparams = controller.init(jax.random.key(0), 3)
  for _ in range(2):
    decision = controller.update(
      jax.random.key(0), jnp.zeros(3), hyperparams
    )
    hyperparams = decision.hyperparams
  rate = learner.hyperparams["policy_learning_rate"]
  assert hyperparams["policy_learning_rate"].tolist() == pytest.approx(
    [0.81 * rate] * 3
  )
  assert decision.parents.tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  """Where a user would be: the launchers, and a module of the user's own."""
  path = tmp_path_factory.mktemp("user")
  (path / "launchers").symlink_to(_ROOT / "launchers")
  (path / "my_package").mkdir()
  learner = _python("BUILD.md", "def quadratic")
  (path / "my_package" / "my_module.py").write_text(
    _USERS_MODULE + learner.replace("quadratic", "make_learner")
  )
  return path


def _short(name, command, steps):
  """The flags that make a command's run two generations short."""
  skills = ["--num_skills=4", "--num_eval_episodes=4"]
  if name in ("evaluate", "report"):
    return []
  if name == "retrain_schedule":
    return [f"--num_timesteps={steps}"]
  if name == "train_me_pbt":
    if "--emitter=ga" in command:  # Two episodes of 20 steps are its 40.
      return ["--variation_batch_size=4", "--num_generations=1"]
    return [
      "--gradient_population_size=5",
      "--variation_batch_size=5",
      "--perturbation_interval=20",
      "--num_generations=2",
    ]
  interval = "eval" if name == "train" else "perturbation"
  return [
    f"--{interval}_interval=20",
    f"--num_timesteps={steps}",
    *(["--repetitions=1", "--nostart_twice"] if name == "benchmark" else []),
    *(["--sweep=population_size:1,2"] if "--sweep" in command else []),
    *(skills if "diayn" in command else []),
  ]


def test_commands_of_the_readme_run(directory, monkeypatch, capsys):
  monkeypatch.chdir(directory)
  for command in _commands():
    _, launcher, *arguments = shlex.split(command)
    small = _SMALL
    if "my_package" not in command:
      small = [*small, "--env_name=point_maze", "--hidden_layer_sizes=4,4"]
    name = pathlib.Path(launcher).stem
    steps = 60 if "--resume" in arguments else 40
    if "--resume" in arguments or name in ("report", "retrain_schedule"):
      small = []  # The run knows.
    outcome = harness.run(
      capsys, name, *arguments, *small, *_short(name, command, steps)
    )
    assert outcome.code == 0, f"{command}\n{outcome.err}"
    expected = '"mean"' if name == "evaluate" else f"step {steps}"
    if name == "benchmark":
      expected = '"devices_used"'
    if name == "report":
      expected = "wrote "
    if "--dry_run" in arguments:
      expected = "memory needed"
    assert expected in outcome.out
  # logs/pendulum is there now, of a smaller learner in the maze.
  snippet = _python("README.md", "training.read_best")
  smaller = snippet.replace('"inverted_pendulum", backend="generalized"',
                            '"point_maze", episode_length=20')
  smaller = smaller.replace("(64, 64)", "(4, 4)")
  names: dict = {}
  exec(smaller, names)
  assert names["record"]["step"] in (20, 40, 60)
  # And so is logs/maze.
  snippet = _python("README.md", "Repertoire.load")
  smaller = snippet.replace('"point_maze"', '"point_maze", episode_length=20')
  smaller = smaller.replace("(64, 64)", "(4, 4)").replace("24000", "40")
  names = {}
  exec(smaller, names)
  assert jnp.isfinite(names["evaluation"].returns).all()


def _of_two_processes():
  """Of each way to start two: what each is started with, and where."""
  lines = "\n".join(_snippets("README.md", "sh")).splitlines()
  by_hand = [line for line in lines if "--process_id" in line]
  assert len(by_hand) == 2
  (alike,) = [
    line.removeprefix("srun ") for line in lines if line.startswith("srun ")
  ]
  # What Slurm and Open MPI tell each process that they start; the port follows
  # from the job's number.
  job = random.randrange(4096)
  slurm = [
    {
      "SLURM_JOB_ID": str(job),
      "SLURM_STEP_NODELIST": "localhost",
      "SLURM_NTASKS": "2",
      "SLURM_STEP_NUM_TASKS": "2",
      "SLURM_PROCID": str(i),
      "SLURM_LOCALID": str(i),
    }
    for i in range(2)
  ]
  open_mpi = [
    {
      "OMPI_MCA_orte_hnp_uri": f"{4096 * job}.0;tcp://127.0.0.1:34911",
      "OMPI_COMM_WORLD_SIZE": "2",
      "OMPI_COMM_WORLD_RANK": str(i),
      "OMPI_COMM_WORLD_LOCAL_RANK": str(i),
    }
    for i in range(2)
  ]
  return {
    "by hand": (by_hand, [{}, {}]),
    "slurm": ([alike] * 2, slurm),
    "open_mpi": ([alike] * 2, open_mpi),
  }


def _run_two_processes(way, folder, *arguments):
  """What two processes print that are started in a way, once both are done."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  processes = []
  for command, variables in zip(*_of_two_processes()[way], strict=True):
    command = command.replace("host0:1234", address)
    command = command.replace("/shared/my_run", str(folder / "run"))
    processes.append(
      subprocess.Popen(
        [
          sys.executable,
          *shlex.split(command)[1:],
          *_SMALL,
          "--hidden_layer_sizes=4,4",
          *_short("train_pbt", command, 40),
          *arguments,
        ],
        cwd=_ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
  outputs = [process.communicate(timeout=300) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs
  return [out for out, _ in outputs]


@pytest.mark.slow
def test_commands_for_several_hosts_run(tmp_path):
  first, second = _run_two_processes("by hand", tmp_path)
  # The first one writes for all.
  assert "step 40" in first
  assert "step 40" not in second
  rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
  assert [json.loads(row)["step"] for row in rows] == [20, 40]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["slurm", "open_mpi"])
def test_processes_of_a_cluster_find_each_other(way, tmp_path):
  # Each of two that had not would take itself for the first, and say so.
  first, second = _run_two_processes(way, tmp_path, "--dry_run")
  assert "memory needed" in first
  assert "memory needed" not in second


def test_map_elites_by_hand_fills_the_grid():
  names: dict = {}
  exec(_python("README.md", "genetic_emitter"), names)
  metrics = names["map_elites"].metrics(names["repertoire"])
  assert metrics["qd/coverage"] > 95
  # The least that the function can be is 0.
  assert -1 < metrics["qd/max_fitness"] <= 0
