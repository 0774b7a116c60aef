"""Measures how fast training is, and prints a line of JSON.

python launchers/benchmark.py --algorithm=pbt \
  --flagfile=launchers/flagfiles/quickstart.flags

Takes the flags of train_pbt.py, or with --algorithm=me_pbt of train_me_pbt.py.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence

from qdrl_haiku.types import Record

_START = time.monotonic()

# Imports are a part of what is measured.
import jax  # noqa: E402

from qdrl_haiku import checks, learners  # noqa: E402
from qdrl_haiku import config as config_lib  # noqa: E402
from qdrl_haiku.config import Settings, Values, setting  # noqa: E402
from qdrl_haiku.distributed import sharding  # noqa: E402
from qdrl_haiku.programs import accelerators, experiment, runs  # noqa: E402
from qdrl_haiku.programs.cli import devices, launch, training  # noqa: E402
from qdrl_haiku.programs.cli.launch import Given  # noqa: E402
from qdrl_haiku.programs.drawing import figure  # noqa: E402
from qdrl_haiku.programs.experiment import Config, Launcher  # noqa: E402
from qdrl_haiku.programs.storage import directory, strict_json  # noqa: E402

_GENERATIONS = ("pbt", "me_pbt")
_COMPILES = ("compile", "compile_me_pbt")
_RUN_SETTINGS = {field.name for field in dataclasses.fields(runs.RunConfig)} - {
  "logdir", "num_generations", "num_timesteps", "resume", "seed"}
# Of each column of rows: its label, and the cost of a number in it.
_COSTS = {
  "env_steps_per_second": ("µs per environment step", lambda x: 1e6 / x),
  "updates_per_second": ("µs per update", lambda x: 1e6 / x),
  "generation_seconds": ("s per generation", lambda x: x),
  "exploit_milliseconds": ("ms per decision and its copies", lambda x: x),
  "time_to_first_update_seconds": ("s to the first update", lambda x: x)}
# Numbers of a row that depend on what the compilation cache holds.
_START_COLUMNS = (
  "compile_seconds", "time_to_first_update_seconds",
  "time_to_first_generation_seconds")


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig(Settings):
  """Says what is measured, and how often."""

  title = "Benchmark"

  algorithm: str = setting(
    "pbt",
    "pbt or me_pbt: whole generations; update: their updates alone; exploit: a "
    "decision and its copies; add: MAP-Elites without agents; compile or "
    "compile_me_pbt: nothing is run, but a generation is compiled for "
    "--target, and what it launches is counted.",
    choices=(*_GENERATIONS, "update", "exploit", "add", *_COMPILES))
  target: str = setting(
    "h100",
    "Accelerator to compile for, present or not; cpu for this machine's own.",
    choices=tuple(accelerators.TARGETS), only={"algorithm": _COMPILES})
  num_targets: int = setting(
    1, "Number of --target devices over which agents are sharded.",
    low=1, only={"algorithm": _COMPILES})
  repetitions: int = setting(
    5,
    "Measurements after a warm-up; their median is printed. Fewer if they take "
    "over a minute. Without --perturbation_interval each takes a few seconds, "
    "and without --num_eval_episodes an evaluation is one episode.",
    low=1)
  start_twice: bool = setting(
    True,
    "With pbt and me_pbt: measure a start with an empty compilation cache, "
    "then one with the cache that it filled; otherwise use the usual cache.")
  sweep: str | None = setting(
    None, "A flag and its values, like population_size:1,2,4,8: a row each.")
  output: str = setting("sweep.png", "New file for a sweep's plot.")

  @property
  def starts_twice(self) -> bool:
    """Whether whole generations are measured in two processes."""
    return self.start_twice and self.algorithm in _GENERATIONS


def _main(given: Given) -> None:
  config = given.fill(BenchmarkConfig())
  program = _launcher()
  is_me_pbt = program is experiment.TRAIN_ME_PBT
  with checks.Refusals() as refusals:
    if config.algorithm.endswith("me_pbt") != is_me_pbt:
      refusals.refuse(
        f"give --algorithm={config.algorithm} on the command line, in one "
        "word: which other flags there are depends on it.")
    if config.sweep and config.algorithm in (*_COMPILES, "add"):
      refusals.refuse(
        f"--sweep={config.sweep} draws no costs of --algorithm="
        f"{config.algorithm}; take another algorithm, or leave it out.")
    # A flagfile may be that of runs.
    for name in sorted(given.typed & _RUN_SETTINGS):
      refusals.refuse(
        f"--{name} has no effect on what is measured; leave it out, or give it "
        f"to {program.name}.py.")
    # It is empty where a sweep measures one of its values.
    if config.sweep is None and "output" in given.values:
      refusals.refuse(
        f"--output={config.output} has no effect without --sweep; leave it "
        "out.")
  if config.sweep:
    _sweep(config, config.sweep, program.flags())
  elif config.algorithm in _COMPILES:
    _compile(config, training.configure_training_from_flags(program, given))
  elif config.starts_twice:
    print(json.dumps(_measure_anew(config, [])))
  else:
    devices.prepare_jax_devices(given.fill(devices.ProcessConfig()))
    run = training.configure_training_from_flags(program, given)
    _measure(config, run, given.values)


def _launcher() -> Launcher:
  """Returns the program whose runs are measured."""
  is_me_pbt = any(x.endswith("me_pbt") for x in sys.argv if "algorithm" in x)
  return experiment.TRAIN_ME_PBT if is_me_pbt else experiment.TRAIN_PBT


def _compile(config: BenchmarkConfig, run: Config) -> None:
  """Prints what a generation would cost on a target: a table and JSON."""
  from qdrl_haiku.programs.accelerators import cost, generation

  # As many as are asked for where the target is the CPU.
  jax.config.update("jax_num_cpu_devices", config.num_targets)
  costs = generation.generation_costs(
    lambda: experiment.build(run), config.target, config.num_targets)
  print(cost.generation_costs_table(costs, config.target), file=sys.stderr)
  names = ("algorithm", "target", "num_targets")
  row = {name: getattr(config, name) for name in names}
  row |= {name: dataclasses.asdict(x) for name, x in costs.items()}
  print(strict_json.to_strict_json(row | directory.library_versions()))


def _measure(config: BenchmarkConfig, run: Config, given: Values) -> None:
  """Measures in this process."""
  from qdrl_haiku.programs import benchmarks

  row: Record = {"algorithm": config.algorithm}
  if config.algorithm == "add":
    row |= benchmarks.benchmark_adding(config.repetitions)
  else:
    has_skills = isinstance(run.learner, learners.SkillAgentConfig)
    if run.training.num_eval_episodes is None and not has_skills:
      settings = dataclasses.replace(run.training, num_eval_episodes=1)
      run = dataclasses.replace(run, training=settings)
    setup = experiment.build(run)
    mesh = setup.make_mesh()
    setup = setup._replace(mesh=mesh)
    if setup.controller and "perturbation_interval" not in given:
      size = given.get("min_replay_size")
      setup = benchmarks.shorten_for_benchmark(setup, min_replay_size=size)
    key = sharding.put_keys_on_mesh(mesh, jax.random.key(run.run.seed))
    if config.algorithm in _GENERATIONS:
      row |= benchmarks.benchmark_generations(
        setup, config.repetitions, key, _START)
    else:
      measure = benchmarks.benchmark_exploiting
      if config.algorithm == "update":
        measure = benchmarks.benchmark_updating
      row |= measure(setup, config.repetitions, key)
    row |= benchmarks.benchmark_resources(setup)
    row |= {
      "devices_used": mesh.size,
      "perturbation_interval": setup.config.perturbation_interval,
      "num_eval_episodes": setup.config.num_eval_episodes}
  print(strict_json.to_strict_json(row | directory.library_versions()))


def _sweep(config: BenchmarkConfig, sweep: str, known: Collection[str]) -> None:
  """Prints a row for each value of a flag, and draws what it costs."""
  match = re.fullmatch(r"(\w+):([^,]+(?:,[^,]+)+)", sweep)
  if match is None or match[1] not in known:
    raise ValueError(
      f"--sweep={sweep} must be a flag and its values, like "
      "population_size:1,2,4,8.")
  if os.path.lexists(config.output):
    raise ValueError(f"--output={config.output} is there; name a new file.")
  if not pathlib.Path(config.output).parent.is_dir():
    raise ValueError(
      f"--output={config.output}: there is no directory for it.")
  name, rows = match[1], []
  for value in match[2].split(","):
    rows.append({name: value, **_measure_anew(config, [f"--{name}={value}"])})
    print(json.dumps(rows[-1]), flush=True)
  from qdrl_haiku.programs.drawing import with_matplotlib

  drawn = with_matplotlib.draw_with_matplotlib(costs_figure(rows, name))
  drawn.savefig(config.output, dpi=120)
  print(f"wrote {config.output}", file=sys.stderr)


def costs_figure(
  rows: Sequence[Mapping[str, float]], name: str
) -> figure.Figure:
  """Describes a panel of each cost that all rows have, if none is 0."""
  values, panels = [str(row[name]) for row in rows], []
  for column, (label, cost) in _COSTS.items():
    if all(row.get(column) for row in rows):
      numbers = [cost(row[column]) for row in rows]
      trace = figure.Trace(values, numbers, in_legend=False, sizes=8)
      y = figure.Axis(label, range=(0, 1.05 * max(numbers)))
      panels.append(figure.Panel("", [trace], figure.Axis(name), y))
  return figure.Figure(panels, 300, columns=len(panels))


def _measure_anew(
  config: BenchmarkConfig, arguments: Sequence[str]
) -> Record:
  """Measures in processes of their own, with arguments besides this one's."""
  if not config.starts_twice:
    return _measure_elsewhere(arguments)
  # One fills an empty cache, and one, whose row it is, starts with that.
  with tempfile.TemporaryDirectory() as cache:
    arguments = [*arguments, f"--compilation_cache_dir={cache}"]
    cold = _measure_elsewhere([*arguments, "--repetitions=1"])
    row = _measure_elsewhere(arguments)
  for name in _START_COLUMNS:
    row[f"warm_{name}"] = row[name]
    row[name] = cold[name]
  return row


def _measure_elsewhere(arguments: Sequence[str]) -> Record:
  """Measures in a process of its own, whose error becomes that of this one."""
  program = launch.subprocess_launcher("benchmark")
  command = [sys.executable, program, *sys.argv[1:], *arguments]
  command += ["--sweep=", "--nostart_twice"]
  # What it says meanwhile, such as how long it will take, is seen at once.
  done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
  if done.returncode != 0:
    sys.exit(done.returncode)
  return json.loads(done.stdout)


def benchmark_from_flags() -> None:
  """Starts this launcher with the arguments of the command line."""
  own = config_lib.config_tree_flags(BenchmarkConfig()) | _launcher().flags()
  own |= config_lib.config_tree_flags(devices.ProcessConfig())
  launch.launch_main(_main, own, __doc__, _launcher().former)
