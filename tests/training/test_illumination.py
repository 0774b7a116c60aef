"""Tests of generations that fill a repertoire, with tiny agents."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import (
  actors,
  controllers,
  distributed,
  environments,
  learners,
  map_elites,
  training,
)
from qdrl_haiku.prng import OfGeneration
from qdrl_haiku.runs import programs, records
from qdrl_haiku.storage.directory import RunDirectory
from qdrl_haiku.training import elites, emitters, illumination
from tests import configs
from tests.training import common

_KEY = jax.random.key(3)
_SIZE, _VARIATIONS, _INITIAL = 4, 2, 6
_GRID = map_elites.Grid((6, 6), (-2.0, -2.0), (2.0, 2.0))


class _State(NamedTuple):
  """That of `quadratic_learner`, named as agents' are, and a statistic."""

  point: Any
  critic_steps: Any
  observations: Any
  statistic: Any


class _Genotype(NamedTuple):
  policy_params: Any
  statistic: Any


class Drift(common.Drift):
  """Has the place as its descriptor."""

  descriptor = environments.Descriptor(("x", "y"), (-2.0, -2.0), (2.0, 2.0))

  def _state(self, point, reward):
    state = super()._state(point, reward)
    return state.replace(info={"state_descriptor": point})


def learner():
  """The quadratic one; a new one of a genotype has made no critic steps."""

  def from_genotype(genotype):
    zero = jnp.zeros((), jnp.int32)
    return _State(genotype.policy_params, zero, zero, genotype.statistic)

  quadratic = common.quadratic_learner()
  return quadratic._replace(
    init=lambda key: from_genotype(
      _Genotype(quadratic.init(key).point, jax.random.uniform(key))
    ),
    genotype=lambda state: _Genotype(state.point, state.statistic),
    from_genotype=from_genotype,
  )


def setup(env=Drift, with_pbt=True, mesh=None, variations=_VARIATIONS, **plan):
  """Four members, of which the best replaces one and an elite another."""
  env = environments.Environment(env(), episode_length=5)
  config = controllers.PBTConfig(num_parents=1, num_replaced=1)
  if with_pbt:
    plan = {"num_replaced_by_samples": 1} | plan
  return common.setup(
    controllers.pbt(config, common.SPACE) if with_pbt else None,
    learner(),
    population_size=_SIZE if with_pbt else 1,
  )._replace(
    env=env,
    eval_env=env,
    mesh=mesh,
    map_elites=training.MapElites(
      emitter="pbt" if with_pbt else "ga",
      tessellation=_GRID,
      variation_fn=training.vary_agents(
        0.1, 0.2, controllers.explore(config, common.SPACE)
      ),
      variation_batch_size=variations,
      num_initial_genotypes=_INITIAL,
      **plan,
    ),
  )


_SETUP = setup()


def _with_emitter(emitter_fn):
  own = setup(with_pbt=False)
  return own._replace(map_elites=own.map_elites._replace(emitter=emitter_fn))


def _in_the_wrong_order(setup):
  emitter = map_elites.genetic_emitter(
    setup.map_elites.variation_fn, setup.map_elites.variation_batch_size
  )
  return emitter._replace(ask=lambda *args: emitter.ask(*args)[::-1])


def test_an_emitter_of_ones_own_is_checked_before_the_first_generation():
  with pytest.raises(ValueError, match="returns .state, genotypes.: swap them"):
    jax.eval_shape(
      functools.partial(
        illumination.init_illumination, _with_emitter(_in_the_wrong_order)
      ),
      _KEY,
    )


def test_a_learner_of_ones_own_is_checked_before_the_first_generation():
  wrong = _SETUP.learner._replace(observe=lambda state, observation: ())
  with pytest.raises(ValueError, match="learner's observe returns differs"):
    jax.eval_shape(
      functools.partial(
        illumination.init_illumination, _SETUP._replace(learner=wrong)
      ),
      _KEY,
    )


@functools.cache
def _compiled():
  return (
    jax.jit(functools.partial(illumination.init_illumination, _SETUP)),
    jax.jit(functools.partial(illumination.train_generation, _SETUP)),
  )


