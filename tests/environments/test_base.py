import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from qdrl_haiku import environments
from qdrl_haiku.environments import base, brax_loading, interface
from tests.environments import liars

BOUNDS = interface.Descriptor(("x", "y"), (-5.0, -5.0), (5.0, 5.0))


class Drift:
  """Two numbers that actions add up in, and a count; in Python's types.

  The reward is the count, an action above 0.9 terminates, as does the count
  `limit`. The sine stands for physics, to be found in a jaxpr.
  """

  observation_size = 3
  action_size = 2

  def __init__(self, limit=1000, descriptor=BOUNDS):
    self.limit = limit
    self.descriptor = descriptor
    self.traces = 0

  def _state(self, x, count, reward, done):
    obs = jnp.append(x, count)
    return environments.State(
      {"x": x, "count": count}, obs, reward, done, {"twice": reward},
      {"state_descriptor": x},
    )

  def reset(self, key):
    return self._state(jax.random.uniform(key, (2,)), 0, 0, False)

  def step(self, state, action):
    self.traces += 1
    x = state.pipeline_state["x"] + jnp.sin(action)
    count = state.pipeline_state["count"] + 1
    done = (action[0] > 0.9) | (count >= self.limit)
    return self._state(x, count, count * jnp.bfloat16(1), done)


def keys(*shape, seed=0):
  return jax.random.split(jax.random.key(seed), shape)


def numbers(state):
  """The leaves of a state as NumPy arrays, keys as their data."""
  def convert(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)

  return jax.tree.map(convert, state)


def equations(jaxpr, into_cond=True):
  """All equations of a jaxpr, those of its parts included."""
  for equation in jaxpr.eqns:
    yield equation
    if into_cond or equation.primitive.name != "cond":
      for part in jaxprs_in_params(equation.params):
        yield from equations(part, into_cond)


def still(*shape):
  return jnp.zeros((*shape, 2))


def test_any_leading_axes_give_the_same_numbers():
  env = base.Environment(Drift(), episode_length=2)
  actions = jax.random.uniform(jax.random.key(1), (3, 6, 2))

  def run(shape, take):
    state = env.reset(take(keys(6)).reshape(shape))
    for action in actions:
      state = env.step(state, take(action).reshape(*shape, 2))
    return state

  flat = run((6,), lambda x: x)
  nested = run((2, 3), lambda x: x)
  single = run((), lambda x: x[4])
  assert nested.obs.shape == (2, 3, 3)
  assert single.obs.shape == (3,)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a, b.reshape(a.shape)),
    numbers(flat), numbers(nested),
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(a[4], b),
    numbers(flat), numbers(single),
  )


@pytest.mark.parametrize("method", ["step", "advance"])
def test_physics_sees_one_flat_batch(method):
  env = base.Environment(Drift(), episode_length=5)
  state = env.reset(keys(2, 3))
  jaxpr = jax.make_jaxpr(getattr(env, method))(state, still(2, 3)).jaxpr
  sines = [e for e in equations(jaxpr) if e.primitive.name == "sin"]
  assert [e.outvars[0].aval.shape for e in sines] == [(6, 2)]


def test_the_environment_is_traced_for_its_check_and_never_again():
  drift = Drift()
  env = base.Environment(drift, episode_length=5)
  traces = drift.traces
  for shape in ((), (3,), (2, 2)):
    state = env.step(env.reset(keys(*shape)), still(*shape))
    env.advance(state, still(*shape))
  assert drift.traces == traces


def _with_backend(name):
  return mock.patch.object(jax, "default_backend", lambda: name)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_episodes_begin_with_the_states_of_their_own_pool_in_order(backend):
  env = base.Environment(Drift(limit=10), episode_length=3)
  pool = env.reset(keys(4, 2, seed=1))
  state, begun = env.reset(keys(4)), np.zeros(4, int)
  with _with_backend(backend):
    step = jax.jit(env.step)
    for t in range(9):
      # The first instance terminates at every second step.
      action = still(4).at[0, 0].set(t % 2)
      state = step(state, action, pool)
      for i in np.flatnonzero(state.done):
        expected = jax.tree.map(lambda x, i=i: x[i, begun[i] % 2], pool)
        np.testing.assert_array_equal(state.obs[i], expected.obs)
        jax.tree.map(
          lambda x, y, i=i: np.testing.assert_array_equal(x[i], y),
          numbers(state.pipeline_state),
          numbers(expected.pipeline_state),
        )
        for name in ("key", "steps", "state_descriptor"):
          np.testing.assert_array_equal(
            numbers(state.info[name])[i], numbers(expected.info[name])
          )
        begun[i] += 1
  np.testing.assert_array_equal(state.info["episodes"], begun)
  assert begun.tolist() == [4, 3, 3, 3]


