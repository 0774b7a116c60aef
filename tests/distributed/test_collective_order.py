"""Tests of the order in which devices wait for each other."""

import os
import subprocess
import sys

import pytest

from tests.distributed.collective_order import in_one_order
from tests.launchers import harness

_PARTS = """HloModule jit_f

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

%body.1 (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  ROOT %sum.1 = f32[4] all-reduce(%p), to_apply=%add
}

"""
_FIRST = "%first = f32[4] all-gather(%a), replica_groups={{0,1}}"
_START = "%start = f32[4] all-reduce-start(%a), to_apply=%add"


@pytest.mark.parametrize(("lines", "expected"), [
  # The parts of one that is split in time are one.
  ([_START, "ROOT %done = f32[4] all-reduce-done(%start)"], True),
  # One needs the other's result, or not; in a loop.
  (
    [_FIRST, "%b = f32[4] negate(%first)",
     "ROOT %c = f32[4] while(%b), condition=%add, body=%body.1"], True,
  ),
  (
    [_FIRST, "ROOT %c = f32[4] while(%a), condition=%add, body=%body.1"],
    False,
  ),
])
def test_collectives_are_in_one_order_where_each_needs_the_one_before(
  lines, expected
):
  body = "\n".join(f"  {x}" for x in ("%a = f32[4] parameter(0)", *lines))
  program = f"{_PARTS}ENTRY %main.7 (a: f32[4]) -> f32[4] {{\n{body}\n}}\n"
  assert in_one_order(program) == expected


_SMALL = (
  "--env_name=point_maze", "--episode_length=20", "--num_envs=2",
  "--batch_size=8", "--hidden_layer_sizes=8", "--replay_capacity=200",
  "--min_replay_size=16", "--num_eval_episodes=2", "--num_timesteps=80",
  "--perturbation_interval=40", "--nouse_tensorboard",
  "--gradient_population_size=4", "--variation_batch_size=4",
  "--num_initial_genotypes=8", "--grid_shape=4,4", "--num_replaced_by_best=2",
)  # fmt: skip


@pytest.mark.slow
def test_whatever_a_run_compiles_is_in_one_order(tmp_path):
  dump = tmp_path / "programs"
  subprocess.run(
    [
      sys.executable, str(harness.LAUNCHERS / "train_me_pbt.py"), *_SMALL,
      f"--logdir={tmp_path / 'run'}", "--compilation_cache_dir=",
    ],
    env=os.environ | {
      "JAX_NUM_CPU_DEVICES": "2",
      "XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_hlo_as_text",
    },
    check=True,
    capture_output=True,
  )  # fmt: skip
  programs = {
    path.name: path.read_text()
    for path in dump.glob("*after_optimizations.txt")
  }
  assert any("all-reduce" in text for text in programs.values())
  assert [x for x in programs if not in_one_order(programs[x])] == []