@pytest.fixture(scope="module")
def history():
  """The states before each of four generations and at the end, and reports."""
  init, train = _compiled()
  states, reports = [init(_KEY)], []
  for _ in range(4):
    state, report = train(states[-1], _KEY)
    states.append(state)
    reports.append(report)
  return states, reports


def _keys(generation, purpose, size):
  key = jax.random.fold_in(jax.random.fold_in(_KEY, generation), purpose)
  return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(size))


@functools.partial(jax.jit, static_argnums=1)
def _evaluated(genotypes, generation):
  """Mean fitness and descriptors, and steps, of agents evaluated alone."""
  env = _SETUP.eval_env
  size = genotypes.statistic.shape[0]
  evaluation = actors.evaluate(
    env,
    _SETUP.learner,
    jax.vmap(_SETUP.learner.from_genotype)(genotypes),
    _keys(generation, OfGeneration.EVALUATE, size),
    _SETUP.config.num_eval_episodes,
    env.descriptor.function,
  )
  return (
    jnp.mean(evaluation.returns, 1),
    jnp.mean(evaluation.descriptors, 1),
    jnp.sum(evaluation.lengths),
  )


def _cell(descriptor):
  index = np.floor((np.clip(descriptor, -2, 2) + 2) / 4 * 6).astype(int)
  x, y = np.minimum(index, 5)
  return 6 * x + y


def _fill(cells, fitness, descriptors, points):
  """A plain loop over individuals: {cell: (fitness, descriptor, point)}."""
  cells = dict(cells)
  for individual in zip(
    *map(np.asarray, (fitness, descriptors, points)), strict=True
  ):
    cell = _cell(individual[1])
    if cell not in cells or individual[0] > cells[cell][0]:
      cells[cell] = individual
  return cells


def _stored(repertoire):
  repertoire = jax.device_get(repertoire)
  return {
    cell: (
      repertoire.fitness[cell],
      repertoire.descriptors[cell],
      repertoire.genotypes.genotype.policy_params[cell],
    )
    for cell in np.flatnonzero(repertoire.fitness > -np.inf)
  }


def _assert_same_cells(actual, expected):
  assert actual.keys() == expected.keys()
  for cell, individual in expected.items():
    for x, y in zip(actual[cell], individual, strict=True):
      np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_the_first_repertoire_holds_random_agents(history):
  keys = jax.vmap(jax.random.fold_in, (None, 0))(
    jax.random.fold_in(_KEY, 0), jnp.arange(_INITIAL)
  )
  genotypes = jax.vmap(_SETUP.learner.genotype)(
    jax.vmap(_SETUP.learner.init)(keys)
  )
  fitness, descriptors, steps = _evaluated(genotypes, 0)
  first = history[0][0]
  _assert_same_cells(
    _stored(first.repertoire),
    _fill({}, fitness, descriptors, genotypes.policy_params),
  )
  # Episodes of five steps, two of each.
  assert int(first.initial_steps) == int(steps) == 5 * 2 * _INITIAL
  assert int(first.generation) == 0


@pytest.mark.slow
def test_random_agents_are_new_ones_as_the_learner_makes_them():
  env = _SETUP.env
  config = configs.sized(
    learners.TD3Config, (4,), (4,), policy_final_init="fan_in"
  )
  td3 = learners.td3(env.observation_size, env.action_size, config)
  keys = jax.random.split(jax.random.key(3), 8)
  found, expected = jax.jit(
    lambda keys: (
      elites.random_elites(
        _SETUP._replace(learner=td3, controller=None), keys
      ).genotype,
      jax.vmap(lambda key: td3.genotype(td3.init(key)))(keys),
    )
  )(keys)
  common.assert_bits_equal(found, expected)