def test_with_a_pool_a_step_draws_no_initial_state():
  env = base.Environment(Drift(), episode_length=5)
  state, pool = env.reset(keys(3)), env.reset(keys(3, 2))

  def num_drawn(*args):
    jaxpr = jax.make_jaxpr(env.step)(state, still(3), *args).jaxpr
    names = [e.primitive.name for e in equations(jaxpr)]
    return names.count("random_bits")

  assert num_drawn() == 1
  assert num_drawn(pool) == 0


def test_on_an_accelerator_a_pool_needs_no_branch():
  env = base.Environment(Drift(), episode_length=5)
  arguments = env.reset(keys(3)), still(3), env.reset(keys(3, 2))
  with _with_backend("gpu"):
    # A function of its own, since what has been traced is known.
    jaxpr = jax.make_jaxpr(lambda *args: env._step_batch(*args))(*arguments)
  names = {e.primitive.name for e in equations(jaxpr.jaxpr)}
  assert not names & {"cond", "while", "scan"}


@pytest.mark.parametrize("action_repeat", [1, 2])
def test_reset_returns_exactly_the_type_that_step_returns(action_repeat):
  env = base.Environment(
    Drift(), episode_length=5, action_repeat=action_repeat
  )
  state = env.reset(keys(3))
  after_reset = jax.tree.map(jax.typeof, state)
  for method in (env.step, env.advance):
    assert jax.tree.map(jax.typeof, method(state, still(3))) == after_reset
  assert not any(t.weak_type for t in jax.tree.leaves(after_reset)
                 if hasattr(t, "weak_type"))


def test_step_compiles_once():
  env = base.Environment(Drift(), episode_length=2)
  step = jax.jit(env.step)
  state = env.reset(keys(3))
  for _ in range(4):
    state = step(state, still(3))
  assert step._cache_size() == 1


def test_states_can_be_carried_by_scan():
  env = base.Environment(Drift(), episode_length=2)
  state, dones = jax.lax.scan(
    lambda s, a: (env.step(s, a), s.done), env.reset(keys(3)), still(5, 3)
  )
  np.testing.assert_array_equal(dones.sum(axis=1), [0, 0, 3, 0, 3])
  np.testing.assert_array_equal(state.done, [0, 0, 0])


def test_states_can_be_donated():
  env = base.Environment(Drift(), episode_length=2)
  step = jax.jit(env.step, donate_argnums=0)
  first = env.reset(keys(3))
  state = first
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for _ in range(3):
      state = step(state, still(3))
  assert first.info["steps"].is_deleted()
  assert np.isfinite(state.obs).all()


@pytest.mark.parametrize("shape", [(), (4,), (2, 2)])
def test_no_two_leaves_of_a_state_share_a_buffer(shape):
  env = base.Environment(Drift(), episode_length=2)
  state = env.reset(keys(*shape))
  for tree in (state, env.step(state, still(*shape))):
    leaves = [
      jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
      else x for x in jax.tree.leaves(tree)
    ]
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


def test_a_reset_keeps_the_true_successor():
  env = base.Environment(Drift(limit=2), episode_length=10)
  start = env.reset(keys(1))
  state = env.step(env.step(start, still(1)), still(1))
  np.testing.assert_allclose(
    state.info["next_observation"][0], [*start.obs[0, :2], 2]
  )
  assert state.obs[0, 2] == 0
  np.testing.assert_array_equal(
    state.info["next_state_descriptor"], start.info["state_descriptor"]
  )
  np.testing.assert_array_equal(
    state.info["state_descriptor"], state.obs[:, :2]
  )
  assert (state.info["state_descriptor"] != start.obs[:, :2]).all()


