"""Faults put into agents on purpose, to see that they stay where they are.

NaN or infinity anywhere in one agent touches no other agent, bit for bit; such
an agent is replaced at the next decision and counted, and neither enters a
repertoire nor displaces an elite. What environments return in training is left
out, and no agent is replaced for that. Faults are data, so that each of the
compiled generations serves all of them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers, environments
from qdrl_haiku.runs import records
from tests.controllers import common as controllers_common
from tests.training import common

_SIZE = 4
_FAULTS = (
  "learner/point", "learner/statistic", "learner/critic",
  *(
    f"replay/{name}" for name in (
      "observation", "action", "reward", "discount", "next_observation",
      "extras",
    )
  ),
  "hyperparams/learning_rate", "hyperparams/parent", "evaluation/1",
)  # fmt: skip


class _Patient(common.Placed):
  """Has infinities by design, which are no fault."""

  def _state(self, point, reward):
    state = super()._state(point, reward)
    return state.replace(metrics={"deadline": jnp.float32(jnp.inf)})


class _Case:
  """A setup's generations, beginning with one that has no fault."""

  def __init__(self, setup):
    self.trainer = common.Trainer(setup, jax.random.key(5))
    self.base, _ = self.trainer.step(self.trainer.first)
    self.generations = functools.lru_cache(maxsize=2)(self._generations)
    self.faultless = self._generations("none", (), 0.0)

  def _generations(self, fault, where, number):
    """The generation with a fault, and the next one."""
    broken = _inject(fault, self.base, where, number)
    first = self.trainer.step(broken)
    return first, self.trainer.step(first[0])


def _fill(tree, where, number):
  """Puts a number into the first entry of each float leaf of some members."""

  def fill(x):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    rows = np.array(x).reshape(x.shape[0], -1)
    rows[np.array(where, int), 0] = number
    return rows.reshape(x.shape)

  return jax.tree.map(fill, tree)


def _inject(fault, state, where, number):
  """A state in which some members have a fault."""
  members, hyperparams = state.members, state.hyperparams
  part, _, name = fault.partition("/")
  if part == "hyperparams":
    broken = _fill(hyperparams[name], where, number)
    return common.changed(state, hyperparams | {name: broken})
  if part == "learner":
    broken = _fill(getattr(members.learner, name), where, number)
    learner = members.learner._replace(**{name: broken})
    return common.changed(state, learner=learner)
  if part == "replay":
    broken = _fill(getattr(members.replay.storage, name), where, number)
    storage = members.replay.storage._replace(**{name: broken})
    replay = members.replay._replace(storage=storage)
    return common.changed(state, replay=replay)
  if part == "environment":
    broken = _fill(members.environment, where, number)
    return common.changed(state, environment=broken)
  if part == "evaluation":
    # The actions are 1 then, after which something isn't finite.
    point = np.array(members.learner.point)
    point[np.array(where), int(name)] = 9.0
    learner = members.learner._replace(point=point)
    return common.changed(state, learner=learner)
  return state


def _cases(faults):
  """Each fault of one member, and every third of all members but one."""
  cases = []
  for i, fault in enumerate(faults):
    for where in ((2,), (0, 1, 3))[: 1 + (i % 3 == 0)]:
      number = (np.nan, np.inf)[(i + len(where)) % 2]
      name = f"{fault}-{len(where)}-{number}"
      cases.append(pytest.param((fault, where, number), id=name))
  return cases


def _others(where):
  return [i for i in range(_SIZE) if i not in where]


def _is_finite(state):
  """Whether all is finite but for what environments keep to themselves."""
  return common.all_finite(
    (state.members.learner, state.members.replay, state.hyperparams)
  )


def _assert_others_same(generations, expected, where):
  """Compares the members without a fault bit for bit."""

  def of_members(state, report):
    return common.leaves(
      (
        state.members, state.hyperparams, report.evaluation, report.fitness,
        report.metrics, report.num_updates, report.decision.operator,
      )
    )  # fmt: skip

  for actual, faultless in zip(generations, expected, strict=True):
    actual, faultless = of_members(*actual), of_members(*faultless)
    assert actual.keys() == faultless.keys()
    for name, x in actual.items():
      for i in _others(where):
        assert x[i].tobytes() == faultless[name][i].tobytes(), (name, i)