@pytest.mark.slow
def test_offspring_are_the_trained_members_and_then_variations(history):
  before = history[0][1]
  keys = _keys(2, OfGeneration.ASK, _SIZE)
  members, *_ = jax.jit(functools.partial(training.train_members, _SETUP))(
    before.members, before.hyperparams, keys
  )
  elites, _ = jax.jit(emitters.make_emitter(_SETUP).ask)(
    before.emitter,
    before.repertoire,
    jax.random.fold_in(jax.random.fold_in(_KEY, 2), OfGeneration.ASK),
  )
  points = elites.genotype.policy_params
  assert points.shape == (_SIZE + _VARIATIONS, 2)
  np.testing.assert_allclose(points[:_SIZE], members.learner.point, rtol=1e-5)
  fitness, descriptors, steps = _evaluated(elites.genotype, 2)
  _assert_same_cells(
    _stored(history[0][2].repertoire),
    _fill(_stored(before.repertoire), fitness, descriptors, points),
  )
  report = history[1][1]
  np.testing.assert_allclose(report.fitness, fitness[:_SIZE], rtol=1e-4)
  assert np.sum(report.evaluation_steps) == int(steps)
  assert float(report.best.fitness) == pytest.approx(float(max(fitness)))


def test_no_cell_ever_gets_worse_and_the_metrics_say_so(history):
  fitness = [np.asarray(s.repertoire.fitness) for s in history[0]]
  for before, after in zip(fitness, fitness[1:], strict=False):
    assert np.all(after >= before)
  assert np.any(fitness[-1] > fitness[0])
  for report, cells in zip(history[1], fitness[1:], strict=True):
    metrics = report.illumination.metrics
    found = cells[cells > -np.inf]
    np.testing.assert_allclose(metrics["qd/qd_score"], found.sum(), rtol=1e-5)
    np.testing.assert_allclose(
      metrics["qd/coverage"], 100 * found.size / 36, rtol=1e-5
    )
    assert float(metrics["qd/max_fitness"]) == found.max()


def test_members_learn_and_keep_what_they_have_collected(history):
  for i, state in enumerate(history[0]):
    sizes = np.asarray(state.members.replay.size)
    assert sizes.tolist() == [min(16 * i, 48)] * _SIZE
  for report in history[1]:
    assert np.asarray(report.num_updates).min() > 0
  before, after = (
    np.asarray(state.members.learner.point) for state in history[0][:2]
  )
  assert np.all(before != after)


def test_an_elite_takes_the_place_of_a_member_but_not_its_replay(history):
  sampled = 0
  for before, state, report in zip(
    history[0], history[0][1:], history[1], strict=False
  ):
    cells = np.asarray(report.illumination.sampled_cells)
    assert np.sum(cells >= 0) == 1
    for i in np.flatnonzero(cells >= 0):
      elite = common.member(state.repertoire.genotypes, cells[i])
      common.assert_bits_equal(
        common.member(state.members.learner, i),
        _SETUP.learner.from_genotype(elite.genotype),
      )
      for tree in (state.hyperparams, report.illumination.new_hyperparams):
        common.assert_bits_equal(common.member(tree, i), elite.hyperparams)
      assert i != np.argmax(report.fitness)
      # What was there before this generation is still there.
      seen = int(before.members.replay.size[i])
      old, new = (
        np.asarray(s.members.replay.storage.reward[i]) for s in (before, state)
      )
      if seen < 48:
        np.testing.assert_array_equal(new[:seen], old[:seen])
      sampled += 1
  assert sampled == 4


def _with_points(state, points):
  learner = state.members.learner._replace(point=jnp.asarray(points))
  return state.with_members(state.members._replace(learner=learner))


def test_a_diverged_member_is_replaced_and_disturbs_nobody(history):
  state = history[0][1]
  points = np.array(state.members.learner.point)
  points[2] = np.nan
  after, report = _compiled()[1](_with_points(state, points), _KEY)
  healthy = [0, 1, 3]
  assert np.asarray(report.finite).tolist() == [True, True, False, True]
  assert np.isnan(report.fitness[2])
  np.testing.assert_array_equal(
    report.fitness[np.array(healthy)], history[1][1].fitness[np.array(healthy)]
  )
  assert int(report.decision.parents[2]) in healthy
  for tree in (after.members, after.hyperparams, after.repertoire.genotypes):
    for name, x in common.leaves(tree).items():
      if np.issubdtype(x.dtype, np.floating):
        assert np.isfinite(x).all(), name
  # All other offspring are what they were.
  expected = _stored(history[0][2].repertoire)
  for cell, individual in _stored(after.repertoire).items():
    if cell in expected and individual[0] == expected[cell][0]:
      continue
    assert np.isfinite(individual[0])
    np.testing.assert_array_less(individual[0], expected[cell][0])


