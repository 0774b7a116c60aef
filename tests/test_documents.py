"""Runs every snippet of the documents as it is written, for few steps."""

import ast
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdrl_haiku as qd
from qdrl_haiku import environments, learners
from qdrl_haiku.programs.cli import devices
from qdrl_haiku.programs.cli import training as training_programs
from qdrl_haiku.types import Transition
from tests import compilations
from tests.launchers import harness, kill, users_module

_ROOT = pathlib.Path(__file__).parents[1]
_RECIPES = "launchers/README.md"
# With the most lines that each may have.
_DOCUMENTS = {
  "README.md": 140, _RECIPES: 1083, "launchers/RESULTS.md": 489,
  "BUILD.md": 300, "CHANGELOG.md": 75}
# Commands that are not run here, and why.
_NOT_RUN = {
  "--env_name=playground:": "needs what pip installs by an extra, and may "
  "download robots",
  "--process_id": "is of several hosts, and run below",
  "launchers/compare.py": "trains in processes of its own"}


def _snippets(document: str, language: str) -> list[str]:
  text = (_ROOT / document).read_text()
  return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _shell_lines() -> list[str]:
  """The lines of both READMEs, each once, in the order of their appearance."""
  snippets = _snippets("README.md", "sh") + _snippets(_RECIPES, "sh")
  return list(dict.fromkeys("\n".join(snippets).splitlines()))


def _commands() -> list[str]:
  lines = _shell_lines()
  return [line for line in lines if line.startswith("python launchers/")]


def _is_run(command: str) -> bool:
  return not any(part in command for part in _NOT_RUN)


def _python(document: str, first_line: str) -> str:
  (snippet,) = [
    text for text in _snippets(document, "python") if first_line in text]
  return snippet


def test_recipes_of_the_readme_are_among_all():
  assert all(any(part in x for x in _commands()) for part in _NOT_RUN)
  recipes = "\n".join(_snippets(_RECIPES, "sh"))
  assert all(command in recipes for command in _commands())


def _prose(path: pathlib.Path) -> str:
  return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)


def _anchors(document: pathlib.Path) -> set[str]:
  """The anchors that GitHub makes of headings."""
  titles = re.findall(r"^#+ (.*)$", _prose(document), re.M)
  return {
    re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
  }


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_documents_are_short_and_what_they_link_to_is_there(document):
  path = _ROOT / document
  assert len(path.read_text().splitlines()) <= _DOCUMENTS[document]
  links = re.findall(r"\]\(([^)\s]+)\)", _prose(path))
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


def _docstrings():
  """Yields names of public functions, those of their parameters, and texts."""
  for path in (_ROOT / "qdrl_haiku").rglob("*.py"):
    body = ast.parse(path.read_text()).body
    classes = [x for x in body if isinstance(x, ast.ClassDef)]
    for prefix, of in [("", body), *((f"{x.name}.", x.body) for x in classes)]:
      for x in [x for x in of if isinstance(x, ast.FunctionDef)]:
        args = x.args
        given = [*args.args, args.vararg, *args.kwonlyargs, args.kwarg]
        names = {x.arg for x in given if x} - {"self", "cls"}
        if not x.name.startswith("_") and not prefix.startswith("_"):
          yield prefix + x.name, names, ast.get_docstring(x) or ""


def test_docstrings_say_what_functions_of_three_arguments_and_more_take():
  """In a section, by name in the text, or by whose arguments they are."""
  found = [*_docstrings()]
  docs = {name: text for name, _, text in found}
  for name, parameters, text in found:
    others = re.findall(r"[Aa]rgs[a-z ]* are\s+those\s+of\s+`(.+?)`", text)
    said = text + "".join(docs[other] for other in others)
    told = re.findall(r"`(\w+)`|^ *\*{0,2}(\w+):", said, re.MULTILINE)
    unsaid = parameters - {x for pair in told for x in pair}
    assert len(parameters) < 3 or not unsaid, f"{name}: {unsaid}"


def _compiled_again(snippet, names):
  """Counts what compiles where a snippet is run once more, from its key on."""
  calls = [
    ast.unparse(statement)
    for statement in ast.parse(snippet).body
    if not isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef))]
  first = next(i for i, call in enumerate(calls) if "jax.random.key" in call)
  return compilations.of(exec, "\n".join(calls[first:]), names)


def _execute(snippet):
  names: dict = {}
  exec(snippet, names)
  return names


