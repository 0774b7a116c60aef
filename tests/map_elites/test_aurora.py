"""Tests of descriptors that an autoencoder learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qdrl_haiku import map_elites

_KEY = jax.random.key(0)
_PLACES, _LOOKS, _SIZE, _STEPS = 24, 3, 4, 9
_CONFIG = map_elites.AuroraConfig(
  num_looks=_LOOKS, improvement_interval=2, describer_epochs=40,
  describer_batch_size=8, describer_learning_rate=3e-3)


def _describer(**changes):
  return map_elites.aurora(
    dataclasses.replace(_CONFIG, **changes), _SIZE, _STEPS)


def _repertoire(num_elites=20):
  """Elites whose episodes are mixed of two numbers, and the number 5."""
  rng = np.random.default_rng(0)
  mixed = rng.normal(size=(_PLACES, 2)) @ rng.normal(size=(2, _LOOKS * 3))
  episodes = np.full((_PLACES, 2, _LOOKS, _SIZE), 5.0, np.float32)
  episodes[..., :3] = mixed.reshape(_PLACES, 1, _LOOKS, 3)
  occupied = np.arange(_PLACES) < num_elites
  empty = map_elites.Repertoire.init(
    jnp.zeros(()), map_elites.Unstructured(_PLACES, 2), {
      "episodes": jnp.zeros(episodes.shape[1:])})
  return dataclasses.replace(
    empty, fitness=jnp.where(occupied, 0.0, -jnp.inf), extras={
      "episodes": jnp.where(occupied[:, None, None, None], episodes, 0)})


@functools.cache
def _trained(encoder):
  describer = _describer(encoder=encoder)
  state = describer.init(_KEY)
  return (describer, state, *jax.jit(describer.improve)(
    state, _repertoire(), _KEY))


@pytest.mark.parametrize("encoder", ["mlp", "gru"])
def test_it_learns_what_elites_have_seen(encoder):
  describer, before, after, differs = _trained(encoder)
  assert differs and after.loss < 0.3, after.loss
  seen = np.float64(_repertoire().extras["episodes"][:20])
  np.testing.assert_allclose(after.mean, seen.mean((0, 1, 2)), rtol=1e-5)
  std = seen.std((0, 1, 2))
  np.testing.assert_allclose(after.scale[:3], 1 / std[:3], rtol=1e-4)
  assert after.scale[3] == 0  # It's always the same.
  episode = jnp.asarray(seen[0, 0], jnp.float32)
  found = describer.describe(after, episode)
  assert found.shape == (2,)
  assert not np.allclose(found, describer.describe(before, episode), atol=0.1)


def test_a_training_is_a_plain_loop_of_adam():
  describer, before, after, _ = _trained("mlp")
  rows = _repertoire().extras["episodes"][:20].reshape(40, _LOOKS, _SIZE)
  rows = (rows - after.mean) * after.scale

  def loss(params, rows):
    x = rows.reshape(-1, _LOOKS * _SIZE)
    names = "encoder_0", "encoder_1", "descriptor", "decoder_0", "decoder_1"
    for name in (*names, "restored"):
      x = x @ params[name]["w"] + params[name]["b"]
      x = x if name in ("descriptor", "restored") else jax.nn.relu(x)
    return jnp.mean((x - rows.reshape(x.shape)) ** 2)

  adam, params = optax.adam(3e-3), before.params
  optimizer, gradient = adam.init(params), jax.jit(jax.grad(loss))
  for i in range(40 * 5):
    drawn = jax.random.randint(jax.random.fold_in(_KEY, i), (8,), 0, 40)
    updates, optimizer = adam.update(gradient(params, rows[drawn]), optimizer)
    params = optax.apply_updates(params, updates)
  jax.tree.map(functools.partial(
    np.testing.assert_allclose, rtol=1e-2, atol=2e-3), after.params, params)
  np.testing.assert_allclose(after.loss, loss(params, rows), rtol=1e-2)


def test_pauses_between_trainings_grow():
  describer, state = _describer(describer_epochs=1), _describer().init(_KEY)
  improve = jax.jit(describer.improve)
  due = []
  for generation in range(14):
    state, differs = improve(state, _repertoire(), _KEY)
    due += [generation] * bool(differs)
  assert due == [0, 2, 6, 12]
  assert describer.metrics(state)["num_trainings"] == 4


@pytest.mark.parametrize(("changes", "num_elites"), [
  ({"describer_learning_rate": 1e30}, 20), ({}, 0)])
def test_nothing_is_kept_of_a_training_that_diverged(changes, num_elites):
  describer = _describer(describer_epochs=2, **changes)
  before = describer.init(_KEY)
  state, differs = jax.jit(describer.improve)(
    before, _repertoire(num_elites), _KEY)
  assert not differs and state.num_diverged == 1
  jax.tree.map(np.testing.assert_array_equal, state.params, before.params)
  assert state.num_trainings == 1 and np.isfinite(state.scale).all()


@pytest.mark.parametrize(("length", "seen"), [(9, [0, 4, 8]), (3, [0, 2, 2])])
def test_an_episode_is_looked_at_from_its_first_step_to_its_last(length, seen):
  looks = jnp.arange(9.0)[:, None] * jnp.ones(_SIZE)
  found = _describer().summarize(looks, jnp.arange(9) < length)
  assert found[:, 0].tolist() == seen
