"""Faults put into agents on purpose, to see that they stay where they are.

NaN or infinity anywhere in one agent touches no other agent, bit for bit; such
an agent is replaced at the next decision and counted; nothing that is not
finite enters the normalisation statistics or a repertoire. What environments
return in training is left out, and no agent is replaced for that. Faults are
data, so each of the two compiled generations serves all of them.
"""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, environments, learners, map_elites, training
from qdrl_haiku.runs import metrics
from qdrl_haiku.training import elites as elites_lib
from qdrl_haiku.training import generation as generation_lib
from qdrl_haiku.training import illumination
from qdrl_haiku.training import population as population_lib
from tests import configs
from tests.controllers import common as controllers_common
from tests.training import common

_KEY = jax.random.key(5)
_SIZE, _OFFSPRING = 4, 3
_EVERYBODY = _SIZE + _OFFSPRING
# Which number a code stands for; codes are integers, which are always finite.
_NUMBERS = jnp.array([0.0, jnp.nan, jnp.inf])
_CODES = {"nan": 1, "inf": 2}
_GRID = map_elites.Grid((32, 32), (-2.0, -2.0), (2.0, 2.0))
# Compiling takes far longer than running does.
_jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
# What of a step breaks, by the index of its code.
_STEP = ("reward", "observation", "descriptor")


def _broken(x, code):
  return jnp.where(code > 0, _NUMBERS[code], x)


class Fragile:
  """A point that is pushed; the reward is nearness to a place.

  What its steps return is broken as the codes in its state say, until a reset
  makes it sound again. Its own state has an infinity by design, which is no
  fault.
  """

  observation_size = 2
  action_size = 2
  descriptor = environments.Descriptor(("x", "y"), (-2.0, -2.0), (2.0, 2.0))

  def _state(self, point, codes, reward):
    reward, obs, descriptor = (
      _broken(x, code)
      for x, code in zip((reward, point, point), codes, strict=True)
    )
    return environments.State(
      {"point": point, "codes": codes, "deadline": jnp.float32(jnp.inf)},
      obs, reward, jnp.zeros(()), {"deadline": jnp.float32(jnp.inf)},
      {"state_descriptor": descriptor},
    )  # fmt: skip

  def reset(self, key):
    sound = jnp.zeros(3, jnp.int32)
    return self._state(jax.random.normal(key, (2,)), sound, jnp.zeros(()))

  def step(self, state, action):
    point = state.pipeline_state["point"] + 0.3 * action
    reward = -jnp.sum(jnp.square(point - common.TARGET))
    return self._state(point, state.pipeline_state["codes"], reward)


def _mark(state, codes):
  """Tells environments [P, E] what will break, by codes [P, 3]."""
  inner = state.pipeline_state
  old = inner.pipeline_state["codes"]
  codes = jnp.broadcast_to(codes[:, None], old.shape)
  inner = inner.replace(pipeline_state=inner.pipeline_state | {"codes": codes})
  return state.replace(pipeline_state=inner)


class Marked:
  """An environment whose agent i is broken as codes [P, 3] say."""

  def __init__(self, env, codes):
    self._env, self._codes = env, codes

  def __getattr__(self, name):
    return getattr(self._env, name)

  def reset(self, key):
    return _mark(self._env.reset(key), self._codes)


_ENV = environments.Environment(Fragile(), episode_length=5)
_LEARNER = learners.sac(
  2,
  2,
  configs.make(
    learners.SACConfig,
    policy_hidden_layer_sizes=(4,),
    critic_hidden_layer_sizes=(4,),
    normalize_observations=True,
  ),
)
_SPACE = {
  name: controllers.LogUniform(1e-4, 1e-2) for name in _LEARNER.hyperparams
} | {
  "discount": controllers.OneMinusLogUniform(0.01, 0.1),
  "target_entropy": controllers.Uniform(-4.0, -1.0),
  "reward_scaling": controllers.LogUniform(0.1, 10.0),
}
_PBT = controllers.PBTConfig(exploit="none")


def _setup(codes, **settings):
  """Nobody is replaced but for a fault; in evaluation, as the codes say."""
  return common.setup(
    controllers.pbt(_PBT, _SPACE),
    _LEARNER,
    replay_extras=("next_descriptor",),
    **settings,
  )._replace(env=_ENV, eval_env=Marked(_ENV, codes))


_SOUND = jnp.zeros((_SIZE, 3), jnp.int32)


@_jit
def _train(population, codes):
  # The broken are replaced, though all of this is in the burn-in period.
  return training.train_generation(
    _setup(codes, burn_in_period=64), population, _KEY
  )