@pytest.mark.slow
@pytest.mark.parametrize("document,part,most_lines,shorter,is_right", [
  # Standing still is worth 0, and 8 is all there is.
  (_RECIPES, "actors.collect", 25, {"1001": "601"},
   lambda names: names["fitness"].max() > 4),
  ("README.md", "qd.training.step", 25,
   {"=1000": "=40", "range(10)": "range(2)"},
   lambda names: int(names["state"].generation) == 2),
  (_RECIPES, "qd.map_elites.genetic_emitter", 20, {"101": "6"},
   lambda names: names["repertoire"].occupied.sum() > 1),
  # The critic has learned: its metrics are NaN before.
  (_RECIPES, "qd.map_elites.pga_emitter", 25, {"101": "6"},
   lambda names: names["repertoire"].occupied.sum() > 9 and jnp.isfinite(
     names["emitter"].metrics(names["state"])["q_mean"])),
  (_RECIPES, " map_elites.genetic_emitter", 25, {},
   lambda names: names["repertoire"].occupied.mean() > 0.95)])
def test_a_pipeline_by_hand_is_short_and_learns(
  document, part, most_lines, shorter, is_right
):
  snippet = _python(document, part)
  assert len([line for line in snippet.splitlines() if line]) <= most_lines
  for old, new in shorter.items():
    assert old in snippet
    snippet = snippet.replace(old, new)
  names = _execute(snippet)
  assert is_right(names)
  # `map_elites.step` is compiled by the user.
  if "jax.random.key" in snippet and "qd.map_elites" not in snippet:
    assert _compiled_again(snippet, names) == 0
  if part == "genetic_emitter":
    assert '`heatmap(repertoire, ("x", "y"))' in (_ROOT / _RECIPES).read_text()
    figure = qd.drawing.heatmaps.heatmap(names["repertoire"], ("x", "y"))
    assert "of 1024 cells" in figure.axes[0].get_title()


def test_learner_by_hand_imitates_what_is_rewarded():
  learner = _execute(_python("BUILD.md", "def awr"))["awr"](1, 1)
  learners.check(learner, 1, 1)
  seen = 500 + 9 * jax.random.normal(jax.random.key(0), (1, 64, 1))
  action = jax.random.uniform(jax.random.key(1), (1, 64, 1), minval=-1)
  reward = -10 * jnp.abs(action[..., 0] - 0.5)
  steps = Transition(seen, action, reward, jnp.zeros((1, 64)), seen, {})
  state = learner.observe(learner.init(jax.random.key(2)), seen)
  hyperparams = learner.hyperparams | {"tau": 0.25, "learning_rate": 0.01}
  update = jax.jit(learner.update)
  for _ in range(100):
    before, (state, _) = state, update(state, hyperparams, steps, None)
  assert jnp.mean(abs(learner.act_greedy(state, seen, ()).action - 0.5)) < 0.15
  for old, online, new in zip(
    *map(jax.tree.leaves, (before.target, state.params, state.target)),
    strict=True
  ):
    assert jnp.allclose(new, old + 0.25 * (online - old), atol=1e-6)


def test_controller_by_hand_anneals():
  names = _execute(_python("BUILD.md", "def annealing"))
  learner = names["learner"]
  controller = names["annealing"](learner.hyperparams)
  key = jax.random.key(0)
  state, hyperparams = controller.init(key, 3)
  for _ in range(2):
    state, decision = controller.update(state, key, jnp.zeros(3), hyperparams)
    hyperparams = decision.hyperparams
  rate = learner.hyperparams["policy_learning_rate"]
  assert hyperparams["policy_learning_rate"].tolist() == pytest.approx(
    [0.9 * rate] * 3)
  assert decision.parents.tolist() == [0, 1, 2]


