"""Tests of what all learners do: update, act, observe, be stored."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qdrl_haiku.learners import base, statistics
from tests import jaxprs
from tests.learners import common, reference

_NAMES = (
  "sac",
  "td3",
  pytest.param("crossq", marks=pytest.mark.slow),
  pytest.param("xqc", marks=pytest.mark.slow),
)
_EACH = pytest.mark.parametrize("name", _NAMES)


def _update(case, state, seed=0, **changes):
  """One update on data of its own."""
  return case.update(
    state,
    common.hyperparams(case.learner, **changes),
    common.batches(case.learner, seed),
    jax.random.key(seed),
  )


@_EACH
def test_an_update_of_a_population_is_that_of_each_member(name):
  case = common.case(name)
  members = range(common.POPULATION_SIZE)
  states = [common.agent(case.learner, seed=i) for i in members]
  # Not their first update, so that moments and counts matter.
  states = [_update(case, state, seed=50)[0] for state in states]
  rng = np.random.default_rng(0)
  hyperparams = [
    {
      name: np.float32(value * rng.uniform(0.5, 1.0))
      for name, value in common.hyperparams(case.learner).items()
    }
    for _ in members
  ]
  batches = [common.batches(case.learner, seed=i) for i in members]
  keys = jax.random.split(jax.random.key(1), common.POPULATION_SIZE)
  together = case.update_all(
    *map(common.stack, (states, hyperparams, batches)), keys
  )
  for i in members:
    alone = case.update(states[i], hyperparams[i], batches[i], keys[i])
    # Sums over a batch and its target's, through statistics, round more.
    atol = 1e-5 if name == "crossq" else 1e-6
    common.assert_close(
      common.member(together, i), alone, rtol=1e-5, atol=atol
    )


@_EACH
def test_an_update_keeps_the_type_of_every_leaf(name):
  case = common.case(name)
  state = common.fresh(case.learner)
  before = jax.tree.map(jax.typeof, state)
  # Python floats as hyperparameters: weak types that must not get in.
  after = jax.eval_shape(
    case.learner.update, state, case.learner.hyperparams,
    common.batches(case.learner), jax.random.key(0),
  )[0]
  assert jax.tree.structure(after) == jax.tree.structure(before)
  for x, y in zip(
    jax.tree.leaves(before), jax.tree.leaves(after), strict=True
  ):
    assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
    assert not x.weak_type


@_EACH
@pytest.mark.parametrize("jitted", [True, False])
def test_no_two_leaves_of_a_state_share_a_buffer(name, jitted):
  learner = common.case(name).learner
  from_genotype = learner.from_genotype
  if jitted:
    from_genotype = jax.jit(from_genotype)
  state = common.fresh(learner)
  for tree in (state, from_genotype(learner.genotype(state))):
    leaves = jax.tree.leaves(tree)
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


@_EACH
def test_updates_compile_once_and_take_donated_states(name):
  learner = common.case(name).learner
  # A function of its own: jit shares the cache of one function.
  update = jax.jit(lambda *args: learner.update(*args), donate_argnums=0)
  first = state = common.fresh(learner)
  with warnings.catch_warnings():
    warnings.filterwarnings("error", message="Some donated buffers")
    for i in range(3):
      state, _ = update(
        state, learner.hyperparams | {"discount": 0.9 + 0.01 * i},
        common.batches(learner, seed=i), jax.random.key(i),
      )
  assert update._cache_size() == 1
  assert all(x.is_deleted() for x in jax.tree.leaves(first))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@_EACH
def test_an_update_has_no_conditional(name):
  case = common.case(name)
  args = (
    common.agent(case.learner), case.learner.hyperparams,
    common.batches(case.learner), jax.random.key(0),
  )
  primitives = {
    e.primitive.name for e in jaxprs.equations(case.learner.update, *args)
  }
  assert "dot_general" in primitives
  assert "cond" not in primitives
  assert not jaxprs.waiting_loops(case.learner.update, *args)


@_EACH
def test_metrics_are_finite_scalars(name):
  case = common.case(name)
  metrics = _update(case, common.agent(case.learner))[1]
  assert {
    "critic_loss", "policy_loss", "q_mean", "action_saturation",
    "gradient_norm/policy", "gradient_norm/critic",
  } <= metrics.keys()
  for value in metrics.values():
    assert value.shape == ()
    assert np.isfinite(value)


@_EACH
def test_agents_of_different_keys_differ(name):
  learner = common.case(name).learner
  first, second = (common.fresh(learner, seed=i) for i in range(2))
  for network in ("policy_params", "critic_params"):
    assert common.distance(getattr(first, network), getattr(second, network))
  # The twins differ from each other too.
  for layer in first.critic_params.values():
    if "w" in layer:  # Others begin with zeros and ones.
      assert np.any(layer["w"][0] != layer["w"][1])


@_EACH
def test_a_genotype_has_all_but_targets_and_moments_which_are_fresh_again(name):
  case = common.case(name)
  before = _update(case, common.agent(case.learner))[0]
  genotype = case.learner.genotype(before)
  after = case.learner.from_genotype(genotype)
  fresh = common.fresh(case.learner)
  kept = []
  for field, value in after._asdict().items():
    old = expected = getattr(before, field)
    if field.startswith("target_"):
      expected = getattr(before, field.removeprefix("target_"))
      assert common.distance(old, expected)
    elif field.endswith("optimizer_state"):
      expected = getattr(fresh, field)
      assert old.count > 0
    else:
      kept += jax.tree.leaves(old)
    common.assert_equal(value, expected)
  assert len(jax.tree.leaves(genotype)) == len(kept)


@pytest.mark.parametrize("name", [x for x in _NAMES if x != "td3"])
def test_a_fixed_temperature_stays_and_has_no_hyperparameters(name):
  case = common.case(name, learn_temperature=False, initial_temperature=0.3)
  learned = common.case(name).learner.hyperparams.keys()
  assert learned - case.learner.hyperparams.keys() == {
    "temperature_learning_rate", "target_entropy"
  }  # fmt: skip
  state = common.agent(case.learner)
  assert state.temperature_optimizer_state is None
  after, metrics = _update(case, state)
  assert after.log_temperature == state.log_temperature
  assert jax.tree.structure(after) == jax.tree.structure(state)
  assert "temperature_loss" not in metrics
  np.testing.assert_allclose(metrics["temperature"], 0.3, rtol=1e-6)
  for field in ("policy_params", "critic_params"):
    assert common.distance(getattr(after, field), getattr(state, field)) > 1e-4


@_EACH
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_actions_are_in_the_box_for_any_leading_axes(name, shape):
  case = common.case(name)
  state = common.agent(case.learner)
  # Large outputs, so that the border is reached.
  state = state._replace(
    policy_params=jax.tree.map(lambda x: 20 * x, state.policy_params)
  )
  hyperparams = common.hyperparams(case.learner)
  if "exploration_noise" in hyperparams:
    hyperparams["exploration_noise"] = np.float32(3.0)
  observation = common.observations(*shape)
  actions = case.act(state, hyperparams, observation, jax.random.key(0))
  greedy = case.act_greedy(state, observation)
  for action in (actions, greedy):
    assert action.shape == (*shape, common.ACTION_SIZE)
    assert np.all(np.abs(action) <= 1)
  assert np.abs(greedy).max() > 0.9


@_EACH
def test_acting_explores_and_greedy_acting_does_not(name):
  case = common.case(name)
  state = common.agent(case.learner)
  hyperparams = common.hyperparams(case.learner)
  observation = jnp.tile(common.observations(1), (5, 1))
  greedy = case.act_greedy(state, observation)
  common.assert_equal(greedy, case.act_greedy(state, observation))
  assert len(np.unique(greedy, axis=0)) == 1
  actions = [
    case.act(state, hyperparams, observation, jax.random.key(i))
    for i in (0, 1, 0)
  ]
  assert np.all(np.any(actions[0] != actions[1], axis=-1))
  common.assert_equal(actions[0], actions[2])
  # Noise differs between environments, and between entries of an action.
  assert len(np.unique(actions[0], axis=0)) == 5
  noise = actions[0] - greedy
  assert not np.allclose(noise[:, 0], noise[:, 1])


@_EACH
def test_only_observe_changes_the_statistics(name):
  case = common.case(name)
  state = common.agent(case.learner)
  updated = _update(case, state)[0]
  common.assert_equal(
    updated.observation_statistics, state.observation_statistics
  )
  new = common.observations(2, 7, seed=9)
  observed = case.learner.observe(state, new)
  common.assert_equal(
    observed.observation_statistics,
    statistics.update(state.observation_statistics, new),
  )
  assert observed.observation_statistics.num_observations == 50 + 14
  common.assert_equal(
    observed._replace(observation_statistics=None),
    state._replace(observation_statistics=None),
  )


@_EACH
def test_without_normalisation_observe_changes_nothing(name):
  learner = common.case(name, normalize_observations=False).learner
  state = common.fresh(learner)
  assert state.observation_statistics is None
  common.assert_equal(learner.observe(state, common.observations(5)), state)


@_EACH
def test_networks_see_normalised_observations(name):
  """As if another learner, without statistics, were given such data."""
  case = common.case(name)
  plain = common.case(name, normalize_observations=False)
  state = common.agent(case.learner)
  batches = common.batches(case.learner)
  running = reference.float64(state.observation_statistics)

  def normal(observation):
    return jnp.asarray(
      reference.normalize(running, np.asarray(observation, np.float64)),
      jnp.float32,
    )

  args = common.hyperparams(case.learner), jax.random.key(3)
  expected, expected_metrics = plain.update(
    state._replace(observation_statistics=None), args[0],
    batches._replace(
      observation=normal(batches.observation),
      next_observation=normal(batches.next_observation),
    ),
    args[1],
  )
  actual, metrics = case.update(state, args[0], batches, args[1])
  common.assert_close(
    actual._replace(observation_statistics=None), expected, 1e-4, 1e-5
  )
  common.assert_close(metrics, expected_metrics, 1e-4, 1e-5)

  observation = common.observations(4)
  for act in (
    lambda c, s, o: c.act_greedy(s, o),
    lambda c, s, o: c.act(s, args[0], o, args[1]),
  ):
    np.testing.assert_allclose(
      act(case, state, observation),
      act(plain, state._replace(observation_statistics=None),
          normal(observation)),
      rtol=1e-4, atol=1e-5,
    )


@pytest.mark.parametrize("name", ["sac", "td3", "crossq", "xqc"])
def test_no_two_draws_are_from_one_key(name):
  learner, key = common.case(name).learner, jax.random.key(0)
  state = jax.eval_shape(learner.init, key)
  hyperparams, batches = common.hyperparams(learner), common.batches(learner)
  assert not jaxprs.reused_keys(learner.init, key)
  given = state, hyperparams, batches, key
  assert not jaxprs.reused_keys(learner.update, *given)


def test_adam_is_the_published_one():
  optimizer = base.Optimizer()
  rng = np.random.default_rng(0)
  params = {"w": jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)}
  state = optimizer.init(params)
  expected, moments = reference.float64((params, state))
  for i in range(20):
    gradients = {"w": jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)}
    learning_rate = 0.1 / (1 + i)
    params, state = optimizer.update(gradients, state, params, learning_rate)
    expected, moments = reference.adam(
      reference.float64(gradients), moments, expected, learning_rate
    )
  common.assert_close(params, expected, rtol=1e-5, atol=1e-5)
  assert int(state.count) == 20


def test_weight_decay_is_that_of_adamw():
  optimizer, params = base.Optimizer(), jnp.array([1.0, -2.0])
  theirs = optax.adamw(0.05, weight_decay=0.3)
  their_params, their_state = params, theirs.init(params)
  state = optimizer.init(params)
  for gradient in ([0.5, 1.0], [-0.2, 3.0]):
    gradient = jnp.array(gradient)
    steps, their_state = theirs.update(gradient, their_state, their_params)
    their_params = optax.apply_updates(their_params, steps)
    params, state = optimizer.update(gradient, state, params, 0.05, 0.3)
  np.testing.assert_allclose(params, their_params, rtol=1e-6)


@pytest.mark.parametrize(
  "name", ["td3", pytest.param("sac", marks=pytest.mark.slow)]
)
def test_weight_decay_is_live_where_there_are_residual_blocks(name):
  assert "weight_decay" not in common.case(name).learner.hyperparams
  case = common.case(
    name,
    residual=True,
    policy_hidden_layer_sizes=(4,),
    critic_hidden_layer_sizes=(4,),
  )
  assert case.learner.hyperparams["weight_decay"] == 0.01
  state, batches = common.agent(case.learner), common.batches(case.learner)
  updated = [
    case.update(
      state,
      common.hyperparams(case.learner, weight_decay=decay),
      batches,
      jax.random.key(0),
    )[0]
    for decay in (0.0, 1.0)
  ]
  for field in ("policy_params", "critic_params"):
    assert common.distance(*(getattr(x, field) for x in updated)) > 1e-3
