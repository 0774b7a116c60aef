"""Every program writes to its run, its output and its cache, nowhere else."""

import os
import subprocess
import sys

import pytest

from tests.launchers import harness

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
  (places["modules"] / "warning_maze.py").write_text(_SOURCE)
  path = f"{harness.LAUNCHERS.parent}:{places['modules']}"
  for name, *flags in _PROGRAMS:
    done = subprocess.run(
      [
        sys.executable,
        str(harness.LAUNCHERS / f"{name}.py"),
        *(flag.replace("{}", str(places["written"])) for flag in flags),
      ],
      cwd=places["empty"],
      env=os.environ
      | {"JAX_COMPILATION_CACHE_DIR": str(places["cache"]), "PYTHONPATH": path},
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, (name, done.stderr)
    assert list(places["empty"].iterdir()) == [], name