def test_an_environment_of_gymnasium_is_wrapped(tmp_path, monkeypatch):
  gymnasium = pytest.importorskip("gymnasium")
  (tmp_path / "my_poles.py").write_text(_python(_RECIPES, "def pole"))
  monkeypatch.chdir(tmp_path)
  env = environments.create("gymnasium:my_poles:Pole-v0")
  assert (env.observation_size, env.action_size) == (12, 1)
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  plain = [gymnasium.make("CartPole-v1") for _ in range(2)]
  seen = [
    [x.reset(seed=int(seed))[0]] * 3
    for x, seed in zip(plain, state.info["seed"], strict=True)]
  for _ in range(4):  # The one goes to the left, the other to the right.
    state = env.step(state, jnp.array([[-0.1], [0.1]]))
    for action, x in enumerate(plain):
      seen[action].append(x.step(action)[0])
  expected = [np.concatenate(x[-3:]) for x in seen]
  np.testing.assert_array_equal(state.obs, expected)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
  """Where a user would be: the launchers, and a module of the user's own."""
  path = tmp_path_factory.mktemp("user")
  (path / "launchers").symlink_to(_ROOT / "launchers")
  (path / "my_package").mkdir()
  robot = _ROOT / "tests" / "environments" / "robots" / "tripod.xml"
  (path / "tripod.xml").symlink_to(robot)
  (path / "tripod.py").write_text(_python(_RECIPES, "def walk"))
  (path / "cart.py").write_text(_python(_RECIPES, "class Cart"))
  learner = _python("BUILD.md", "def awr")
  (path / "my_package" / "my_module.py").write_text(
    users_module.SOURCE + learner.replace("awr", "make_learner"))
  return path


def _budget(name, command, steps):
  """Flags after a command that make its run two generations short."""
  few = ["--num_envs=2", "--batch_size=4", "--min_replay_size=4"]
  short = ["--episode_length=20", "--num_eval_episodes=2"]
  if name == "report" or "--dry_run" in command:
    return []
  if "--sweep=mass" in command:
    return ["--num_eval_episodes=1"]
  if "smerl_point_maze" in command or "logs/ways" in command:
    short[1] = "--num_eval_episodes=5"  # One for each skill.
  if name == "evaluate":
    return short[1:]
  if "--resume" in command:
    return [f"--num_timesteps={steps}"]  # The run knows the rest.
  prepared = ("pga", "dcrl", "ascii", "--env_name=arm", "--env_name=sphere")
  if any(part in command for part in prepared):
    return []
  if "--emitter=ga" in command:  # Two episodes of 20 steps are its 40.
    return [*short, "--variation_batch_size=4", "--num_generations=1"]
  if name == "train_me_pbt":
    return [
      *few, *short, "--emitter=pbt:5,ga:5", "--num_initial_genotypes=8",
      "--perturbation_interval=20", "--num_generations=2"]
  if "diayn_point_maze" in command or "dads_point_maze" in command:
    short[1] = "--num_eval_episodes=16"
  return [
    *few, *short, "--perturbation_interval=20", f"--num_timesteps={steps}",
    *["--repetitions=1", "--nostart_twice"] * (name == "benchmark"),
    *["--sweep=population_size:1,2"] * ("--sweep" in command)]


def test_commands_that_train_have_settings_that_there_are(monkeypatch):
  monkeypatch.chdir(_ROOT)
  trained = []
  monkeypatch.setattr(devices, "prepare_jax_devices", lambda *_, **__: None)
  monkeypatch.setattr(
    training_programs, "_train", lambda config, **_: trained.append(config))
  commands = [x for x in _commands() if "launchers/train" in x]
  commands = [x for x in commands if "--resume" not in x]
  for command in commands:
    _, launcher, *arguments = shlex.split(command)
    harness.start(pathlib.Path(launcher).stem, *arguments)
  assert len(trained) == len(commands)


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
  arguments += _budget(name, command, steps)
  outcome = harness.run(capsys, name, *arguments)
  assert outcome.code == 0, f"{command}\n{outcome.err}"
  of_program = {
    "evaluate": '"mean"', "benchmark": '"devices_used"', "report": "wrote "}
  expected = of_program.get(name, f"step {steps}")
  if "--dry_run" in arguments:
    expected = "memory needed"
  assert expected in outcome.out, f"{command}\n{outcome.out}"


@pytest.mark.slow
def test_commands_run_as_they_are_written(directory, monkeypatch, capsys):
  monkeypatch.chdir(directory)
  for command in filter(_is_run, _commands()):
    _run(capsys, command)
  assert not (directory / "MUJOCO_LOG.TXT").exists()
  # logs/pendulum and logs/maze are there now, of other numbers of steps.
  best = _python(_RECIPES, "artifacts.read_best")
  names = _execute(best)
  assert names["record"]["step"] in (20, 40, 60)
  assert _compiled_again(best, names) == 0
  shorter = _python("README.md", "qd.train(").replace("=8000", "=1600")
  assert len(shorter.splitlines()) <= 8
  assert _execute(shorter)["result"].metrics["step"] == 1600
  names = _execute(_python(_RECIPES, "play_back"))
  assert names["row"]["step"] == names["schedule"].num_steps
  elite = _python(_RECIPES, "Repertoire.load").replace("24000", "40")
  names = _execute(elite)
  assert jnp.isfinite(names["evaluation"].returns).all()
  assert _compiled_again(elite, names) == 0
  _run(
    capsys, "python launchers/evaluate.py --logdir=logs/maze --export=elites/")
  names = _execute(_python(_RECIPES, "elites/index.json"))
  assert names["policy"](jnp.zeros(2)).shape == (2,)