def _fill(tree, where, code, entries=slice(None)):
  """Puts a number into entries of each float leaf of some members."""

  def fill(x):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    rows = np.array(x).reshape(x.shape[0], -1)
    rows[np.array(where), entries] = _NUMBERS[code]
    return jnp.asarray(rows.reshape(x.shape))

  return jax.tree.map(fill, tree)


# The first entry of each of these, all of what was collected.
_LEARNER_PARTS = (
  "policy_params", "critic_params", "target_critic_params", "log_temperature",
  "policy_optimizer_state", "critic_optimizer_state",
  "temperature_optimizer_state", "observation_statistics",
)  # fmt: skip
_REPLAY_PARTS = (
  "observation", "action", "reward", "discount", "next_observation", "extras"
)
_FAULTS = (
  *(f"learner/{name}" for name in _LEARNER_PARTS),
  *(f"replay/{name}" for name in _REPLAY_PARTS),
  *(f"hyperparams/{name}" for name in sorted(_SPACE)),
  "evaluation/reward",
)
_LEFT_OUT = (*(f"step/{name}" for name in _STEP), "environment")


def _inject(fault, state, where, code):
  """A population or an emitter's state with a fault that is in its data."""
  members, hyperparams = state.members, state.hyperparams
  part, _, name = fault.partition("/")
  if part == "hyperparams":
    broken = _fill(hyperparams[name], where, code)
    hyperparams = hyperparams | {name: broken}
  elif part == "learner":
    broken = _fill(getattr(members.learner, name), where, code, 0)
    members = members._replace(
      learner=members.learner._replace(**{name: broken})
    )
  elif part == "replay":
    storage = members.replay.storage
    broken = _fill(getattr(storage, name), where, code)
    storage = storage._replace(**{name: broken})
    members = members._replace(replay=members.replay._replace(storage=storage))
  elif part == "step":
    codes = _step_codes(name, where, code, _SIZE)
    members = members._replace(environment=_mark(members.environment, codes))
  elif part == "environment":
    broken = _fill(members.environment, where, code)
    members = members._replace(environment=broken)
  return state._replace(members=members, hyperparams=hyperparams)


def _step_codes(name, where, code, size):
  """Codes [size, 3] of what breaks where."""
  codes = np.zeros((size, 3), np.int32)
  codes[np.array(where), _STEP.index(name)] = code
  return jnp.asarray(codes)


def _evaluation_codes(fault, where, code, size):
  part, _, name = fault.partition("/")
  if part != "evaluation":
    return jnp.zeros((size, 3), jnp.int32)
  return _step_codes(name, where, code, size)


def _cases(faults):
  """Each fault of one and of all members but one, by each number."""
  return [
    pytest.param((fault, where, code), id=f"{fault}-{len(where)}-{name}")
    for fault in faults
    for where in ((2,), (0, 1, 3))
    for name, code in _CODES.items()
  ]


def _others(where):
  return [i for i in range(_SIZE) if i not in where]


def _is_finite(state):
  """Whether all is finite but for what environments keep to themselves."""
  tree = state
  if hasattr(state, "with_members"):
    tree = state.with_members(population_lib.must_be_finite(state.members))
  return all(
    np.isfinite(x).all()
    for x in common.leaves(tree).values()
    if np.issubdtype(x.dtype, np.floating)
  )


def _assert_same_members(actual, expected, members):
  """Compares some members of two trees with leaves [P, ...] bit for bit."""
  actual, expected = common.leaves(actual), common.leaves(expected)
  assert actual.keys() == expected.keys()
  for name, x in actual.items():
    for i in members:
      assert x[i].tobytes() == expected[name][i].tobytes(), (name, i)


def _of_members(state, report):
  """What there is of each member after a generation, leaves [P, ...]."""
  return (
    state.members,
    state.hyperparams,
    getattr(state, "recent_fitness", None),
    report._replace(
      generation=None,
      best=None,
      decision=report.decision.operator,
      evaluation_steps=None,
      illumination=None,
    ),
  )


@functools.cache
def _first():
  """A population before its first generation."""
  return _jit(functools.partial(training.init_population, _setup(_SOUND)))(
    _KEY
  )


@functools.cache
def _base():
  """A population that has learned for a generation."""
  return _train(_first(), _SOUND)[0]


@functools.lru_cache(maxsize=2)
def _generations(fault, where, code):
  """The generation with a fault, and the next one."""
  codes = _evaluation_codes(fault, where, code, _SIZE)
  first, decided = _train(_inject(fault, _base(), where, code), codes)
  second, later = _train(first, _SOUND)
  return jax.device_get([(first, decided), (second, later)])


