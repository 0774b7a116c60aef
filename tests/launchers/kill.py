"""Kills runs, resumes them, and compares how they end.

The long form of `test_determinism.py`, at random points:

python -m tests.launchers.kill --num_points=200
"""

import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import app, flags, logging

from tests import events
from tests.launchers import harness

_DYING = pathlib.Path(__file__).parent / "dying.py"
INTERRUPTED = 75
# What depends on the clock.
TIMES = re.compile("walltime|per_second|compile_seconds")
_ROWS = (
  "metrics.jsonl", "pbt_lineage.jsonl", "pbt_members.jsonl", "skills.jsonl")
SMALL = [
  "--env_name=point_maze", "--episode_length=20", "--num_envs=2",
  "--batch_size=8", "--hidden_layer_sizes=8", "--replay_capacity=200",
  "--min_replay_size=16", "--log_to=", "--checkpoint_interval=1",
  "--seed=3"]
_PBT = [
  "train_pbt", *SMALL, "--population_size=4", "--num_timesteps=240",
  "--perturbation_interval=40"]
_REPERTOIRE = [
  "train_me_pbt", *SMALL, "--learner=td3", "--variation_batch_size=4",
  "--num_initial_genotypes=4", "--grid_shape=4,4", "--num_eval_episodes=1"]
COMMANDS = {
  "pbt": [
    *_PBT, "--num_eval_episodes=2", "--normalize_observations",
    "--log_to=tensorboard", "--randomize=action_noise:uniform:0:0.3",
    "--randomize=action_delay:uniform:0:2"],
  "recurrent": [
    *_PBT, "--memory=lstm:3", "--sequence_length=6", "--burn_in=2"],
  "pb2": [*_PBT, "--controller=pb2"],
  "mf_pbt": [
    *_PBT, "--population_size=8", "--controller=mf_pbt", "--frequencies=1,3"],
  "smerl": [*_PBT, "--learner=smerl", "--num_skills=2", "--population_size=2"],
  "metra": [
    *_PBT, "--learner=metra", "--population_size=2", "--fitness=coverage"],
  "me_pbt": [
    *_REPERTOIRE, "--population_size=4", "--num_replaced=1",
    "--num_timesteps=240", "--perturbation_interval=40", "--adding=adaptive"],
  "aurora": [
    *(x for x in _REPERTOIRE if not re.search("num_envs|variation", x)),
    "--emitter=pga:4,ga:4", "--describer=aurora",
    "--tessellation=none", "--container=threshold", "--num_cells=16",
    "--improvement_interval=1", "--num_generations=6", "--describer_epochs=2",
    "--num_critic_steps=4", "--num_policy_steps=2", "--num_reevaluations=2"],
  "soft": [
    *(x for x in _REPERTOIRE if not re.search("num_envs|variation", x)),
    "--emitter=pga:2,cma:4,me_es:5", "--container=soft", "--num_generations=6",
    "--num_critic_steps=4", "--num_policy_steps=2"],
  "low_spread": [
    *_REPERTOIRE, "--num_eval_episodes=2", "--container=low_spread",
    "--population_size=4", "--num_timesteps=240", "--perturbation_interval=40"],
  "fronts": [
    *_REPERTOIRE, "--env_name=rastrigin_pair", "--container=mome",
    "--front_size=3", "--population_size=4", "--num_timesteps=240",
    "--perturbation_interval=40"],
  # With parts of a user's own, see `tests/trials`.
  "own_learner_and_controller": [
    *(flag for flag in _PBT if "hidden_layer" not in flag),
    "--learner=tests.trials.batch_norm_learner:make_learner",
    "--controller=tests.trials.remembering_controller:make_controller",
    "--search_space=noise:uniform:0.1:0.9", "--num_eval_episodes=2"],
  "own_emitter_and_container": [
    *(x for x in _REPERTOIRE if not re.search("num_envs|grid_shape", x)),
    "--emitter=tests.trials.learning_emitter:make_emitter",
    "--tessellation=tests.trials.fittest:make_container",
    "--num_generations=6", "--num_reevaluations=0"]}


class Point(NamedTuple):
  """What happens to a run, and when, see `dying.py`."""

  what: str
  count: int
  delay: float = 0.0
  folder: str = "."


NEVER = Point("SIGTERM", 0, folder="-")


def after(generation: int) -> Point:
  """Returns the point at which all of a generation has just been done."""
  return Point("SIGKILL", generation, folder="-")