@pytest.mark.parametrize(
  "limit, episode_length, discount, truncation",
  [(2, 10, 0, 0), (10, 2, 1, 1), (2, 2, 0, 0)],
  ids=["terminated", "truncated", "both"],
)
def test_only_a_termination_has_discount_0(
  limit, episode_length, discount, truncation
):
  env = base.Environment(Drift(limit=limit), episode_length=episode_length)
  state = env.step(env.reset(keys(1)), still(1))
  assert (state.done, state.info["discount"]) == (0, 1)
  state = env.step(state, still(1))
  assert (state.done, state.reward) == (1, 2)
  assert state.info["discount"] == discount
  assert state.info["truncation"] == truncation


@pytest.mark.parametrize("done", [True, False])
def test_a_truncation_by_the_environment_is_one(done):
  class Truncating(Drift):
    def reset(self, key):
      state = super().reset(key)
      return state.replace(info=state.info | {"truncation": False})

    def step(self, state, action):
      state = super().step(state, action)
      truncation = state.pipeline_state["count"] == 2
      return state.replace(
        done=done & truncation, info=state.info | {"truncation": truncation}
      )

  env = base.Environment(Truncating(), episode_length=10)
  state = env.step(env.reset(keys(1)), still(1))
  assert state.done == 0
  state = env.step(state, still(1))
  info = state.info
  assert (state.done, info["discount"], info["truncation"]) == (1, 1, 1)
  assert info["steps"] == 0


@pytest.mark.parametrize("with_pool", [False, True])
@pytest.mark.parametrize(
  ("make", "num_steps"),
  [
    (liars.one_nan_obs_at_step, 1),
    (liars.late_inf_reward, 3),
    (liars.nan_descriptor_at_step, 1),
    # Terminates in the same step.
    (
      lambda: liars.Walk(
        None, {"obs": jnp.full(2, jnp.nan), "done": jnp.float32(1)}
      ),
      1,
    ),
  ],
  ids=["observation", "reward", "descriptor", "at its end"],
)
def test_an_episode_that_does_not_stay_finite_is_truncated(
  make, num_steps, with_pool
):
  env = base.Environment(make(), episode_length=10)
  pool = env.reset(keys(2, 3, seed=1)) if with_pool else None
  state = env.reset(keys(2))
  for _ in range(num_steps):
    assert not state.done.any()
    state = env.step(state, still(2), pool)
  assert state.done.tolist() == state.info["truncation"].tolist() == [1, 1]
  assert state.info["discount"].tolist() == [1, 1]
  # What it goes on from is the first state of another episode.
  assert state.info["steps"].tolist() == [0, 0]
  assert np.isfinite(state.obs).all()
  assert state.pipeline_state.pipeline_state.tolist() == [0, 0]
  if with_pool:
    np.testing.assert_array_equal(state.obs, pool.obs[:, 0])


def test_an_action_that_is_not_finite_ends_its_own_episode_alone():
  env = base.Environment(Drift(), episode_length=10)
  state = env.step(env.reset(keys(3)), still(3).at[1, 0].set(jnp.nan))
  assert state.info["truncation"].tolist() == [0, 1, 0]
  assert state.info["steps"].tolist() == [1, 0, 1]
  assert np.isfinite(state.obs).all()


def test_evaluation_goes_on_with_what_is_not_finite():
  env = base.Environment(liars.one_nan_obs_at_step(), episode_length=10)
  state = env.advance(env.reset(keys(2)), still(2))
  assert not state.done.any() and np.isnan(state.obs).any()


def test_only_ended_instances_are_reset_and_each_draws_afresh():
  env = base.Environment(Drift(), episode_length=10)
  first = env.reset(keys(3))
  action = jnp.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
  second = env.step(first, action)
  third = env.step(second, action)
  np.testing.assert_array_equal(second.done, [1, 0, 1])
  np.testing.assert_array_equal(third.info["steps"], [0, 2, 0])
  np.testing.assert_array_equal(third.obs[1], [*first.obs[1, :2], 2])
  starts = [*first.obs[:, 0], *second.obs[::2, 0], *third.obs[::2, 0]]
  assert len(np.unique(starts)) == 7


def test_a_reset_costs_nothing_while_no_episode_ends():
  env = base.Environment(Drift(), episode_length=10)
  state = env.reset(keys(3))
  jaxpr = jax.make_jaxpr(env.step)(state, still(3)).jaxpr
  def draws(into_cond):
    return [e for e in equations(jaxpr, into_cond)
            if e.primitive.name == "random_bits"]

  assert draws(into_cond=True)
  assert not draws(into_cond=False)