@pytest.fixture(scope="module")
def burning_in():
  """A population in whose burn-in period only broken members are replaced."""
  env = environments.Environment(_Patient(), episode_length=5)
  pbt = controllers.pbt(controllers.PBTConfig(), common.SPACE)
  return _Case(
    common.setup(pbt, replay_extras=("next_descriptor",), burn_in_period=64)
    ._replace(env=env, eval_env=env)
  )  # fmt: skip


@pytest.fixture(scope="module", params=_cases(_FAULTS))
def case(request, burning_in):
  """Which members have a fault, and the two generations with it."""
  return request.param[1], burning_in.generations(*request.param)


def test_the_other_members_are_bit_identical_to_the_faultless_run(
  case, burning_in
):
  where, generations = case
  _assert_others_same(generations, burning_in.faultless, where)


def test_a_member_with_a_fault_is_counted_and_never_the_best(case):
  where, ((_, report), _) = case
  assert np.flatnonzero(np.isnan(report.fitness)).tolist() == list(where)
  assert np.flatnonzero(~report.finite).tolist() == list(where)
  row = records.row([0], report, records.initial())
  assert row["pbt/num_nonfinite"] == len(where)
  best = np.nanargmax(report.fitness)
  assert int(report.best.member) == best
  assert row["pbt/best_return"] == report.fitness[best]


def test_a_member_with_a_fault_is_replaced_by_a_sound_one_at_once(case):
  where, ((state, report), (later, next_report)) = case
  parents = report.decision.parents
  for i, parent in enumerate(parents.tolist()):
    assert parent in _others(where) and (parent == i) == (i not in where)
  assert np.flatnonzero(report.decision.operator).tolist() == list(where)
  # All of it, whatever its settings say of children that are sound.
  for part in ("learner", "replay"):
    common.assert_bits_equal(
      getattr(state.members, part),
      jax.tree.map(lambda x: x[parents], getattr(state.members, part)),
    )
  assert _is_finite(state)
  assert np.all(next_report.finite) and _is_finite(later)
  assert next_report.decision.parents.tolist() == list(range(_SIZE))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_environments_return_in_training_is_left_out_and_replaces_none(
  number, burning_in
):
  generations = burning_in.generations("environment", (2,), number)
  _assert_others_same(generations, burning_in.faultless, (2,))
  (state, report), (later, _) = generations
  assert np.all(report.finite) and not np.any(report.decision.operator)
  assert _is_finite(state) and _is_finite(later)
  # A reset makes each instance sound again.
  for name, count in (("transitions", 1), ("observations", 1), ("rewards", 0)):
    assert report.metrics[f"nonfinite_{name}"].tolist() == [0, 0, count, 0]
  seen = [16 * 2 - i for i in (0, 0, 1, 0)]
  assert state.members.learner.observations.tolist() == seen
  assert state.members.replay.size.tolist() == seen


def test_huge_observations_are_learned_from_and_leave_metrics_finite(
  burning_in
):
  (state, report), _ = burning_in.generations("environment", (2,), 1e30)
  assert not report.metrics["nonfinite_transitions"].any()
  assert np.all(state.members.replay.size == 32)
  assert np.all(report.metrics["observation_std"] < 10)


def test_an_infinity_that_environments_keep_to_themselves_is_no_fault(
  burning_in
):
  for state, report in burning_in.faultless:
    assert np.isinf(state.members.environment.metrics["deadline"]).all()
    assert np.all(report.finite)


@pytest.mark.parametrize("fault", ["learner/critic", "hyperparams/parent"])
def test_where_all_have_a_fault_all_begin_anew(fault, burning_in):
  everyone = tuple(range(_SIZE))
  (state, report), _ = burning_in.generations(fault, everyone, np.nan)
  assert not np.any(report.finite)
  assert report.decision.parents.tolist() == list(everyone)
  assert np.all(
    report.decision.operator == controllers_common.REINITIALISE
  )
  # Not with those that broke them, though this is the burn-in period.
  before, after = (
    x.hyperparams["learning_rate"] for x in (burning_in.base, state)
  )
  assert np.isfinite(after).all() and np.all(after != before)
  restarted = burning_in.trainer.restart(state)
  assert _is_finite(restarted)
  later, report = burning_in.trainer.step(restarted)
  assert np.all(report.finite) and _is_finite(later)


