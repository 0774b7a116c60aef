"""Tests of environments of gymnax, compared with gymnax's own functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import environments, specs
from qdrl_haiku.environments.suites import gymnax_environment

gymnax = pytest.importorskip(
  "gymnax", reason="gymnax is not installed (the extra [gymnax])")
make = gymnax_environment.make_gymnax_environment


@pytest.mark.parametrize(("name", "spec", "action_spec"), [
  ("Pendulum-v1", ((3,), "float32"), specs.Continuous(1)),
  ("Breakout-MinAtar", ((10, 10, 4), bool), specs.Discrete(3)),
  ("FrozenLake-misc", ((16,), "float32"), specs.Discrete(4)),
  ("Catch-bsuite", ((50,), "float32"), specs.Discrete(3))])
def test_steps_are_those_of_gymnax(name, spec, action_spec):
  one, length = make(name)
  plain, params = gymnax.make(name)
  assert length == params.max_steps_in_episode
  assert one.action_spec == action_spec
  state = jax.jit(one.reset)(jax.random.key(0))
  step = jax.jit(one.step)
  plain_step = jax.jit(lambda *args: plain.step_env(*args, params))
  actions = action_spec.sample(jax.random.key(1), 12)
  total = 0
  for action in actions:
    before, key = state.pipeline_state
    state = step(state, action)
    if name == "Pendulum-v1":
      action = 2 * action
    obs, after, reward, terminated, _ = plain_step(
      jax.random.split(key)[1], before, action)
    if name == "FrozenLake-misc":
      obs = np.eye(16)[obs]
    assert (state.obs.shape, state.obs.dtype) == spec
    np.testing.assert_allclose(
      state.obs, np.reshape(obs, spec[0]), rtol=1e-6)
    np.testing.assert_allclose(state.reward, reward, rtol=1e-6)
    assert state.done == terminated
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6),
      state.pipeline_state[0], after)
    total += abs(float(reward)) + float(state.done)
  # Something happened, but on the ice.
  assert total > 0 or name == "FrozenLake-misc"


def test_terminations_are_told_from_truncations():
  """Of two poles one is pushed to the right until it falls."""
  env = environments.create("gymnax:CartPole-v1", max_steps_in_episode=14)
  assert env.episode_length == 14
  state = env.reset(jax.random.split(jax.random.key(0), 2))
  first = state.obs
  ends = []
  for t in range(1, 15):
    state = env.step(state, jnp.array([1, t % 2]))
    for i in np.flatnonzero(state.done):
      ends.append((i, t, int(state.info["discount"][i])))
      # What it ended with is kept, and the next begins elsewhere.
      last = state.info["next_observation"][i]
      assert (state.obs[i] != last).all() and (state.obs[i] != first[i]).all()
      assert abs(state.obs[i]).max() <= 0.05
  assert [x[::2] for x in ends] == [(0, 0), (1, 1)]
  assert 8 <= ends[0][1] <= 11 and ends[1][1] == 14
  # gymnax's own limit ends nothing: it has no effect on longer episodes.
  env = environments.create(
    "gymnax:CartPole-v1", max_steps_in_episode=1, episode_length=5)
  state = env.reset(jax.random.split(jax.random.key(0), 1))
  for t in range(1, 6):
    state = env.step(state, jnp.array([t % 2]))
    assert state.done.tolist() == state.info["truncation"].tolist() == [t == 5]


def test_a_parameter_makes_the_chain_of_memory_longer():
  config = environments.EnvironmentConfig(
    env_name="gymnax:MemoryChain-bsuite", env_arguments=("memory_length=6",))
  env = config.make()
  state = env.reset(jax.random.split(jax.random.key(0), 8))
  remembered = (state.obs[:, 2] > 0).astype(jnp.int32)
  assert len(set(remembered.tolist())) == 2
  for t in range(7):
    assert state.done.sum() == state.reward.sum() == 0
    if t > 1:  # It is shown at the first two.
      assert not state.obs[:, 2].any()
    state = env.step(state, remembered.at[0].set(1 - remembered[0]))
  assert state.reward.tolist() == [-1] + 7 * [1]
  assert (state.done == 1).all() and not state.info["discount"].any()


@pytest.mark.parametrize(("name", "arguments", "message"), [
  ("CartPole-v2", (), "'gymnax:CartPole-v2' is unknown; did .*'CartPole-v1"),
  ("CartPole-v1", ("masspool=1",), "argument 'masspool'; .*, masspole, "),
  ("CartPole-v1", ("masspole",), "'masspole' says no value; give name=value"),
  ("CartPole-v1", None, "backend='spring' is not .*'gymnax:CartPole-v1'; l")])
def test_nonsense_is_refused_in_one_line(name, arguments, message):
  config = environments.EnvironmentConfig(
    env_name=f"gymnax:{name}", env_arguments=arguments or (),
    backend=None if arguments is not None else "spring")
  with pytest.raises(ValueError, match=message) as error:
    config.make()
  assert "\n" not in str(error.value)