def test_a_vmapped_step_is_the_flat_step():
  env = base.Environment(Drift(), episode_length=10)
  state = env.reset(keys(2, 3))
  action = jax.random.uniform(
    jax.random.key(1), (2, 3, 2), minval=0.8, maxval=1.0
  )
  flat, nested = env.step(state, action), jax.vmap(env.step)(state, action)
  assert 0 < flat.done.sum() < 6
  jax.tree.map(
    np.testing.assert_array_equal, numbers(flat), numbers(nested)
  )


def test_repeated_actions_add_up_rewards_until_the_episode_ends():
  env = base.Environment(Drift(limit=5), episode_length=99, action_repeat=3)
  state = env.step(env.reset(keys(1)), still(1))
  assert (state.reward, state.done, state.info["steps"]) == (6, 0, 1)
  assert state.obs[0, 2] == 3
  state = env.step(state, still(1))
  assert (state.reward, state.done) == (4 + 5, 1)
  assert state.info["next_observation"][0, 2] == 5
  assert state.obs[0, 2] == 0


def test_episode_length_counts_steps_before_action_repeat():
  env = base.Environment(Drift(), episode_length=5, action_repeat=2)
  state, dones, steps = env.reset(keys(1)), [], []
  for _ in range(4):
    state = env.step(state, still(1))
    dones.append(int(state.done[0]))
    steps.append(int(state.info["steps"][0]))
  assert dones == [0, 0, 1, 0]
  assert steps == [1, 2, 0, 1]
  assert env.episode_steps == 3


def test_advance_goes_on_after_the_end():
  env = base.Environment(Drift(limit=2), episode_length=10)
  state, dones = env.reset(keys(1)), []
  for _ in range(3):
    state = env.advance(state, still(1))
    dones.append(int(state.done[0]))
  assert dones == [0, 1, 1]
  assert (state.obs[0, 2], state.reward, state.info["steps"]) == (3, 3, 3)
  np.testing.assert_array_equal(state.obs, state.info["next_observation"])


def test_legacy_keys_are_taken():
  env = base.Environment(Drift(), episode_length=10)
  legacy = jax.random.split(jax.random.PRNGKey(3), 2)
  typed = jax.random.split(jax.random.key(3), 2)
  np.testing.assert_array_equal(env.reset(legacy).obs, env.reset(typed).obs)


def test_rewards_and_dones_are_float32_whatever_the_environment_returns():
  env = base.Environment(Drift(), episode_length=10, action_repeat=2)
  for state in (env.reset(keys(2)), env.step(env.reset(keys(2)), still(2))):
    assert state.reward.dtype == state.done.dtype == jnp.float32
    assert state.obs.dtype == state.info["discount"].dtype == jnp.float32


def test_an_action_of_another_shape_is_refused():
  env = base.Environment(Drift(), episode_length=10)
  with pytest.raises(ValueError, match=r"\(3,\), but \(3, 2\) fits"):
    env.step(env.reset(keys(3)), jnp.zeros(3))


def broken(change, method="step", **attributes):
  """A Drift that is wrong in one way: a change to what a method returns."""
  class Broken(Drift):
    pass

  def changed(self, *args):
    return change(getattr(super(Broken, self), method)(*args))

  setattr(Broken, method, changed)
  env = Broken()
  vars(env).update(attributes)
  return env


def wrong(**changes):
  return lambda state: state.replace(**changes)


@pytest.mark.parametrize("env, message", [
  (broken(lambda s: s, observation_size=4), r"obs has shape \(3,\)"),
  (broken(lambda s: s, observation_size=0), "observation_size=0 must be"),
  (broken(lambda s: s, action_size=2.0), "action_size=2.0 must be an integer"),
  (broken(wrong(reward=jnp.zeros(1))), r"shapes: \.reward .*\[\] -> .*\[1\]"),
  (broken(wrong(info={})), r"only one .* has \.info\['state_descriptor'\]"),
  (broken(lambda s: s.replace(info=s.info | {"n": 1})), r"has \.info\['n'\]"),
  (broken(wrong(info={}), "_state"), "returns no info"),
  (broken(lambda s: (), "reset"), "tuple without 'obs'"),
  (broken(lambda s: s, descriptor=interface.Descriptor(("x",), (0,), (1,))),
   r"state_descriptor'\] has shape \(2,\) instead of \(1,\)"),
  (object(), "no method 'reset'"),
  (base.Environment(Drift(), episode_length=1), "wrapped already"),
])
def test_an_environment_that_contradicts_itself_is_refused(env, message):
  with pytest.raises(ValueError, match=message) as error:
    base.Environment(env, episode_length=10)
  assert "\n" not in str(error.value)