@_jit
def _before_the_decision(population):
  return generation_lib.train(_setup(_SOUND), population, (), _KEY)


@functools.cache
def _faultless():
  return _generations.__wrapped__("none", (), 0)


@pytest.fixture(scope="module", params=_cases(_FAULTS))
def case(request):
  """Who has a fault, and the two generations with it."""
  return request.param[1], _generations(*request.param)


def test_the_other_members_are_bit_identical_to_the_faultless_run(case):
  where, generations = case
  for actual, expected in zip(generations, _faultless(), strict=True):
    _assert_same_members(
      _of_members(*actual), _of_members(*expected), _others(where)
    )


def test_whoever_has_a_fault_is_counted(case):
  where, ((_, report), _) = case
  assert np.flatnonzero(np.isnan(report.fitness)).tolist() == list(where)
  assert np.flatnonzero(~report.finite).tolist() == list(where)
  assert metrics.pbt_row(report)["pbt/num_nonfinite"] == len(where)


def test_whoever_has_a_fault_is_never_the_best(case):
  where, ((_, report), _) = case
  others = np.array(_others(where))
  best = others[np.argmax(report.fitness[others])]
  assert int(report.best.member) == best
  assert metrics.pbt_row(report)["pbt/best_return"] == report.fitness[best]


def _assert_replaced(decision, where):
  """By sound ones, and nobody else."""
  for i, parent in enumerate(decision.parents.tolist()):
    assert parent in _others(where) and (parent == i) == (i not in where)
  assert np.flatnonzero(decision.operator).tolist() == list(where)


def test_whoever_has_a_fault_is_replaced_by_a_sound_one_at_once(case):
  where, ((population, report), (later, next_report)) = case
  _assert_replaced(report.decision, where)
  assert _is_finite(population)
  assert np.all(next_report.finite) and _is_finite(later)
  assert next_report.decision.parents.tolist() == list(range(_SIZE))


@pytest.fixture(scope="module", params=_cases(_LEFT_OUT))
def left_out(request):
  """Whose environments broke, and the two generations with that."""
  return request.param[1], _generations(*request.param)


def test_what_environments_return_in_training_touches_no_other_member(left_out):
  where, generations = left_out
  for actual, expected in zip(generations, _faultless(), strict=True):
    _assert_same_members(
      _of_members(*actual), _of_members(*expected), _others(where)
    )


def test_nobody_is_replaced_for_what_environments_return_in_training(left_out):
  where, ((population, report), (later, _)) = left_out
  assert np.all(report.finite) and not np.any(report.decision.operator)
  assert _is_finite(population) and _is_finite(later)
  # A reset makes each instance sound again.
  counts = np.zeros(_SIZE)
  counts[np.array(where)] = 2
  np.testing.assert_array_equal(
    report.metrics["nonfinite_transitions"], counts
  )


def test_an_infinity_that_environments_keep_to_themselves_is_no_fault():
  for population, report in _faultless():
    inner = population.members.environment.pipeline_state
    assert np.all(np.isinf(inner.pipeline_state["deadline"]))
    assert np.all(np.isinf(population.members.environment.metrics["deadline"]))
    assert np.all(report.finite)
    assert metrics.pbt_row(report)["pbt/num_nonfinite"] == 0


@pytest.mark.parametrize("code", _CODES.values(), ids=_CODES)
def test_statistics_leave_out_observations_that_are_not_finite(code):
  population, _ = _before_the_decision(
    _inject("step/observation", _base(), (2,), code)
  )
  statistics = population.members.learner.observation_statistics
  # The buffer still holds all that was ever collected, 16 per generation, but
  # one step of each of the two environments.
  size = population.members.replay.size[2]
  seen = population.members.replay.storage.observation[2, :size]
  finite = np.asarray(seen, np.float64)
  assert len(finite) == 30
  assert statistics.num_observations[2] == len(finite)
  for actual, expected in (
    (statistics.mean, finite.mean(0)), (statistics.variance, finite.var(0))
  ):
    np.testing.assert_allclose(actual[2], expected, rtol=1e-4, atol=1e-5)


@functools.cache
def _restart():
  return _jit(functools.partial(population_lib.restart_members, _setup(_SOUND)))