def start(
  command: Sequence[str], logdir: pathlib.Path | None, *more_flags: str,
  point: Point = NEVER, num_devices: int = 2, cwd: pathlib.Path | None = None,
) -> subprocess.Popen:
  """Starts a launcher, or lets it go on, in a process of its own."""
  launcher, *flags = [*command, *more_flags]
  folder = "-"
  if logdir is not None:
    flags.append(f"--logdir={logdir}")
    if (logdir / "config.json").exists():
      flags.append("--resume")
    folder = "-" if point.folder == "-" else str(logdir / point.folder)
  return subprocess.Popen(
    [
      sys.executable, str(_DYING), folder, point.what, str(point.count),
      str(point.delay), str(harness.LAUNCHERS / f"{launcher}.py"), *flags],
    cwd=cwd, env=os.environ | {"JAX_NUM_CPU_DEVICES": str(num_devices)},
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_address() -> str:
  """Returns an address of this machine that nobody listens to."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    return f"localhost:{free.getsockname()[1]}"


def finish(process: subprocess.Popen, *codes: int) -> tuple[int, str]:
  """Waits for a process, which must exit with one of `codes`, by default 0.

  Returns the number of its file operations, and its standard error.
  """
  _, error = process.communicate(timeout=600)
  # Orbax logs what its own threads meet, such as a full disk.
  root = re.escape(str(harness.LAUNCHERS.parent))
  assert not re.search(f'File "{root}/(launchers|qdrl_haiku)/', error), error
  assert process.returncode in (codes or (0,)), (process.args, error)
  found = re.search(r"operations: (\d+)", error)
  return int(found.group(1)) if found else 0, error


def contents(logdir: pathlib.Path) -> dict[str, Any]:
  """All of a finished run that doesn't depend on the clock.

  Rows by file; numbers of events; arrays by checkpoint and leaf; arrays of
  repertoires.
  """
  found: dict[str, Any] = {}
  for name in _ROWS:
    if (logdir / name).exists():
      found[name] = [
        {k: v for k, v in json.loads(line).items() if not TIMES.search(k)}
        for line in (logdir / name).read_text().splitlines()]
  found["versions"] = (logdir / "versions.json").exists()
  found["events"] = sorted(
    (name, step, repr(value))
    for name, step, value in events.events(logdir)
    if not TIMES.search(name))
  found["csv rows"] = (logdir / "metrics.csv").read_text().count("\n")
  for folder in ("checkpoints", "best"):
    # The last; what else is kept depends on where the run was interrupted.
    steps = [p for p in (logdir / folder).iterdir() if p.name.isdecimal()]
    step = max(steps, key=lambda path: int(path.name))
    found[folder] = step.name
    for item in sorted(path for path in step.iterdir() if path.is_dir()):
      if item.name == "record":
        record = json.loads((item / "metadata").read_text())
        record.pop("walltime", None)
        found[f"{folder} record"] = record
        continue
      for path, x in jax.tree_util.tree_leaves_with_path(_arrays(item)):
        keys = jax.tree_util.keystr(path)
        found[f"{folder} {item.name} {keys}"] = np.asarray(x)
  for path in sorted(logdir.glob("repertoire/*.npz")):
    with np.load(path) as arrays:
      for name in set(arrays) - {"config"}:
        found[f"{path.name} {name}"] = arrays[name]
  return found


def _arrays(item: pathlib.Path) -> Any:
  """A tree of a checkpoint as NumPy arrays, on whatever devices it was."""
  checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
  metadata = checkpointer.metadata(item).item_metadata.tree
  arguments = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata)
  return checkpointer.restore(
    item, args=ocp.args.PyTreeRestore(restore_args=arguments))


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
  """The names of the contents of two runs that differ, to the bit."""

  def bits(x: Any) -> Any:
    return (x.dtype, x.shape, x.tobytes()) if hasattr(x, "dtype") else x

  return sorted(
    name
    for name in actual.keys() | expected.keys()
    if bits(actual.get(name)) != bits(expected.get(name)))


def _random_points(
  num_operations: int, generator: random.Random
) -> Iterator[Point]:
  """Points, some of which lie inside writes that Python doesn't see."""
  while True:
    yield Point(
      generator.choice(["SIGKILL", "SIGKILL", "SIGKILL", "SIGTERM"]),
      generator.randint(1, max(1, num_operations // 2)),
      generator.choice([0.0, generator.uniform(0.0, 0.05)]))


def _kill_anywhere(commands: list[str], root: pathlib.Path) -> None:
  """Kills runs of commands at random until there were enough points."""
  generator = random.Random(flags.FLAGS.seed)
  cache = f"--compilation_cache_dir={root / 'cache'}"
  for name in commands:
    command = [*COMMANDS[name], cache]
    never = NEVER._replace(folder=".")
    operations, _ = finish(start(command, root / name, point=never))
    expected = contents(root / name)
    wanted = -(-flags.FLAGS.num_points // len(commands))
    points = _random_points(operations, generator)
    done = chain = 0
    while done < wanted:
      chain += 1
      logdir = root / f"{name}{chain}"
      code = -9
      while code and done < wanted:
        process = start(command, logdir, point=next(points))
        finish(process, 0, -9, INTERRUPTED)
        code = process.returncode
        done += code != 0
      if code:
        finish(start(command, logdir))
      found = differences(contents(logdir), expected)
      print(f"{name}: {done} points, differing: {found}", flush=True)
      if found:
        sys.exit(1)


def main(argv: list[str]) -> None:
  """Kills runs of all commands."""
  del argv
  logging.set_verbosity(logging.ERROR)  # orbax reports every file.
  with tempfile.TemporaryDirectory() as folder:
    commands = flags.FLAGS.commands or list(COMMANDS)
    _kill_anywhere(commands, pathlib.Path(folder))


if __name__ == "__main__":
  flags.DEFINE_integer("num_points", 200, "How many there are in all.")
  flags.DEFINE_integer("seed", 0, "Seed of the points.")
  flags.DEFINE_list("commands", None, "Some of this file; by default all.")
  app.run(main)