def test_a_descriptor_must_be_float32():
  env = Drift()
  as_int = lambda s: s.replace(  # noqa: E731
    info={"state_descriptor": s.obs[:2].astype(int)}
  )
  reset, step = env.reset, env.step
  env.reset = lambda key: as_int(reset(key))
  env.step = lambda state, action: as_int(step(state, action))
  with pytest.raises(ValueError, match="dtype int32; return float32"):
    base.Environment(env, episode_length=10)


@pytest.mark.parametrize("name", ["episode_length", "action_repeat"])
def test_numbers_below_1_are_refused(name):
  numbers = {"episode_length": 5, "action_repeat": 1} | {name: 0}
  with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
    base.Environment(Drift(), **numbers)


def test_a_size_that_the_environment_computes_is_read():
  class Computing(Drift):
    @property
    def observation_size(self):
      return int(jnp.prod(jnp.array([3, 1])))

  assert base.Environment(Computing(), episode_length=5).observation_size == 3


@pytest.mark.parametrize("lower, upper, message", [
  ((0.0,), (1.0, 1.0), "differ in length"),
  ((0.0, 1.0), (1.0, 1.0), "must be below"),
])
def test_a_descriptor_with_wrong_bounds_is_refused(lower, upper, message):
  with pytest.raises(ValueError, match=message):
    interface.Descriptor(("x", "y"), lower, upper)


@pytest.fixture(scope="module")
def pendulum():
  env = environments.create("inverted_pendulum", episode_length=5)
  return env, jax.jit(env.step, donate_argnums=0)


def test_real_physics_terminates_resets_and_compiles_once(pendulum):
  env, step = pendulum
  state, rewards = env.reset(keys(2)), []
  while not rewards or not state.done.any():
    state = step(state, jnp.array([[1.0], [0.0]]))
    rewards.append(float(state.reward[0]))
  assert rewards == [1, 1]
  np.testing.assert_array_equal(state.done, [1, 0])
  np.testing.assert_array_equal(state.info["discount"], [0, 1])
  np.testing.assert_array_equal(state.info["truncation"], [0, 0])
  # The pole falls at 0.2 rad, and starts within 0.01.
  assert abs(state.info["next_observation"][0, 1]) > 0.2
  assert abs(state.obs[0]).max() <= 0.01
  np.testing.assert_array_equal(state.obs[1], state.info["next_observation"][1])
  assert step._cache_size() == 1


def test_real_physics_is_truncated_at_the_episode_length(pendulum):
  env, step = pendulum
  state = env.reset(keys(2))
  for _ in range(5):
    np.testing.assert_array_equal(state.done, [0, 0])
    state = step(state, jnp.zeros((2, 1)))
  np.testing.assert_array_equal(state.done, [1, 1])
  np.testing.assert_array_equal(state.info["discount"], [1, 1])
  np.testing.assert_array_equal(state.info["truncation"], [1, 1])


def test_an_environment_that_resets_itself_is_refused(pendulum):
  from brax.envs.wrappers import training

  env = training.AutoResetWrapper(pendulum[0].unwrapped)
  with brax_loading.quiet_brax(), pytest.raises(
    ValueError, match="without brax's AutoResetWrapper"
  ):
    base.Environment(env, episode_length=10)


def test_an_environment_that_was_checked_before_is_traced_when_it_is_needed():
  drift = Drift()
  env = base.Environment(drift, episode_length=5, sizes=(3, 2))
  assert (env.observation_size, env.action_size) == (3, 2)
  assert drift.traces == 0

  # Within a mesh and another trace, neither of which the environment is to see.
  mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), "population")
  spec = jax.sharding.PartitionSpec("population")

  @jax.jit
  @jax.shard_map(mesh=mesh, in_specs=spec, out_specs=spec)
  def run(key):
    return env.step(env.reset(key), still(4)).obs

  known = base.Environment(Drift(), episode_length=5)
  expected = known.step(known.reset(keys(4)), still(4)).obs
  np.testing.assert_array_equal(run(keys(4)), expected)
  assert drift.traces > 0
  np.testing.assert_array_equal(
    env.step(env.reset(keys(4)), still(4)).obs, expected
  )