def test_an_agent_that_is_not_finite_is_never_the_best(history):
  state = history[0][1]
  learner = state.members.learner
  # The best action there is, so nobody's return is higher.
  learner = learner._replace(
    point=learner.point.at[1].set(common.TARGET),
    statistic=learner.statistic.at[1].set(jnp.nan),
  )
  state = state.with_members(state.members._replace(learner=learner))
  _, report = _compiled()[1](state, _KEY)
  assert not report.finite[1]
  assert np.isfinite(report.best.state.statistic)


def test_where_all_diverge_elites_stay_and_the_others_begin_anew(history):
  state, report = _compiled()[1](
    _with_points(history[0][2], np.full((_SIZE, 2), np.nan)), _KEY
  )
  assert not np.any(report.finite)
  restarted = jax.jit(
    functools.partial(illumination.restart_members, _SETUP)
  )(state, _KEY)
  for name, x in common.leaves(restarted.members).items():
    if np.issubdtype(x.dtype, np.floating):
      assert np.isfinite(x).all(), name
  common.assert_bits_equal(restarted.hyperparams, state.hyperparams)
  common.assert_bits_equal(restarted.repertoire, state.repertoire)
  cells = np.asarray(report.illumination.sampled_cells)
  (i,) = np.flatnonzero(cells >= 0)
  np.testing.assert_array_equal(
    restarted.members.learner.point[i],
    state.repertoire.genotypes.genotype.policy_params[cells[i]],
  )


def test_where_all_diverge_each_has_one_row_of_lineage(history, tmp_path):
  _, report = _compiled()[1](
    _with_points(history[0][2], np.full((_SIZE, 2), np.nan)), _KEY
  )
  directory = RunDirectory(tmp_path)
  records.write(directory, _SETUP, jax.device_get(report), 48)
  rows = directory.rows("pbt_lineage.jsonl")
  assert sorted(row["child"] for row in rows) == list(range(_SIZE))
  operators = sorted(row["operator"] for row in rows)
  assert operators == ["reinitialise"] * (_SIZE - 1) + ["sample"]


def test_generations_are_compiled_once(history):
  del history
  init, train = _compiled()
  assert (init._cache_size(), train._cache_size()) == (1, 1)


def _two_generations(of):
  """The states before, between and after two generations, and the reports."""
  init = jax.jit(functools.partial(illumination.init_illumination, of))
  train = jax.jit(functools.partial(illumination.train_generation, of))
  first = init(_KEY)
  second, one = train(first, _KEY)
  third, two = train(second, _KEY)
  return (first, second, third), (one, two)


@pytest.mark.slow
def test_without_a_controller_there_are_variations_alone():
  of = setup(with_pbt=False)
  states, reports = _two_generations(of)
  assert states[-1].members is None and states[-1].hyperparams is None
  for state, report in zip(states[1:], reports, strict=True):
    assert report.fitness.shape == (_VARIATIONS,)
    assert report.decision is None
    assert not np.any(report.num_updates)
    assert np.sum(report.evaluation_steps) == 5 * 2 * _VARIATIONS
    assert np.nanmax(report.fitness) <= np.max(state.repertoire.fitness)
  assert of.steps_per_generation == 5 * 2
  first, *_, last = (s.repertoire for s in states)
  assert np.all(np.asarray(last.fitness) >= np.asarray(first.fitness))
  # Statistics are inherited, never varied.
  known = set(np.asarray(first.genotypes.genotype.statistic).tolist())
  assert set(np.asarray(last.genotypes.genotype.statistic).tolist()) <= known


