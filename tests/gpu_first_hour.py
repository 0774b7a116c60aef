"""Measures on an accelerator what only one can tell, within ten minutes.

python -m tests.gpu_first_hour --output=first_hour.md
python -m tests.gpu_first_hour --output=first_hour.md --small   # Tries it out.

Each measurement is a launcher in a process of its own. First all of them
compile, side by side and in half of the time; then each is measured in turn,
out of the compilation cache, in its share of what is left. The table says what
it is to decide; launchers/RESULTS.md has what a model says of such numbers (by
`benchmark.py --algorithm=compile`), and what an H100 has taken.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from qdrl_haiku.cpu.cores import usable_cores

_LAUNCHERS = pathlib.Path(__file__).parents[1] / "launchers"
_TRIPOD = pathlib.Path(__file__).parent / "environments/robots/tripod.xml"
_SECONDS = 600
_MAZE = (
  "--env_name=point_maze", "--hidden_layer_sizes=64,64", "--batch_size=256",
  "--num_eval_episodes=1", "--nostart_twice", "--repetitions=3")
_PPO = (
  "--learner=ppo", "--env_name=ant", "--num_envs=2048", "--population_size=4",
  "--hidden_layer_sizes=64,64", "--perturbation_interval=819200",
  "--num_timesteps=4096000")


# Where the script itself is tried out.
_SMALL = {
  "benchmark": (
    "--perturbation_interval=160", "--repetitions=1", "--min_replay_size=160",
    "--replay_capacity=10000"),
  "train_pbt": (
    "--num_envs=64", "--perturbation_interval=1600", "--num_timesteps=3200")}


class Measurement(NamedTuple):
  """A command, and what its numbers are to decide."""

  question: str
  launcher: str
  flags: tuple[str, ...]
  numbers: tuple[str, ...]
  environment: tuple[tuple[str, str], ...] = ()


def _benchmark(question, algorithm, flags, *numbers):
  """A measurement by the benchmark launcher."""
  flags = (f"--algorithm={algorithm}", *flags)
  return Measurement(question, "benchmark", flags, numbers)


def _measurements(population, num_envs, robot):
  """All of them, for a large population and many environments."""
  four, many = "--population_size=4", f"--population_size={population}"
  updates, steps = "updates_per_second", "env_steps_per_second"
  seconds = "generation_seconds", "time_to_first_update_seconds"
  collecting = "--replay_capacity=1000000"
  batch = f"--num_envs={num_envs}"
  robot = (*_MAZE[1:], f"--env_name={robot}", "--backend=spring")
  return [
    _benchmark(
      "Does a launch take the modelled 2.5 microseconds?", "update",
      (*_MAZE, four), updates),
    _benchmark(
      "Are many agents' updates as long as a few agents'?", "update",
      (*_MAZE, many), updates),
    _benchmark("Is TD3 as fast as modelled?", "update",
               (*_MAZE, four, "--learner=td3"), updates),
    _benchmark("Do wide networks reach the memory's speed?", "update",
               (*_MAZE[:1], *_MAZE[2:], "--hidden_layer_sizes=256,256", many),
               updates, "fraction_of_peak"),
    _benchmark("How long is a substep of spring physics?", "collect",
               (*robot, four, collecting), steps),
    _benchmark("Do many environments cost more than a few?", "collect",
               (*robot, four, collecting, batch), steps),
    *(
      _benchmark(f"How long is an action of a tripod in {physics}?", "collect",
                 (*robot[:-2], f"--env_name={_TRIPOD}", f"--backend={physics}",
                  four, collecting, batch), steps)
      for physics in ("mjx", "warp")),
    _benchmark("What does a decision wait for?", "exploit", (*_MAZE, many),
               "exploit_milliseconds", "decision_milliseconds"),
    _benchmark("How long is a whole generation, and a start?", "pbt",
               (*_MAZE, four), *seconds),
    _benchmark("And if XLA chooses kernels by trying them?", "pbt",
               (*_MAZE, four), *seconds)._replace(
                 environment=(("QDRL_PLAIN", "1"),)),
    Measurement("Does PPO learn?", "train_pbt", _PPO, ("pbt/mean_return",)),
    Measurement("And with exact products (no TF32)?", "train_pbt", _PPO,
                ("pbt/mean_return",),
                (("JAX_DEFAULT_MATMUL_PRECISION", "highest"),))]


def _measure(measurement, folder, timeout):
  """Runs one, and returns its numbers, or why there are none."""
  logdir = folder / str(time.monotonic_ns())
  trains = measurement.launcher.startswith("train")
  command = [
    sys.executable, _LAUNCHERS / f"{measurement.launcher}.py",
    *measurement.flags, *([f"--logdir={logdir}"] if trains else [])]
  # Or the first of several processes takes most of the device's memory.
  environment = (
    os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    | dict(measurement.environment))
  try:
    done = subprocess.run(
      command, timeout=timeout, text=True, capture_output=True, check=False,
      env=environment)
  except subprocess.TimeoutExpired:
    return f"took more than {timeout:.0f} s"
  if done.returncode:
    return (done.stderr.strip().splitlines() or ["failed"])[-1]
  rows = (logdir / "metrics.jsonl").read_text() if trains else done.stdout
  row = json.loads(rows.strip().splitlines()[-1])
  return ", ".join(f"{name} {row[name]:.4g}" for name in measurement.numbers)


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--output", type=pathlib.Path, required=True)
  parser.add_argument("--small", action="store_true")
  arguments = parser.parse_args()
  sizes = 256, 1024, "halfcheetah"
  if arguments.small:
    sizes = 8, 16, "inverted_pendulum"
  lines = ["| | measured | seconds |", "| --- | --- | --- |"]
  measurements, start = _measurements(*sizes), time.monotonic()
  if arguments.small:
    measurements = [
      x._replace(flags=(*x.flags, *_SMALL[x.launcher])) for x in measurements]
  with (
    tempfile.TemporaryDirectory() as folder,
    concurrent.futures.ThreadPoolExecutor(usable_cores().number) as pool,
  ):
    compiling = [
      pool.submit(_measure, x, pathlib.Path(folder), _SECONDS / 2)
      for x in measurements]
    concurrent.futures.wait(compiling, _SECONDS / 2)
    for x in compiling:
      x.cancel()
    for i, measurement in enumerate(measurements):
      begin = time.monotonic()
      left = start + _SECONDS - begin
      timeout = left / (len(measurements) - i)
      found = _measure(measurement, pathlib.Path(folder), timeout)
      seconds = time.monotonic() - begin
      lines.append(f"| {measurement.question} | {found} | {seconds:.0f} |")
      print(lines[-1], flush=True)
      arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
  main()
