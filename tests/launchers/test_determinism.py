"""Tests that a run ends with the same bits on whatever way it came there.

It may be killed anywhere, go on on other devices and processes, and find its
programs compiled. Devices of a machine with one CPU are threads of it, and
processes of one machine talk as those of several do.
"""

import json
import os
import random
import re
import signal
import time

import pytest

from qdrl_haiku.programs.cli import devices
from tests.launchers import kill

_SMALL = [
  "--env_name=point_maze", "--episode_length=20", "--num_envs=2",
  "--batch_size=8", "--hidden_layer_sizes=8", "--replay_capacity=200",
  "--min_replay_size=16", "--perturbation_interval=40", "--num_timesteps=120",
  "--num_eval_episodes=2", "--log_to=", "--max_checkpoints=1"]
_PBT = [
  "train_pbt", *_SMALL, "--learner=sac",
  "--randomize=observation_noise:uniform:0:0.3"]
_PPO = [
  "train_pbt", *(x for x in _SMALL if not re.search("batch|replay", x)),
  "--learner=ppo", "--rollout_length=10", "--population_size=4"]
_REPERTOIRE = [
  "train_me_pbt", *_SMALL, "--num_initial_genotypes=8",
  "--num_replaced=2", "--grid_shape=4,4"]
_ME_PBT = [
  *_REPERTOIRE, "--learner=sac", "--population_size=8",
  "--variation_batch_size=8"]
_CODES = {"SIGKILL": -9, "SIGTERM": kill.INTERRUPTED, "FULL": 1}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  """The flag of a cache of programs that these runs share."""
  return f"--compilation_cache_dir={tmp_path_factory.mktemp('cache')}"


@pytest.fixture(scope="module")
def straight(cache, tmp_path_factory):
  """(name, folder) -> how an uninterrupted run ends; its operations there."""
  known = {}

  def get(name, folder="."):
    if name not in known:
      logdir = tmp_path_factory.mktemp("straight") / name
      never = kill.NEVER._replace(folder=folder)
      process = kill.start(kill.COMMANDS[name], logdir, cache, point=never)
      operations, _ = kill.finish(process)
      known[name] = kill.contents(logdir), operations
    return known[name]

  return get


def _assert_ends_as(expected, name, logdir, *flags):
  kill.finish(kill.start(kill.COMMANDS[name], logdir, *flags))
  assert kill.differences(kill.contents(logdir), expected) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "whats", "folder"), [
  ("pbt", ("SIGKILL", "SIGTERM", "FULL"), "."),
  ("me_pbt", ("SIGKILL", "SIGKILL"), "checkpoints"),
], ids=["anywhere", "while a checkpoint is written"])
def test_a_run_cut_short_anywhere_ends_as_the_uninterrupted_one(
  name, whats, folder, cache, straight, tmp_path
):
  """Also where the disk is full, which leaves the last checkpoint usable."""
  expected, operations = straight(name, folder)
  seed = random.randrange(2**32)
  print(f"points are drawn with the seed {seed}")  # Where the test fails.
  logdir, generator = tmp_path / name, random.Random(seed)
  for what in whats:
    count = generator.randint(operations // 8, operations // 4)
    # Arrays are written by other threads than Python's, a little later.
    delay = generator.choice([0.0, 0.005])
    point = kill.Point(what, count, delay, folder)
    process = kill.start(kill.COMMANDS[name], logdir, cache, point=point)
    _, error = kill.finish(process, _CODES[what])
    if what == "FULL":
      assert re.search("error: .* go on with --resume", error), error
  _assert_ends_as(expected, name, logdir, cache)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "interval", "generations"), [
  ("pbt", 5, (2, 4, 5)), ("mf_pbt", 3, (4,)), ("smerl", 3, (2, 5)),
  ("recurrent", 3, (2, 5)),
  ("metra", 3, (4,)),
  ("me_pbt", 5, (3, 4)), ("own_learner_and_controller", 3, (2, 5)),
  ("own_emitter_and_container", 3, (2, 5)), ("aurora", 2, (2, 5)),
  ("soft", 2, (2, 5)), ("low_spread", 3, (4,)), ("fronts", 3, (2, 5))])