def _of_two_processes(way):
  """What each of two processes is started with, in a way, and where."""
  lines = _shell_lines()
  if way == "by hand":
    return [(line, {}) for line in lines if "--process_id" in line]
  (alike,) = [x[5:] for x in lines if x.startswith("srun ")]
  # Variables of Slurm and Open MPI; the port follows from the job's number.
  job = os.getpid() % 4096
  shared, numbers = {
    "slurm": (
      {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost",
       "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"},
      ("SLURM_PROCID", "SLURM_LOCALID")),
    "open_mpi": (
      {"OMPI_MCA_orte_hnp_uri": f"{4096 * job}.0;tcp://127.0.0.1:34911",
       "OMPI_COMM_WORLD_SIZE": "2"},
      ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"))}[way]
  return [(alike, shared | dict.fromkeys(numbers, str(i))) for i in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by hand", "slurm", "open_mpi"])
def test_two_processes_find_each_other_and_the_first_one_writes(way, tmp_path):
  """Each that had not would take itself for the first, and say so."""
  address = kill.free_address()
  is_dry = way != "by hand"
  processes = []
  for command, variables in _of_two_processes(way):
    command = command.replace("host0:1234", address)
    command = command.replace("/shared/my_run", str(tmp_path / "run"))
    arguments = shlex.split(command)[1:] + _budget("train_pbt", command, 40)
    processes.append(subprocess.Popen(
      [sys.executable, *arguments, *["--dry_run"] * is_dry], cwd=_ROOT,
      env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | variables, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE))
  outputs = [process.communicate(timeout=300) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs
  told = "memory needed" if is_dry else "step 40"
  assert [told in out for out, _ in outputs] == [True, False]
  if not is_dry:
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [20, 40]


def test_a_job_that_is_interrupted_is_queued_again_and_resumed(tmp_path):
  """With an `srun` that fails as a run does, unless it is resumed."""
  run, (script,) = tmp_path / "run", _snippets(_RECIPES, "bash")
  (tmp_path / "srun").write_text(
    f"#!/bin/bash\nmkdir -p {run}; touch {run}/config.json\n"
    'echo "$@"; [[ "$*" == *--resume ]] || exit 75\n')
  (tmp_path / "scontrol").write_text('#!/bin/bash\necho "$@"\n')
  for name in ("srun", "scontrol"):
    (tmp_path / name).chmod(0o700)
  done = [
    subprocess.run(
      ["bash", "-c", script.replace("/shared/my_run", str(run))],
      stdout=subprocess.PIPE, text=True, check=False, env=os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17",
        "SLURM_CPUS_PER_TASK": "8"})
    for _ in range(2)]
  assert [x.returncode for x in done] == [75, 0]
  trains = f"python launchers/train_pbt.py --preset=quickstart --logdir={run}"
  assert [x.stdout for x in done] == [
    f"--cpus-per-task=8 {trains}\nrequeue 17\n",
    f"--cpus-per-task=8 {trains} --resume\n"]


def test_what_documents_name_is_reached_as_they_name_it():
  """Whatever else was imported before, in a process of its own."""
  rooms = "|".join(qd.__all__)
  texts = [(_ROOT / document).read_text() for document in _DOCUMENTS]
  pattern = rf"`(?:qd\.|qdrl_haiku\.)?((?:{rooms})(?:\.\w+)+)"
  named = set(re.findall(pattern, "".join(texts)))
  named -= {"config.json", "skills.jsonl", "skills.npz"}  # Files.
  assert len(named) > 50
  script = "import operator, qdrl_haiku as qd\n" + "\n".join(
    f"operator.attrgetter({x!r})(qd)" for x in sorted(named))
  subprocess.run([sys.executable, "-c", script], check=True, cwd=_ROOT)
  for name in named:
    found = qd
    for part in name.split("."):
      found = getattr(found, part)
    # `help` of an alias is that of `Callable`.
    assert not isinstance(found, types.GenericAlias), name