@pytest.fixture(scope="module")
def reckless():
  """A learner that acts with NaN where its `parent` is above 0."""
  learner = common.quadratic_learner()

  def act(state, hyperparams, observation, key):
    action = learner.act(state, hyperparams, observation, key)
    return jnp.where(hyperparams["parent"] > 0, jnp.nan, action)

  pbt = controllers.pbt(controllers.PBTConfig(exploit="none"), common.SPACE)
  setup = common.setup(pbt, learner._replace(act=act), random_warm_up=False)
  return common.Trainer(setup)


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


def _with_elites(state, genotypes):
  """A state all of whose cells hold such elites, worse than any agent.

  So that each agent that is let in where it should not be displaces an elite.
  """
  fitness = np.full_like(state.repertoire.fitness, -1e6)
  return state._replace(
    repertoire=dataclasses.replace(
      state.repertoire, genotypes=genotypes, fitness=fitness
    )
  )


def _new_cells(state):
  return set(np.flatnonzero(state.repertoire.fitness > -1e6).tolist())


def _cells(report):
  """The cell of each member, by what it was evaluated with."""
  places = np.clip(report.evaluation.descriptors.mean(1), -2, 2)
  x, y = np.minimum((places + 2) * 8, 31).astype(int).T
  return (32 * x + y).tolist()


@pytest.fixture(scope="module")
def illuminated():
  case = _Case(common.repertoire_setup(shape=(32, 32)))
  repertoire = case.base.repertoire
  best = np.argmax(repertoire.fitness)
  case.base = _with_elites(
    case.base,
    jax.tree.map(
      lambda x: np.broadcast_to(x[best], x.shape), repertoire.genotypes
    ),
  )
  case.faultless = case._generations("none", (), 0.0)
  return case


def test_each_agent_without_a_fault_gets_a_cell(illuminated):
  state, report = illuminated.faultless[0]
  assert np.all(report.finite)
  # So that those below are not missed for another reason.
  assert set(_cells(report)) < _new_cells(state)
  assert len(_new_cells(state)) == _SIZE + common.NUM_VARIATIONS


@pytest.mark.parametrize(
  "case",
  _cases(x for x in (*_FAULTS, "evaluation/0") if x != "replay/extras"),
)
def test_with_a_repertoire_an_agent_with_a_fault_enters_and_disturbs_nothing(
  case, illuminated
):
  fault, where, _ = case
  (state, report), _ = illuminated.generations(*case)
  expected, faultless = illuminated.faultless[0]
  assert np.flatnonzero(~report.finite).tolist() == list(where)
  np.testing.assert_array_equal(
    report.fitness[_others(where)], faultless.fitness[_others(where)]
  )
  # By a sound member, or by an elite.
  is_sampled = report.sampled_cells >= 0
  for i in where:
    assert is_sampled[i] or report.decision.parents[i] in _others(where)
  assert _is_finite(state) and common.all_finite(state.repertoire)
  # A critic or a replay is no part of what is stored, which may be sound.
  new, missing = _new_cells(state), _new_cells(expected) - _new_cells(state)
  cells = {_cells(faultless)[i] for i in where}
  assert missing <= cells and new <= _new_cells(expected)
  assert missing == cells or fault.startswith(("replay", "learner/critic"))
  actual, before, wanted = (
    common.leaves((x.repertoire.genotypes, x.repertoire.fitness))
    for x in (state, illuminated.base, expected)
  )
  for name, x in actual.items():
    same = before[name].copy()
    same[[*new]] = wanted[name][[*new]]
    assert x.tobytes() == same.tobytes(), name


def test_offspring_with_a_fault_in_their_weights_never_enter(illuminated):
  genotypes = illuminated.base.repertoire.genotypes
  parent = genotypes.hyperparams["parent"] + 1
  hyperparams = genotypes.hyperparams | {"parent": parent}
  state, _ = illuminated.trainer.step(
    _with_elites(
      illuminated.base, genotypes._replace(hyperparams=hyperparams)
    )
  )
  expected, report = illuminated.faultless[0]
  cells = _cells(report)
  assert _new_cells(state) == set(cells)
  for name in ("fitness", "descriptors"):
    np.testing.assert_array_equal(
      getattr(state.repertoire, name)[cells],
      getattr(expected.repertoire, name)[cells],
    )
