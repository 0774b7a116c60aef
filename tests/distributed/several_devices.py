"""Trains the same on one device and on several, and prints what comes of it.

To be run in a process of its own with several devices, since their number can't
be changed once jax has looked for them: `python -m
tests.distributed.several_devices pbt`. On each line of a case there are the
hashes of all results by name, and where they were computed.
"""

import dataclasses
import hashlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import controllers, distributed, training
from qdrl_haiku.programs.runs import compilation, reevaluation
from tests.training import common, test_on_policy


def _repertoire(**plan):
  # Three devices share neither the members nor the offspring evenly.
  setup = common.repertoire_setup(variations=3, **plan)
  # Means of several episodes may be rounded in another way on one device.
  config = dataclasses.replace(setup.config, num_eval_episodes=1)
  return setup._replace(config=config)


def _pbt(**settings):
  # The capacity is a number that no other axis has.
  pbt = controllers.pbt(controllers.PBTConfig(), common.SPACE)
  return common.setup(pbt, replay_capacity=47, **settings)


CASES = {
  # The setup, on how many devices, for how many generations.
  "pbt": (_pbt, (1, 2), 2),
  "uneven": (lambda: _pbt(population_size=5), (1, 2, 4), 2),
  "pb2": (
    lambda: common.setup(
      controllers.pb2(controllers.PB2Config(window=16), common.SPACE),
      population_size=8),
    (1, 4), 6),
  "repertoire": (_repertoire, (1, 3), 2),
  "rollouts": (lambda: test_on_policy.ppo().setup, (1, 2), 2)}


def _with_broken_slots(state, size):
  """What is in the slots that are left over becomes NaN."""

  def put(x):
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return x.at[size:].set(jnp.nan) if is_float else x

  return jax.jit(
    lambda state: state.with_members(jax.tree.map(put, state.members)),
    out_shardings=jax.tree.map(lambda x: x.sharding, state))(state)


def _hashes(tree):
  return {
    name: f"{x.shape} {hashlib.sha256(x.tobytes()).hexdigest()}"
    for name, x in common.leaves(tree).items()}


def _train(setup, num_devices, num_generations, breaks_slots=False):
  """Returns hashes of all results, and where they were computed."""
  size = setup.config.population_size
  mesh = distributed.population_mesh(
    num_devices if setup.map_elites else size, jax.devices()[:num_devices])
  key = jax.device_put(common.KEY, jax.NamedSharding(mesh, jax.P()))
  trainer = training.prepare(setup._replace(mesh=mesh))
  compiled = compilation.make_programs(trainer, key)
  state, reports = compiled.init(key), []
  for generation in range(1, num_generations + 1):
    if breaks_slots:
      state = _with_broken_slots(state, size)
    initial = compiled.draw(key, generation)
    state, trained = compiled.train(state, initial.pool, key)
    state, report = compiled.evaluate(state, trained, initial.evaluation, key)
    reports.append(report)
  members = jax.device_get(state.members)
  decisions = [report.decision for report in reports]
  placed = jax.tree.leaves(state.members.environment)[0]
  return {
    "results": _hashes(
      (jax.tree.map(lambda x: x[:size], members), state.with_members(()),
       reports)),
    "placement": [mesh.size, len(placed)],
    "num_replaced": int(sum(np.sum(x.operator > 0) for x in decisions)),
    "sharding": str(placed.sharding),
    "programs": [
      part.compile().as_text() for part in (compiled.train, compiled.evaluate)]}


def _look_again(num_devices):
  """Evaluates the elites of a repertoire once more."""
  setup = common.repertoire_setup(with_pbt=False, variations=8)
  repertoire = common.init(setup).repertoire
  mesh = distributed.population_mesh(num_devices, jax.devices()[:num_devices])
  setup = setup._replace(mesh=mesh)
  found = reevaluation.make_reevaluate(setup, 2)(repertoire, common.KEY)
  return {
    "results": _hashes((found.cells, found.fitness, found.descriptors)),
    "placement": [mesh.size, reevaluation.reevaluation_batch_size(setup, 2)]}


def main(name):
  """Prints one line."""
  if name == "elites again":
    found = [_look_again(num_devices) for num_devices in (1, 4)]
  else:
    make, nums_devices, num_generations = CASES[name]
    found = [
      _train(make(), num, num_generations, breaks_slots)
      for breaks_slots in ((False, True) if name == "uneven" else (False,))
      for num in nums_devices]
  print(json.dumps(found))


if __name__ == "__main__":
  main(sys.argv[1])