def test_a_run_killed_after_generations_ends_as_the_uninterrupted_one(
  name, interval, generations, cache, straight, tmp_path
):
  expected, _ = straight(name)
  logdir, flag = tmp_path / name, f"--checkpoint_interval={interval}"
  for generation in generations:
    process = kill.start(
      kill.COMMANDS[name], logdir, cache, flag, point=kill.after(generation))
    kill.finish(process, -9)
  _assert_ends_as(expected, name, logdir, cache, flag)


def _start_two(command, logdir, *flags, num_devices, cwd=None):
  """Two processes with so many devices each."""
  address = f"--coordinator_address={kill.free_address()}"
  return [
    kill.start(
      command, logdir, *flags, address,
      "--num_processes=2", f"--process_id={i}", num_devices=num_devices,
      cwd=cwd)
    for i in range(2)]


def _run(command, logdir, placement, *flags):
  """Runs on some devices, or "2x2": on two processes of two each."""
  if placement == "2x2":
    processes = _start_two(command, logdir, *flags, num_devices=2)
  else:
    processes = [kill.start(command, logdir, *flags, num_devices=placement)]
  for process in processes:
    kill.finish(process)


def _contents(logdir, size=None):
  """All but means over members, which are summed in another order.

  Of slots the first ones, which members are in.
  """
  members = re.compile(r"checkpoints (learner|replay|environment) ")
  return {
    name: x[:size] if members.match(name) else x
    for name, x in kill.contents(logdir).items()
    # A run that first ended there wrote a repertoire.
    if name != "metrics.jsonl" and not name.startswith("40.npz")}


def _after(steps, placement):
  return placement, f"--num_timesteps={steps}"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "ways"), [
  ([*_PBT, "--population_size=8"],
   [[(1,)], [(8,)], [_after(40, "2x2"), _after(80, 4), _after(120, "2x2")]]),
  ([*_PBT, "--population_size=4", "--memory=gru:3", "--sequence_length=6",
    "--burn_in=2"], [[(1,)], [_after(40, 2), _after(80, 1), _after(120, 4)]]),
  ([*_PPO, "--memory=lstm:3", "--num_envs=4"], [[(1,)], [(4,)]]),
  # In 8, 7 and 9 slots.
  ([*_PBT, "--population_size=7"],
   [[(1,)], [_after(40, 4), _after(80, 1), _after(120, 3)]]),
  ([*_PBT, "--population_size=8", "--controller=pb2", "--num_timesteps=240"],
   [[(1,)], [(4,)]]),
  (_PPO, [[(1,)], [_after(40, 2), _after(120, 1)]]),
  ([
     *_REPERTOIRE, "--learner=td3", "--emitter=pbt:4,dcrl:4,ascii:4,qdpg:4",
     "--num_critic_steps=4", "--num_policy_steps=3", "--adding=adaptive",
     "--replay_capacity=400",
   ], [[(1,)], [_after(40, 1), _after(120, 4)]]),
  ([*_REPERTOIRE, "--learner=td3", "--emitter=pbt:4,cma:8"], [[(1,)], [(4,)]]),
  ([
     *_REPERTOIRE, "--learner=td3", "--emitter=pbt:4,cma:4,me_es:4",
     "--container=soft", "--cma_ranking=random_direction",
   ], [[(1,)], [(4, "--shard_repertoire")]]),
  ([*_ME_PBT, "--tessellation=none", "--num_cells=16"],
   [[(1,)], [(4, "--shard_repertoire")]]),
  ([
     *_ME_PBT, "--describer=aurora", "--tessellation=none",
     "--container=threshold", "--num_cells=16", "--improvement_interval=1",
     "--describer_epochs=3",
   ], [[(1,)], [(4,)]]),
  ([
     *_ME_PBT, "--env_name=rastrigin_pair", "--container=mome",
     "--front_size=3"],
   [[_after(40, 1), _after(120, 2)], [_after(40, 2), _after(120, 1)]]),
  # All of them look again at their shares of the elites.
  ([*_ME_PBT, "--num_reevaluations=3"],
   [[(2, "--noshard_repertoire")], [("2x2", "--shard_repertoire")]]),
], ids=[
  "population", "recurrent", "recurrent rollouts", "seven", "pb2", "rollouts",
  "critics", "cma", "soft", "no cells", "aurora", "fronts", "cells"])
