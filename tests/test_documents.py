"""Runs every snippet of the documents as it is written, for few steps."""

import ast
import dataclasses
import importlib
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
from qdrl_haiku.drawing import heatmaps
from tests import compilations
from tests.launchers import harness

_ROOT = pathlib.Path(__file__).parents[1]
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


_RECIPES = "launchers/README.md"
_DOCUMENTS = ("README.md", _RECIPES, "launchers/RESULTS.md", "BUILD.md")


def _snippets(document: str, language: str) -> list[str]:
  text = (_ROOT / document).read_text()
  return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _shell_lines() -> list[str]:
  """The lines of both READMEs, each once, in the order of their appearance."""
  snippets = _snippets("README.md", "sh") + _snippets(_RECIPES, "sh")
  return list(dict.fromkeys("\n".join(snippets).splitlines()))


def _commands() -> list[str]:
  return [
    line
    for line in _shell_lines()
    if line.startswith("python launchers/")
    and not any(part in line for part in _NOT_RUN)
  ]


def _python(document: str, first_line: str) -> str:
  (snippet,) = [
    text for text in _snippets(document, "python") if first_line in text
  ]
  return snippet


def test_the_documents_have_the_snippets_that_are_run_here():
  assert len(_commands()) == 44
  assert len(_snippets("README.md", "python")) == 3
  assert len(_snippets(_RECIPES, "python")) == 8
  assert len(_snippets("BUILD.md", "python")) == 3
  assert not _snippets("launchers/RESULTS.md", "python")


def test_recipes_of_the_readme_are_among_all_recipes():
  ours = "\n".join(_snippets("README.md", "sh")).splitlines()
  recipes = "\n".join(_snippets(_RECIPES, "sh")).splitlines()
  assert {x for x in ours if x.startswith("python ")} <= set(recipes)


@pytest.mark.parametrize(
  ("document", "most"),
  [("README.md", 180), ("BUILD.md", 300), ("launchers/RESULTS.md", 450)],
)
def test_documents_are_short(document, most):
  assert len((_ROOT / document).read_text().splitlines()) <= most


def _anchors(document: pathlib.Path) -> set[str]:
  """Returns the anchors that GitHub makes of headings."""
  text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M)
  titles = re.findall(r"^#+ (.*)$", text, re.M)
  return {
    re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    for title in titles
  }


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_what_documents_link_to_is_there(document):
  path = _ROOT / document
  text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
  links = re.findall(r"\]\(([^)\s]+)\)", text)
  assert links
  for link in links:
    if re.match(r"\w+:", link):
      continue
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    assert target.exists(), link
    assert not anchor or anchor in _anchors(target), link


def test_every_picture_is_shown():
  shown = "".join((_ROOT / document).read_text() for document in _DOCUMENTS)
  for picture in (_ROOT / "launchers" / "pictures").iterdir():
    assert f"pictures/{picture.name})" in shown


def _compiled_again(snippet, names):
  """Counts what compiles where a snippet is run once more, from its key on."""
  calls = [
    ast.unparse(statement)
    for statement in ast.parse(snippet).body
    if not isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef))
  ]
  first = next(i for i, call in enumerate(calls) if "jax.random.key" in call)
  return compilations.of(exec, "\n".join(calls[first:]), names)


@pytest.mark.slow
def test_pipeline_by_hand_has_25_lines_and_learns():
  snippet = _python(_RECIPES, "actors.collect")
  assert len(snippet.splitlines()) <= 25
  shorter = snippet.replace("1001", "601")
  assert shorter != snippet
  names: dict = {}
  exec(shorter, names)
  # Standing still is worth 0, and 8 is all there is.
  assert names["fitness"].max() > 4
  assert _compiled_again(shorter, names) == 0


@pytest.mark.slow
def test_a_population_by_hand_is_trained(capsys):
  snippet = _python("README.md", "qd.training.step")
  assert len([line for line in snippet.splitlines() if line]) <= 25
  shorter = snippet.replace("=1000", "=40").replace("range(10)", "range(2)")
  names: dict = {}
  exec(shorter, names)
  assert int(names["state"].generation) == 2
  assert len(capsys.readouterr().out.splitlines()) >= 2
  assert _compiled_again(shorter, names) == 0


