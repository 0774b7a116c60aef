"""Tests of sequences from replay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, types
from qdrl_haiku.training import order
from tests.training import common

_L, _E, _T = 4, 3, 30
_LEARNER = common.quadratic_learner()._replace(
  learns_from="sequences", sequence_length=_L)
_SETUP = common.setup(
  learner=_LEARNER, num_envs=_E, min_replay_size=12,
  # No multiple of E, so that a step's rows stand on both sides of the end.
  replay_capacity=31)


@jax.jit
def _sample(state, key):
  return order.sample_sequences(_SETUP, state, key, (300, _L))


def test_sequences_are_of_one_environments_steps_in_their_order():
  """Also in a buffer that wraps, and beside steps that were left out."""
  time, env = np.meshgrid(np.arange(_T), np.arange(_E), indexing="ij")
  rng = np.random.default_rng(0)
  truncation = (rng.uniform(size=(_T, _E)) < 0.1).astype(np.float32)
  history = types.Transition(
    observation=np.stack([env, time], axis=-1).astype(np.float32),
    action=np.zeros((_T, _E, 1), np.float32),
    reward=np.zeros((_T, _E), np.float32),
    discount=np.ones((_T, _E), np.float32),
    next_observation=np.zeros((_T, _E, 1), np.float32),
    extras={"truncation": truncation})
  left_out = rng.uniform(size=(_T, _E)) < 0.1
  state = _SETUP.buffer.init(jax.tree.map(lambda x: x[0, 0], history))
  add = jax.jit(lambda *args: order.add_in_order(_SETUP, *args))
  drawn, breaks = set(), set()
  for t in range(_T):
    state = add(state, jax.tree.map(lambda x: x[t], history), ~left_out[t])  # noqa: B023
    if t < _L:
      continue
    batch = jax.device_get(_sample(state, jax.random.key(t)))
    oldest = max(0, -(-((t + 1) * _E - 31) // _E))
    for seen, ends in zip(
      batch.observation, batch.extras["truncation"] > 0, strict=True):
      for i in range(_L - 1):
        (e, now), (e_next, following) = seen[i], seen[i + 1]
        follows = e == e_next and following == now + 1
        assert follows or ends[i]
        breaks.add((bool(follows), bool(ends[i])))
      drawn.add((t, int(seen[0, 0]), int(seen[0, 1])))
  # All that can begin one: of the last time, each whose successors are there.
  assert len(breaks) == 3
  firsts = {(e, s) for at, e, s in drawn if at == _T - 1}
  whole = {
    (e, s) for e in range(_E) for s in range(oldest, _T - _L + 1)
    if not left_out[s, e]}
  assert whole <= firsts


@pytest.mark.parametrize(("settings", "message"), [
  ({"batch_size": 6},
   "batch_size=6 must be a multiple of 4, .* sequence_length=4 with burn_in=0"),
  ({"min_replay_size": 11}, "min_replay_size=11 .* num_envs=3; give 12"),
  ({"n_step": 2}, "n_step=2, but the learner learns from single steps")])
def test_what_sequences_cant_be_cut_from_is_refused(settings, message):
  learner = _LEARNER._replace(supports_n_step=False)
  with pytest.raises(ValueError, match=message):
    common.shapes(common.setup(learner=learner, **{
      "num_envs": _E, "min_replay_size": 12, "perturbation_interval": 12,
      **settings}))


def test_skills_are_refused_with_recurrent_learners_of_replay():
  learner = learners.sac(5, 1, learners.SACConfig(memory="gru:3"))
  with pytest.raises(ValueError, match="take base_learner=ppo, or memory=win"):
    learners.skill_learner(learner, 2, None)


def test_members_learn_from_sequences():
  """Of four steps each, the first of which isn't counted among the batch."""
  def update(state, hyperparams, transitions, key):
    shape = transitions.reward.shape
    assert shape == (1, 2, _L)
    flat = transitions._replace(reward=jnp.mean(transitions.reward, (1, 2)))
    state, _ = _LEARNER.update(state, hyperparams, flat, key)
    starts = transitions.observation[..., 1:, :]
    chained = jnp.all(
      starts == transitions.next_observation[..., :-1, :], axis=-1)
    ends = transitions.extras["truncation"][..., :-1] > 0
    return state, {"chained": jnp.mean((chained | ends).astype(float))}

  learner = _LEARNER._replace(update=update, burn_in=1)
  trainer = common.Trainer(common.setup(
    learner=learner, batch_size=6, min_replay_size=8))
  _, report = trainer.step(trainer.first)
  np.testing.assert_array_equal(report.metrics["chained"], 1.0)