def test_agents_are_evaluated_again_and_count_by_their_means():
  of = setup(
    with_pbt=False, variations=6, resampling=map_elites.Resampling(0.25, 2)
  )
  init, train, evaluate = (
    jax.jit(functools.partial(x, of))
    for x in (
      illumination.init_illumination, illumination.train, illumination.evaluate
    )
  )  # fmt: skip
  assert (of.num_offspring, of.num_resampled, of.batch_sizes) == (6, 2, (8,))
  state, num_moved = init(_KEY), 0
  for generation in (1, 2, 3):
    initial = illumination.draw_initial_states(of, _KEY, generation, 8)
    asked, agents = train(state, (), _KEY)
    fitness, descriptors, steps = _evaluated(agents.genotype, generation)
    after, report = evaluate(asked, agents, initial.evaluation, _KEY)
    # Each of them ten steps; the report is of new agents alone.
    assert np.sum(report.evaluation_steps) == int(steps) == 8 * 2 * 5
    np.testing.assert_allclose(report.fitness, fitness[:6], rtol=1e-4)
    before = jax.device_get(asked.contenders)
    points = np.asarray(after.contenders.genotypes.genotype.policy_params)
    for place, *seen in zip(
      before.drawn, fitness[6:], descriptors[6:], strict=True
    ):
      point = before.genotypes.genotype.policy_params[place]
      where = np.flatnonzero((points == point).all(1))
      if not where.size:
        continue  # Others were better.
      (now,) = where
      num_moved += 1
      count = before.num_evaluations[place]
      assert after.contenders.num_evaluations[now] == count + 1
      means = (before.fitness[place], before.descriptors[place])
      for mean, x, found in zip(
        means,
        seen,
        (after.contenders.fitness[now], after.contenders.descriptors[now]),
        strict=True,
      ):
        np.testing.assert_allclose(
          found, (count * mean + x) / (count + 1), rtol=1e-3, atol=1e-5
        )
    state = after
  assert num_moved
  np.testing.assert_allclose(
    report.illumination.metrics["qd/evaluations_per_elite"],
    state.contenders.evaluations_per_elite,
  )


@pytest.mark.slow
def test_without_variations_there_are_members_alone():
  states, reports = _two_generations(setup(variations=0))
  report = reports[-1]
  assert report.fitness.shape == report.finite.shape == (_SIZE,)
  assert np.sum(report.evaluation_steps) == _SIZE * 5 * 2
  assert int(states[-1].generation) == 2
  assert np.sum(states[-1].repertoire.occupied) >= 1


def test_variations_have_new_weights_and_the_rest_of_the_first_parent():
  def elites(start):
    numbers = start + jnp.arange(6.0)
    return map_elites.Elite(
      _Genotype(jnp.stack([numbers, -numbers], 1), numbers),
      {"learning_rate": jnp.full(6, 0.01), "parent": jnp.zeros(6)},
    )

  first, second = elites(0.0), elites(10.0)
  config = controllers.PBTConfig(perturbation_factors=(0.5, 2.0))
  vary = training.vary_agents(0, 0.5, controllers.explore(config, common.SPACE))
  child = vary(_KEY, first, second)
  np.testing.assert_array_equal(
    child.genotype.statistic, first.genotype.statistic
  )
  # Without noise, each is on the line through its parents, (10, -10) apart.
  step = child.genotype.policy_params - first.genotype.policy_params
  np.testing.assert_allclose(step[:, 0], -step[:, 1], rtol=1e-5)
  assert len(set(step[:, 0].tolist())) == 6
  rates = np.asarray(child.hyperparams["learning_rate"])
  np.testing.assert_allclose(np.abs(np.log2(rates / 0.01)), 1, rtol=1e-5)
  assert not np.any(child.hyperparams["parent"])


def _results_by_devices(variations):
  """Prints what two generations give on all devices and on one, for a test."""
  results = []
  for devices in (jax.devices(), jax.devices()[:1]):
    mesh = distributed.population_mesh(len(devices), devices)
    key = jax.device_put(_KEY, jax.NamedSharding(mesh, jax.P()))
    placed = setup(mesh=mesh, variations=variations)
    # Means of several episodes may be rounded in another way on one device.
    placed = placed._replace(
      config=dataclasses.replace(placed.config, num_eval_episodes=1)
    )
    compiled = programs.compile_generation(
      programs.make_programs(placed, mesh, key)
    )
    state = compiled.init(key)
    for generation in (1, 2):
      state, report = compiled.train_generation(state, key, generation)
    members = jax.tree.map(lambda x: x[:_SIZE], jax.device_get(state.members))
    leaves = common.leaves((members, state.with_members(()), report))
    results.append(
      {name: [x.shape, x.tobytes().hex()] for name, x in leaves.items()}
    )
  print(json.dumps([len(jax.devices()), *results]))