def test_no_devices_or_processes_change_a_bit(command, ways, cache, tmp_path):
  size = 7 if "--population_size=7" in command else None
  first = None
  for i, way in enumerate(ways):
    logdir = tmp_path / str(i)
    for placement, *flags in way:
      _run(command, logdir, placement, cache, *flags)
    found = _contents(logdir, size)
    corrected = logdir / "corrected.json"
    again = json.loads(corrected.read_text()) if corrected.exists() else {}
    first = first or (found, again)
    assert kill.differences(found, first[0]) == [], way
    assert again == pytest.approx(first[1]), way


@pytest.mark.slow
def test_two_processes_agree_on_a_name_and_a_warm_start(cache, tmp_path):
  # Agents of nine slots go to six.
  _run([*_PBT, "--population_size=7"], tmp_path / "other", 3, cache)
  command = [
    *_PBT, "--population_size=5", f"--warm_start={tmp_path / 'other'}",
    "--seed=1"]
  _run(command, tmp_path / "alone", 1, cache)
  for process in _start_two(command, None, cache, num_devices=1, cwd=tmp_path):
    kill.finish(process)
  (logdir,) = (tmp_path / "logs").iterdir()
  assert re.fullmatch(r"point_maze-pbt_sac-\d{8}-\d{6}-\d{6}", logdir.name)
  found, expected = _contents(logdir, 5), _contents(tmp_path / "alone", 5)
  assert kill.differences(found, expected) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_or_hangs_ends_the_other(
  victim, number, cache, tmp_path
):
  logdir = tmp_path / "run"
  command = [*_PBT, "--population_size=8", "--checkpoint_interval=1", cache]
  processes = _start_two(
    command, logdir, "--num_timesteps=40000", num_devices=1)
  deadline = time.monotonic() + 300
  while not (logdir / "checkpoints" / "80").exists():
    assert time.monotonic() < deadline
    time.sleep(0.1)
  processes[victim].send_signal(number)
  _assert_lost(processes[1 - victim], logdir)
  if number == signal.SIGSTOP:  # It has lost the other one when it wakes up.
    processes[victim].send_signal(signal.SIGCONT)
    _assert_lost(processes[victim], logdir)
  processes[victim].communicate()
  steps = [path.name for path in (logdir / "checkpoints").iterdir()]
  last = max(int(name) for name in steps if name.isdecimal())
  _run(command, logdir, "2x2", f"--num_timesteps={last + 40}")


def _assert_lost(process, logdir):
  """Looks whether a process says in one line that another one is gone."""
  _, error = process.communicate(timeout=60)
  assert process.returncode == 1, error
  assert re.fullmatch(
    r"error: another process is gone or out of reach \(.+\); start all of them "
    rf"with --resume --logdir={logdir}\n", error), error


def test_processes_are_told_to_wait_by_flags_that_xla_knows(monkeypatch):
  flag, *others = devices._WAITING
  monkeypatch.setattr(devices, "_WAITING", (flag, *others, "xla_no_such_flag"))
  monkeypatch.setenv("XLA_FLAGS", f"--{flag}=7")
  devices._allow_waiting()
  # What the user said stays.
  given, *added = os.environ["XLA_FLAGS"].split()
  assert given == f"--{flag}=7"
  assert added == [f"--{name}=86400" for name in others]
