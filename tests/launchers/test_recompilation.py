"""Tests that launchers compile all they need for their first generation."""

import os
import re
import subprocess
import sys

import pytest

from tests.launchers import harness, kill

_LAUNCHERS = {
  "train_pbt": [
    "--learner=diayn", "--num_skills=4", "--num_eval_episodes=4",
    "--population_size=4", "--perturbation_interval=40", "--num_timesteps=160",
    "--num_replaced=1",
  ],
  "train_me_pbt": [
    "--learner=td3", "--gradient_population_size=4",
    "--variation_batch_size=4", "--num_initial_genotypes=4",
    "--num_replaced_by_best=1", "--num_replaced_by_samples=1",
    "--grid_shape=4,4", "--perturbation_interval=40", "--num_generations=4",
    "--repertoire_interval=1", "--reevaluation_interval=1",
    "--adding=adaptive",
  ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_LAUNCHERS))
def test_nothing_compiles_after_the_first_generation(name, tmp_path):
  finished = subprocess.run(
    [
      sys.executable, str(harness.LAUNCHERS / f"{name}.py"), *kill.SMALL,
      "--num_eval_episodes=2", *_LAUNCHERS[name],
      f"--logdir={tmp_path / 'run'}",
    ],
    env=os.environ | {"JAX_LOG_COMPILES": "1", "PYTHONUNBUFFERED": "1"},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=True,
  )  # fmt: skip
  first, *later = re.split(r"generation \d+/4 ", finished.stdout)
  assert "Compiling jit" in first  # That is how jax calls it.
  assert len(later) == 4
  compiled = re.findall(r"Compiling (jit\S+)", "".join(later))
  assert compiled == []