@pytest.mark.parametrize("fault", _FAULTS)
def test_where_all_have_a_fault_all_begin_anew(fault):
  everyone = tuple(range(_SIZE))
  (population, report), _ = _generations(fault, everyone, _CODES["nan"])
  assert not np.any(report.finite)
  assert report.decision.parents.tolist() == list(everyone)
  # Not those that broke them, though this is the burn-in period.
  for actual, before in zip(
    population.hyperparams.values(), _base().hyperparams.values(), strict=True
  ):
    assert np.isfinite(actual).all() and np.all(actual != before)
  assert np.all(
    report.decision.operator == controllers_common.REINITIALISE
  )
  restarted = _restart()(population, _KEY)
  assert _is_finite(population_lib.must_be_finite(restarted.members))
  later, report = _train(restarted, _SOUND)
  assert np.all(report.finite) and _is_finite(later)


def _map_elites(weight_codes):
  """Offspring j has a number in its weights as weight_codes[j] says."""
  vary = training.vary_agents(0.3, 0.3, controllers.explore(_PBT, _SPACE))

  def vary_and_break(key, first, second):
    elite = vary(key, first, second)
    params = jax.tree.map(
      lambda x: jax.vmap(_broken)(x, weight_codes),
      elite.genotype.policy_params,
    )
    return elite._replace(
      genotype=elite.genotype._replace(policy_params=params)
    )

  return training.MapElites(
    emitter="pbt",
    tessellation=_GRID,
    variation_fn=vary_and_break,
    variation_batch_size=_OFFSPRING,
    num_initial_genotypes=1,
  )


@_jit
def _illuminate(state, codes, weight_codes):
  """A generation, and who was offered to the repertoire with what results."""
  # In the first generation nothing is learned yet.
  setup = _setup(codes, min_replay_size=18)
  offered = []

  def evaluate(setup, elites, env_states, needs=()):
    evaluation = evaluate_elites(setup, elites, env_states, needs=needs)
    offered.append((elites, *elites_lib.fitness_and_descriptors(evaluation)))
    return evaluation

  evaluate_elites = elites_lib.evaluate_elites
  with mock.patch.object(elites_lib, "evaluate_elites", evaluate):
    after = illumination.train_generation(
      setup._replace(map_elites=_map_elites(weight_codes)), state, _KEY
    )
  return *after, offered[0]


def _generation(state, codes=None, weight_codes=(0,) * _OFFSPRING):
  if codes is None:
    codes = jnp.zeros((_EVERYBODY, 3), jnp.int32)
  return jax.device_get(
    _illuminate(state, codes, jnp.array(weight_codes, jnp.int32))
  )


@functools.cache
def _first_illumination():
  """Each cell has an elite that is worse than whoever comes.

  So whoever is let in where it should not be has displaced an elite.
  """
  population = _first()
  elite = map_elites.Elite(
    jax.tree.map(lambda x: x[0], _LEARNER.genotype(population.members.learner)),
    jax.tree.map(lambda x: x[0], population.hyperparams),
  )
  repertoire = map_elites.Repertoire.init(elite, _GRID)
  repertoire = dataclasses.replace(
    repertoire,
    genotypes=jax.tree.map(
      lambda x, cells: jnp.broadcast_to(x, cells.shape),
      elite,
      repertoire.genotypes,
    ),
    fitness=jnp.full_like(repertoire.fitness, -1e6),
  )
  everyone = jnp.arange(_SIZE)
  return illumination.Illumination(
    emitter=map_elites.PBTEmitterState(
      members=population.members,
      hyperparams=population.hyperparams,
      metrics={},
      fitness=jnp.full(_SIZE, jnp.nan),
      decision=controllers.Decision(
        everyone, population.hyperparams, jnp.zeros_like(everyone)
      ),
      sampled_cells=jnp.full(_SIZE, -1),
    ),
    repertoire=repertoire,
    generation=jnp.zeros((), jnp.int32),
    initial_steps=jnp.zeros((), jnp.int32),
  )


@functools.cache
def _base_illumination():
  """A generation later, and the repertoire as before it."""
  first = _first_illumination()
  return _generation(first)[0]._replace(
    repertoire=jax.device_get(first.repertoire)
  )


@functools.cache
def _faultless_illumination():
  return _generation(_base_illumination())


def _expected(offered, left_out):
  """The repertoire's arrays by a plain loop over all but some offers."""
  cells = [
    np.array(x) for x in _arrays(_base_illumination().repertoire).values()
  ]
  fitness = _base_illumination().repertoire.fitness.copy()
  for i in sorted(set(range(_EVERYBODY)) - set(left_out)):
    individual = [x[i] for x in common.leaves(offered).values()]
    x, y = np.clip(np.floor((offered[2][i] + 2) * 8), 0, 31).astype(int)
    cell = 32 * x + y
    if offered[1][i] > fitness[cell]:
      fitness[cell] = offered[1][i]
      for stored, new in zip(cells, individual, strict=True):
        stored[cell] = new
  return [x.tobytes() for x in cells]


