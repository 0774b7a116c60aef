"""Tests what a generation does on an accelerator, where jax can compile it."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

_BENCHMARK = pathlib.Path(__file__).parents[3] / "launchers" / "benchmark.py"
_FLAGS = (
  "--algorithm=compile", "--env_name=point_maze", "--population_size=4",
  "--hidden_layer_sizes=64,64", "--perturbation_interval=800",
  "--num_timesteps=1600")


def _run(*flags):
  return subprocess.run(
    [sys.executable, _BENCHMARK, *_FLAGS, *flags], capture_output=True,
    text=True)


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec("jax_cuda12_plugin") is None,
  reason="jax's compiler for NVIDIA isn't installed (jax-cuda12-plugin)")
def test_an_update_waits_for_no_host():
  done = _run("--learner=sac")
  assert done.returncode == 0, done.stderr
  train = json.loads(done.stdout)["train"]
  assert train["conditionals"] == train["transfers"] == 0
  assert train["parts"]["learn"]["seconds"] > 0


@pytest.mark.slow
def test_the_machines_own_program_is_counted_but_not_modelled():
  done = _run("--target=cpu", "--num_targets=2")
  assert done.returncode == 0, done.stderr
  train, evaluate = (json.loads(done.stdout)[x] for x in ("train", "evaluate"))
  assert train["transfers"] == 0
  assert train["parts"]["learn"]["kernels"] > 0
  assert train["parts"]["learn"]["seconds"] is None
  assert "not modelled" in done.stderr
  assert evaluate["moved_bytes"]["all-reduce"] > 0


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec("jax_cuda12_plugin") is not None,
  reason="jax's compiler for NVIDIA is installed")
def test_a_missing_compiler_is_one_line_with_the_packages():
  done = _run()
  assert done.returncode == 2
  assert "pip install --no-deps jax-cuda12-plugin" in done.stderr
  assert "Traceback" not in done.stderr