@pytest.mark.slow
def test_map_elites_by_hand_fills_cells():
  snippet = _python("README.md", "qd.map_elites.step")
  assert len([line for line in snippet.splitlines() if line]) <= 20
  names: dict = {}
  exec(snippet.replace("101", "6"), names)
  first = names["first"]
  assert names["repertoire"].occupied.sum() > 1
  assert len(jax.tree.leaves(first)[0]) == 64


def test_training_in_python_takes_eight_lines():
  snippet = _python("README.md", "qd.train(")
  assert len(snippet.splitlines()) <= 8


def test_setup_by_hand_can_be_trained():
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
  population = jax.eval_shape(lambda: training.init(setup, key))
  trained, report = jax.eval_shape(
    lambda population: training.step(setup, population, key),
    population,
  )
  assert report.fitness.shape == (4,)
  assert jax.tree.leaves(trained) == jax.tree.leaves(population)


def test_controller_by_hand_anneals():
  names: dict = {}
  exec(_python("BUILD.md", "def annealing"), names)
  learner = names["learner"]
  controller = names["annealing"](learner.hyperparams)
  key = jax.random.key(0)
  state, hyperparams = controller.init(key, 3)
  for _ in range(2):
    state, decision = controller.update(state, key, jnp.zeros(3), hyperparams)
    hyperparams = decision.hyperparams
  rate = learner.hyperparams["policy_learning_rate"]
  assert hyperparams["policy_learning_rate"].tolist() == pytest.approx(
    [0.9 * rate] * 3
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


# Commands that are not run here, and why.
_NOT_RUN = {
  "--env_name=playground:": "needs what pip installs by an extra, and may "
  "download robots",
  "--process_id": "is of several hosts, and run below",
  "launchers/compare.py": "trains in processes of its own",
}


def _budget(name, command, steps):
  """Flags after a command that make its run two generations short."""
  few = ["--num_envs=2", "--batch_size=4", "--min_replay_size=4"]
  short = ["--episode_length=20", "--num_eval_episodes=2"]
  if name == "report" or "--dry_run" in command:
    return []
  if name == "evaluate":
    return ["--num_eval_episodes=2"]
  if "--resume" in command:
    return [f"--num_timesteps={steps}"]  # The run knows the rest.
  prepared = ("pga", "dcrl", "--env_name=arm", "--env_name=sphere")
  if any(part in command for part in prepared):
    return []
  if "--emitter=ga" in command:  # Two episodes of 20 steps are its 40.
    return [*short, "--variation_batch_size=4", "--num_generations=1"]
  if name == "train_me_pbt":
    return [
      *few,
      *short,
      "--gradient_population_size=5",
      "--variation_batch_size=5",
      "--num_initial_genotypes=8",
      "--perturbation_interval=20",
      "--num_generations=2",
    ]
  if "diayn_point_maze" in command:
    short[1] = "--num_eval_episodes=16"  # One for each skill.
  interval = "eval" if name == "train" else "perturbation"
  return [
    *few,
    *short,
    f"--{interval}_interval=20",
    f"--num_timesteps={steps}",
    *(["--repetitions=1", "--nostart_twice"] if name == "benchmark" else []),
    *(["--sweep=population_size:1,2"] if "--sweep" in command else []),
  ]


def _run(capsys, command):
  """Runs a command for two generations, or prepares one that stands alone.

  Other tests train with the flags of those whose run no other command mentions.
  """
  _, launcher, *arguments = shlex.split(command)
  name = pathlib.Path(launcher).stem
  is_alone = "logs/" not in command and "my_package" not in command
  if name.startswith("train") and is_alone:
    arguments.append("--dry_run")
  steps = 60 if "--resume" in arguments else 40
  outcome = harness.run(
    capsys, name, *arguments, *_budget(name, command, steps)
  )
  assert outcome.code == 0, f"{command}\n{outcome.err}"
  of_program = {
    "evaluate": '"mean"', "benchmark": '"devices_used"', "report": "wrote "
  }  # fmt: skip
  expected = of_program.get(name, f"step {steps}")
  if "--dry_run" in arguments:
    expected = "memory needed"
  assert expected in outcome.out, f"{command}\n{outcome.out}"


def _execute(snippet):
  names: dict = {}
  exec(snippet, names)
  return names


@pytest.mark.slow
def test_commands_of_the_recipes_run_as_they_are_written(
  directory, monkeypatch, capsys
):
  monkeypatch.chdir(directory)
  for command in _commands():
    _run(capsys, command)
  # logs/pendulum and logs/maze are there now, of other numbers of steps.
  best = _python(_RECIPES, "artifacts.read_best")
  names = _execute(best)
  assert names["record"]["step"] in (20, 40, 60)
  assert _compiled_again(best, names) == 0
  shorter = _python("README.md", "qd.train(").replace("=8000", "=1600")
  assert "best_return" in shorter
  assert _execute(shorter)["result"].metrics["step"] == 1600
  names = _execute(_python(_RECIPES, "play_back"))
  assert names["row"]["step"] == names["schedule"].num_steps
  elite = _python(_RECIPES, "Repertoire.load").replace("24000", "40")
  names = _execute(elite)
  assert jnp.isfinite(names["evaluation"].returns).all()
  assert _compiled_again(elite, names) == 0


def test_what_is_not_run_is_in_the_recipes():
  lines = "\n".join(_shell_lines())
  assert all(part in lines for part in _NOT_RUN)


def _of_two_processes():
  """Of each way to start two: what each is started with, and where."""
  lines = _shell_lines()
  by_hand = [line for line in lines if "--process_id" in line]
  assert len(by_hand) == 2
  (alike,) = [
    line.removeprefix("srun ") for line in lines if line.startswith("srun ")
  ]
  # Variables of Slurm and Open MPI; the port follows from the job's number.
  job = random.randrange(4096)
  slurm = {
    "SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
  }  # fmt: skip
  open_mpi = {
    "OMPI_MCA_orte_hnp_uri": f"{4096 * job}.0;tcp://127.0.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
  }

  def processes(shared, *numbers):
    return [shared | dict.fromkeys(numbers, str(i)) for i in range(2)]

  rank = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"
  return {
    "by hand": (by_hand, [{}, {}]),
    "slurm": ([alike] * 2, processes(slurm, "SLURM_PROCID", "SLURM_LOCALID")),
    "open_mpi": ([alike] * 2, processes(open_mpi, *rank)),
  }


def _run_two_processes(way, folder, *arguments):
  """Returns what two processes print that are started in one of the ways."""
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
          *_budget("train_pbt", command, 40),
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
  snippet = _python(_RECIPES, "genetic_emitter")
  exec(snippet, names)
  assert _compiled_again(snippet, names) == 0
  metrics = names["map_elites"].metrics(names["repertoire"])
  assert metrics["qd/coverage"] > 95
  # The least that the function can be is 0.
  assert -1 < metrics["qd/max_fitness"] <= 0
  assert '`heatmap(repertoire, ("x", "y"))' in (_ROOT / _RECIPES).read_text()
  figure = heatmaps.heatmap(names["repertoire"], ("x", "y"))
  assert "of 1024 cells" in figure.axes[0].get_title()


def test_what_the_table_for_people_from_qdax_names_is_there():
  text = (_ROOT / _RECIPES).read_text()
  table = text[text.index("## Coming from QDax") :]
  ours = "".join(line.split(" | ")[1] for line in re.findall(r"\| .*", table))
  rooms = "actors|controllers|drawing|environments|learners|map_elites|replay"
  named = re.findall(rf"`((?:{rooms}|skills)(?:\.\w+)+)", ours)
  assert len(named) > 40
  for name in named:
    room, *parts = name.split(".")
    found = importlib.import_module(f"qdrl_haiku.{room}")
    for part in parts:
      found = getattr(found, part)