def _arrays(repertoire):
  return common.leaves(
    (repertoire.genotypes, repertoire.fitness, repertoire.descriptors)
  )


def _actual(repertoire):
  assert _is_finite(repertoire)
  return [np.asarray(x).tobytes() for x in _arrays(repertoire).values()]


@pytest.mark.slow
def test_whoever_has_no_fault_gets_a_cell():
  after, report, offered = _faultless_illumination()
  assert np.all(report.finite)
  assert _actual(after.repertoire) == _expected(offered, ())
  # So that those below are not missed for another reason.
  assert np.sum(after.repertoire.fitness > -1e6) == _EVERYBODY


@functools.lru_cache(maxsize=1)
def _faulty_illumination(fault, where, code):
  state = _base_illumination()
  return _generation(
    state._replace(emitter=_inject(fault, state.emitter, where, code)),
    _evaluation_codes(fault, where, code, _EVERYBODY),
  )


# Those that are part of what a cell stores, or of an evaluation's results.
_OFFERED = (
  "learner/policy_params",
  "learner/log_temperature",
  "learner/observation_statistics",
  "hyperparams/tau",
  "evaluation/reward",
  "evaluation/descriptor",
)


@pytest.fixture(
  scope="module",
  params=_cases(
    (*_OFFERED, "learner/critic_optimizer_state", "replay/reward")
  ),
)
def illuminated(request):
  """What the fault is, who has it, and the generation with it."""
  return *request.param[:2], _faulty_illumination(*request.param)


@pytest.mark.slow
def test_with_a_repertoire_the_others_are_bit_identical_too(illuminated):
  _, where, (*after, offered) = illuminated
  *expected, expected_offered = _faultless_illumination()
  _assert_same_members(
    _of_members(*after), _of_members(*expected), _others(where)
  )
  _assert_same_members(
    offered,
    expected_offered,
    (*_others(where), *range(_SIZE, _EVERYBODY)),
  )


def test_nobody_with_a_fault_enters_or_displaces_an_elite(illuminated):
  fault, where, (after, _, offered) = illuminated
  # Other faults need not have reached what is offered.
  left_out = where if fault in _OFFERED else [
    i for i in where if not _is_finite(common.member(offered, i))
  ]
  assert _actual(after.repertoire) == _expected(offered, left_out)


def test_with_a_repertoire_faults_are_counted_and_replaced_too(illuminated):
  fault, where, (after, report, _) = illuminated
  assert np.flatnonzero(~report.finite).tolist() == list(where)
  assert metrics.pbt_row(report)["pbt/num_nonfinite"] == len(where)
  assert fault not in _OFFERED or int(report.best.member) not in where
  _assert_replaced(report.decision, where)
  assert _is_finite(
    (population_lib.must_be_finite(after.members), after.hyperparams)
  )


@pytest.mark.parametrize("code", _CODES.values(), ids=_CODES)
@pytest.mark.parametrize(
  "fault",
  [
    "learner/critic_params",
    "learner/log_temperature",
    *(f"hyperparams/{name}" for name in sorted(_SPACE)),
  ],
)
def test_a_fault_counts_though_episodes_go_well_with_it(fault, code):
  state = _first_illumination()
  emitter = _inject(fault, state.emitter, (1,), code)
  after, report, offered = _generation(state._replace(emitter=emitter))
  # Nothing is learned yet, so it reaches nothing else.
  assert not np.any(report.num_updates) and _is_finite(offered[1:])
  assert _actual(after.repertoire) == _expected(offered, (1,))
  assert np.flatnonzero(~report.finite).tolist() == [1]
  _assert_replaced(report.decision, (1,))
  assert _is_finite(
    (population_lib.must_be_finite(after.members), after.hyperparams)
  )


@pytest.mark.parametrize("which", [(1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("code", _CODES.values(), ids=_CODES)
def test_offspring_with_a_fault_in_their_weights_never_enter(code, which):
  weight_codes = [code if i in which else 0 for i in range(_OFFSPRING)]
  *after, offered = _generation(
    _base_illumination(), weight_codes=weight_codes
  )
  left_out = [_SIZE + i for i in which]
  *expected, faultless = _faultless_illumination()
  assert _actual(after[0].repertoire) == _expected(faultless, left_out)
  _assert_same_members(
    _of_members(*after), _of_members(*expected), range(_SIZE)
  )
  assert not any(_is_finite(common.member(offered, i)) for i in left_out)