# Three devices share neither the members nor the offspring evenly.
@pytest.mark.slow
def test_several_devices_fill_the_repertoire_as_one_does():
  done = subprocess.run(
    [
      sys.executable,
      "-c",
      "from tests.training import test_illumination as t;"
      " t._results_by_devices(3)",
    ],
    cwd=pathlib.Path(__file__).parents[2],
    env=os.environ
    | {"JAX_NUM_CPU_DEVICES": "3", "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  count, several, one = json.loads(done.stdout.splitlines()[-1])
  assert count == 3
  assert several.keys() == one.keys()
  assert [name for name in several if several[name] != one[name]] == []


@pytest.mark.parametrize(
  ("settings", "complaint"),
  [
    ({"burn_in_period": 16}, "burn_in_period=16 has no effect"),
    ({"fitness_window": 2}, "fitness_window=2 has no effect"),
    ({"fitness": "skill"}, "fitness='skill' has no effect"),
  ],
)
def test_settings_that_a_repertoire_does_not_read_are_refused(
  settings, complaint
):
  config = dataclasses.replace(_SETUP.config, **settings)
  with pytest.raises(ValueError, match=complaint):
    emitters.make_emitter(_SETUP._replace(config=config))


@pytest.mark.parametrize(
  ("name", "instead"),
  [
    ("init_population", "init_illumination"),
    ("train_generation", "train_illumination"),
    ("restart_members", "restart_illumination"),
  ],
)
def test_a_function_that_would_ignore_the_repertoire_is_refused(name, instead):
  arguments = (_KEY,) if name.startswith("init") else (None, _KEY)
  with pytest.raises(ValueError, match=f"map_elites .*training.{instead}"):
    getattr(training, name)(_SETUP, *arguments)
  with pytest.raises(ValueError, match=f"map_elites=None.*training.{name}"):
    getattr(training, instead)(common.setup(), *arguments)


def test_a_repertoire_can_be_filled_by_what_is_exported():
  state = jax.eval_shape(
    functools.partial(training.init_illumination, _SETUP), _KEY
  )
  after, report = jax.eval_shape(
    functools.partial(training.train_illumination, _SETUP), state, _KEY
  )
  assert jax.tree.leaves(after) == jax.tree.leaves(state)
  assert report.illumination.metrics["qd/coverage"].shape == ()


def test_an_evaluation_of_ones_own_is_refused():
  with pytest.raises(ValueError, match="evaluate has no effect"):
    emitters.make_emitter(_SETUP._replace(evaluate=lambda *_: None))


def test_without_members_nobody_can_be_replaced_by_samples():
  without = setup(with_pbt=False, num_replaced_by_samples=1)
  with pytest.raises(ValueError, match="num_replaced_by_samples=1 has no"):
    emitters.make_emitter(without)


def test_a_population_needs_a_controller():
  without = _SETUP._replace(controller=None, config=training.TrainingConfig())
  with pytest.raises(ValueError, match="needs a controller"):
    emitters.make_emitter(without)


def test_an_unknown_emitter_or_need_is_refused():
  plan = setup(with_pbt=False).map_elites
  own = _SETUP.map_elites
  for emitter, complaint in (
    ("gaa", "did you mean"),
    (lambda setup: own, "needs dreams, which isn't known"),
  ):
    if callable(emitter):
      genetic = emitters.make_emitter(setup(with_pbt=False))
      emitter = functools.partial(
        lambda setup, made: made, made=genetic._replace(needs=("dreams",))
      )
    wrong = setup(with_pbt=False)._replace(
      map_elites=plan._replace(emitter=emitter)
    )
    with pytest.raises(ValueError, match=complaint):
      emitters.make_emitter(wrong)
