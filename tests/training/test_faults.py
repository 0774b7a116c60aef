"""Faults put into agents on purpose, to see that they stay where they are.

NaN or infinity anywhere in one agent touches no other agent, bit for bit; such
an agent is replaced at the next decision and counted; nothing that is not
finite enters the normalisation statistics or a repertoire. What environments
return in training is left out, and no agent is replaced for that. Faults are
data, so that each of the compiled generations serves all of them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, environments, learners
from qdrl_haiku.runs import metrics
from tests import configs
from tests.controllers import common as controllers_common
from tests.training import common, faults

_KEY = jax.random.key(5)
_SIZE = 4
# What of a step breaks, by the index of its code.
_STEP = ("reward", "observation", "descriptor")


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
    numbers = jnp.asarray(faults.NUMBERS)
    reward, obs, descriptor = (
      jnp.where(code > 0, numbers[code], x)
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
  codes = jnp.broadcast_to(jnp.asarray(codes)[:, None], old.shape)
  inner = inner.replace(pipeline_state=inner.pipeline_state | {"codes": codes})
  return state.replace(pipeline_state=inner)


class _Marked:
  """An environment whose agent i is broken as codes [P, 3] say."""

  def __init__(self, env, codes):
    self._env, self._codes = env, codes

  def __getattr__(self, name):
    return getattr(self._env, name)

  def reset(self, key):
    return _mark(self._env.reset(key), self._codes)


_ENV = environments.Environment(Fragile(), episode_length=5)
_LEARNER = learners.sac(
  2, 2, configs.sized(learners.SACConfig, (4,), (4,))
)
_SPACE = {
  name: controllers.LogUniform(1e-4, 1e-2) for name in _LEARNER.hyperparams
} | {
  "discount": controllers.OneMinusLogUniform(0.01, 0.1),
  "target_entropy": controllers.Uniform(-4.0, -1.0),
  "reward_scaling": controllers.LogUniform(0.1, 10.0),
}
_SOUND = np.zeros((_SIZE, 3), np.int32)


def _setup(codes):
  """A population that burns in; broken in evaluation as the codes say."""
  pbt = controllers.pbt(controllers.PBTConfig(), _SPACE)
  return common.setup(
    pbt, _LEARNER, replay_extras=("next_descriptor",), burn_in_period=64
  )._replace(env=_ENV, eval_env=_Marked(_ENV, codes))


@functools.partial(
  # Compiling takes far longer than running does.
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
def _step(state, codes):
  return common.step(_setup(codes), state, _KEY)


def _train(state, codes=_SOUND):
  return jax.device_get(_step(state, codes))


@functools.cache
def _base():
  """A population that has learned for a generation."""
  first = jax.jit(lambda: common.init(_setup(_SOUND), _KEY))()
  return _train(first)[0]


def _codes(name, where, code):
  """Codes [P, 3] of what breaks where."""
  codes = _SOUND.copy()
  codes[np.array(where), _STEP.index(name)] = code
  return codes


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
  """A state with a fault that is in its data."""
  part, _, name = fault.partition("/")
  if part != "step":
    return faults.inject(fault, state, where, code)
  marked = _mark(state.members.environment, _codes(name, where, code))
  return common.changed(state, environment=marked)


@functools.lru_cache(maxsize=2)
def _generations(fault, where, code):
  """The generation with a fault, and the next one."""
  part, _, name = fault.partition("/")
  is_later = part == "evaluation"
  codes = _codes(name, where, code) if is_later else _SOUND
  first, decided = _train(_inject(fault, _base(), where, code), codes)
  return (first, decided), _train(first)


@functools.cache
def _faultless():
  return _generations.__wrapped__("none", (), 0)


def _cases(names):
  """Each fault of one member, and every third of all members but one."""
  cases = []
  for i, fault in enumerate(names):
    for where in ((2,), (0, 1, 3))[: 1 + (i % 3 == 0)]:
      code = (faults.NAN, faults.INF)[(i + len(where)) % 2]
      name = f"{fault}-{len(where)}-{faults.NUMBERS[code]}"
      cases.append(pytest.param((fault, where, code), id=name))
  return cases


def _of_members(state, report):
  """What there is of each member after a generation, leaves [P, ...]."""
  return (
    state.members,
    state.hyperparams,
    report.evaluation,
    report.scores,
    report.fitness,
    report.metrics,
    report.num_updates,
    report.finite,
    report.decision.operator,
  )


def _assert_others_same(generations, expected, where):
  """Compares the members without a fault bit for bit."""
  for actual, faultless in zip(generations, expected, strict=True):
    actual, faultless = (
      common.leaves(_of_members(*x)) for x in (actual, faultless)
    )
    assert actual.keys() == faultless.keys()
    for name, x in actual.items():
      for i in faults.others(where):
        assert x[i].tobytes() == faultless[name][i].tobytes(), (name, i)


@pytest.fixture(scope="module", params=_cases(_FAULTS))
def case(request):
  """Which members have a fault, and the two generations with it."""
  return request.param[1], _generations(*request.param)


def test_the_other_members_are_bit_identical_to_the_faultless_run(case):
  where, generations = case
  _assert_others_same(generations, _faultless(), where)


def test_a_member_with_a_fault_is_counted_and_never_the_best(case):
  where, ((_, report), _) = case
  assert np.flatnonzero(np.isnan(report.fitness)).tolist() == list(where)
  assert np.flatnonzero(~report.finite).tolist() == list(where)
  row = metrics.pbt_row(report)
  assert row["pbt/num_nonfinite"] == len(where)
  others = np.array(faults.others(where))
  best = others[np.argmax(report.fitness[others])]
  assert int(report.best.member) == best
  assert row["pbt/best_return"] == report.fitness[best]


def _assert_replaced(decision, where):
  """By sound ones, and no others."""
  for i, parent in enumerate(decision.parents.tolist()):
    assert parent in faults.others(where) and (parent == i) == (i not in where)
  assert np.flatnonzero(decision.operator).tolist() == list(where)


def test_a_member_with_a_fault_is_replaced_by_a_sound_one_at_once(case):
  where, ((state, report), (later, next_report)) = case
  _assert_replaced(report.decision, where)
  assert faults.is_finite(state)
  assert np.all(next_report.finite) and faults.is_finite(later)
  assert next_report.decision.parents.tolist() == list(range(_SIZE))


@pytest.mark.parametrize("case", _cases(_LEFT_OUT))
def test_what_environments_return_in_training_is_left_out_and_replaces_none(
  case
):
  fault, where, _ = case
  generations = _generations(*case)
  _assert_others_same(generations, _faultless(), where)
  (state, report), (later, _) = generations
  assert np.all(report.finite) and not np.any(report.decision.operator)
  assert faults.is_finite(state) and faults.is_finite(later)
  # A reset makes each instance sound again.
  counts = np.zeros(_SIZE)
  counts[np.array(where)] = 2
  np.testing.assert_array_equal(report.metrics["nonfinite_transitions"], counts)
  if fault != "environment":
    for name in ("reward", "observation"):
      np.testing.assert_array_equal(
        report.metrics[f"nonfinite_{name}s"], counts * (fault == f"step/{name}")
      )


def test_an_infinity_that_environments_keep_to_themselves_is_no_fault():
  for state, report in _faultless():
    inner = state.members.environment.pipeline_state
    assert np.all(np.isinf(inner.pipeline_state["deadline"]))
    assert np.all(np.isinf(state.members.environment.metrics["deadline"]))
    assert np.all(report.finite)


@pytest.mark.parametrize("code", [faults.NAN, faults.INF, faults.HUGE])
def test_statistics_leave_out_what_is_not_finite_or_overflows(code):
  (state, report), _ = _generations("step/observation", (2,), code)
  statistics = state.members.learner.observation_statistics
  # The buffer still holds all that was ever collected, 16 per generation, but
  # for the first steps of the two environments.
  size = state.members.replay.size[2]
  seen = state.members.replay.storage.observation[2, :size].astype(np.float64)
  assert size == (32 if code == faults.HUGE else 30)
  seen = seen[np.all(np.abs(seen) < 1e15, axis=1)]
  assert statistics.num_observations[2] == len(seen) >= 24
  for actual, expected in (
    (statistics.mean, seen.mean(0)), (statistics.variance, seen.var(0))
  ):
    np.testing.assert_allclose(actual[2], expected, rtol=1e-4, atol=1e-5)
  assert np.all(report.metrics["observation_std"] < 10)


@pytest.mark.parametrize("fault", ["learner/critic_params", "hyperparams/tau"])
def test_where_all_have_a_fault_all_begin_anew(fault):
  everyone = tuple(range(_SIZE))
  (state, report), _ = _generations(fault, everyone, faults.NAN)
  assert not np.any(report.finite)
  assert report.decision.parents.tolist() == list(everyone)
  # Not with those that broke them, though this is the burn-in period.
  for actual, before in zip(
    state.hyperparams.values(), _base().hyperparams.values(), strict=True
  ):
    assert np.isfinite(actual).all() and np.all(actual != before)
  assert np.all(
    report.decision.operator == controllers_common.REINITIALISE
  )
  restarted = jax.jit(lambda x: common.restart(_setup(_SOUND), x, _KEY))(state)
  assert faults.is_finite(restarted)
  later, report = _train(restarted)
  assert np.all(report.finite) and faults.is_finite(later)


@pytest.fixture(scope="module")
def reckless():
  """A learner that acts with NaN where its `parent` is above 0."""
  learner = common.quadratic_learner()

  def act(state, hyperparams, observation, key):
    action = learner.act(state, hyperparams, observation, key)
    return jnp.where(hyperparams["parent"] > 0, jnp.nan, action)

  config = controllers.PBTConfig(exploit="none")
  return common.Trainer(
    common.setup(
      controllers.pbt(config, common.SPACE), learner._replace(act=act),
      random_warm_up=False,
    )
  )  # fmt: skip


def _acting(trainer, parent):
  """A generation of members that act so."""
  first = trainer.first
  wanted = {"parent": np.array(parent, np.float32)}
  return trainer.step(common.changed(first, first.hyperparams | wanted))


def test_a_member_whose_steps_never_count_keeps_no_other_from_learning(
  reckless
):
  sound = _acting(reckless, [0, 0, 0, 0])
  state, report = actual = _acting(reckless, [0, 1, 0, 0])
  _assert_others_same([actual], [sound], (1,))
  # It stays as it is, but for what it has seen, and isn't replaced: what the
  # environments hold at the end is the agent's no more than the steps are.
  assert report.num_updates[1] == 0 and state.members.replay.size[1] == 0
  before = reckless.first.members.learner.point
  np.testing.assert_array_equal(state.members.learner.point[1], before[1])
  assert np.isnan(state.members.environment.info["next_observation"][1]).any()
  assert report.finite.all() and not report.decision.operator.any()
  assert report.metrics["nonfinite_transitions"].tolist() == [0, 16, 0, 0]
  # The agent's own fault, not the environment's.
  assert not report.metrics["nonfinite_observations"].any()


def test_where_no_step_is_ever_finite_none_learns_and_training_ends(reckless):
  state, report = _acting(reckless, [1, 1, 1, 1])
  assert not report.num_updates.any() and not state.members.replay.size.any()
  assert report.metrics["nonfinite_transitions"].tolist() == [16] * 4
  common.assert_bits_equal(
    state.members.learner.point, reckless.first.members.learner.point
  )
