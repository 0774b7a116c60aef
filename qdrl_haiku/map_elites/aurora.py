"""AURORA: descriptors that an autoencoder learns of what elites have seen.

Grillotti and Cully (2022), "Unsupervised behaviour discovery with
quality-diversity optimisation", arXiv:2106.05648.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

from qdrl_haiku import platform, specs, trees
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.map_elites.describers import EPISODES, Describer
from qdrl_haiku.map_elites.repertoire import Repertoire
from qdrl_haiku.types import Array, Key, Params, Tree

_HIDDEN_SIZE = 64


@dataclasses.dataclass(frozen=True)
class AuroraConfig(Settings):
  """Says how descriptors are learned (--describer=aurora)."""

  title = "Describer"

  encoder: str = setting(
    "mlp",
    "What --describer=aurora encodes an episode by: mlp, two layers that see "
    "all of it; gru, a recurrent network.",
    choices=("mlp", "gru"))
  descriptor_size: int = setting(2, "Numbers of a learned descriptor.", low=1)
  num_looks: int = setting(
    10,
    "Observations of an episode by which it's described, evenly from the first "
    "to the last possible one; after its end, its last.",
    low=1)
  improvement_interval: int = setting(
    10,
    "Generations from the autoencoder's first training, after the first "
    "generation, to the next; each later pause is longer by as many. After a "
    "training all elites are described and placed anew.",
    low=1)
  describer_epochs: int = setting(
    50, "How often the autoencoder sees each elite in a training.", low=1)
  describer_batch_size: int = setting(
    128, "Episodes per step of the autoencoder.", low=1, offered=False)
  describer_learning_rate: float = setting(
    1e-3, "Adam's learning rate of the autoencoder.", above=0, offered=False)


class Aurora(NamedTuple):
  """Holds an autoencoder of observations of O numbers."""

  params: Params
  mean: Array  # Of what elites have seen, [O].
  scale: Array  # One over its standard deviation, [O]; 0 where that is 0.
  loss: Array  # float32 [], of all elites after the last training.
  generation: Array  # int32 [], how many have been.
  num_trainings: Array  # int32 [], with those that diverged.
  num_diverged: Array  # int32 [], of which nothing was kept.


def aurora(
  config: AuroraConfig, observation_spec: specs.Observation, num_steps: int
) -> Describer:
  """Makes a describer that learns.

  Observations are normalised by the mean and the standard deviation of what
  elites have seen. A training goes on with the weights of the last one; where
  it ends with a number that isn't finite, nothing of it is kept.

  Args:
    config: its settings.
    observation_spec: of what is observed.
    num_steps: T, of a whole episode.
  """
  spec, looks = specs.observation_spec(observation_spec), config.num_looks
  size = specs.observation_size(spec)
  times = np.linspace(0, num_steps - 1, looks).round().astype(np.int32)
  network = _autoencoder(config.encoder, config.descriptor_size, looks, size)
  encode, restore = network.apply

  def summarize(seen: Array, mask: Array) -> Array:
    last = jnp.sum(mask, dtype=jnp.int32) - 1
    return seen[jnp.minimum(times, last)].astype(jnp.float32)

  def init(key: Key) -> Aurora:
    zero = jnp.zeros((), jnp.int32)
    return Aurora(
      network.init(key, jnp.zeros((looks, size))), jnp.zeros(size),
      jnp.ones(size), jnp.float32(jnp.nan), zero, zero, zero)

  def seen_by(state: Aurora, episode: Array) -> Array:
    return (episode - state.mean) * state.scale

  def loss_of(params: Params, seen: Array) -> Array:
    return jnp.sum((restore(params, encode(params, seen)) - seen)**2) * (
      1 / seen.size)

  def train(state: Aurora, episodes: Array, exists: Array, key: Key) -> Aurora:
    state = _normalized(state, episodes, exists)
    episodes = seen_by(state, episodes)
    losses = jax.vmap(loss_of, (None, 0))
    params = _fit(config, losses, state.params, episodes, exists, key)
    loss = jnp.sum(jnp.where(exists, losses(params, episodes), 0))
    return state._replace(params=params, loss=loss * (1 / jnp.sum(exists)))

  def improve(
    state: Aurora, repertoire: Repertoire, key: Key
  ) -> tuple[Aurora, Array]:
    n, episodes = state.num_trainings, repertoire.extras[EPISODES]
    is_due = state.generation == config.improvement_interval * n * (n + 1) // 2
    trained = jax.lax.cond(
      is_due, platform.decision(train), lambda state, *_: state, state,
      episodes.reshape(-1, looks, size),
      jnp.repeat(repertoire.occupied, episodes.shape[1]), key)
    differs = is_due & trees.all_finite_leaves(trained, 0)
    kept = jax.tree.map(
      lambda x, old: jnp.where(differs, x, old), trained, state)
    return kept._replace(
      generation=state.generation + 1, num_trainings=n + is_due,
      num_diverged=state.num_diverged + (is_due & ~differs)), differs

  return Describer(
    look=lambda state: specs.as_vector(state.info["next_observation"], spec),
    summarize=summarize, init=init, improve=improve,
    describe=platform.member(
      lambda state, episode: encode(state.params, seen_by(state, episode))),
    metrics=lambda state: {
      name: getattr(state, name)
      for name in ("loss", "num_trainings", "num_diverged")})


def _normalized(state: Aurora, episodes: Array, exists: Array) -> Aurora:
  """Sets mean and scale to those of episodes [R, S, O] that exist."""
  weights = jnp.broadcast_to(exists[:, None, None], (*episodes.shape[:2], 1))
  share = 1 / jnp.sum(weights)
  mean = jnp.sum(weights * episodes, axis=(0, 1)) * share
  variance = jnp.sum(weights * (episodes - mean) ** 2, axis=(0, 1)) * share
  # Rounding errors of what doesn't vary are no variance.
  varies = variance > 1e-10 * (1 + mean**2)
  scale = jnp.where(varies, jax.lax.rsqrt(jnp.where(varies, variance, 1)), 0)
  return state._replace(mean=mean, scale=scale)


def _fit(
  config: AuroraConfig, losses: Callable[[Params, Array], Array],
  params: Params, rows: Array, exists: Array, key: Key,
) -> Params:
  """Descends the losses of batches of the rows [R, ...] that exist, by Adam."""
  size, num = config.describer_batch_size, jnp.sum(exists)
  adam = optax.adam(config.describer_learning_rate)
  in_front = jnp.argsort(~exists, stable=True)

  def step(i: Array, known: tuple[Params, Tree]) -> tuple[Params, Tree]:
    params, optimizer = known
    drawn = jax.random.randint(
      jax.random.fold_in(key, i), (size,), 0, jnp.maximum(num, 1))
    gradient = jax.grad(lambda params: jnp.sum(
      losses(params, rows[in_front[drawn]])) * (1 / size))(params)
    updates, optimizer = adam.update(gradient, optimizer)
    return optax.apply_updates(params, updates), optimizer

  num_steps = config.describer_epochs * -(-num // size)
  return jax.lax.fori_loop(0, num_steps, step, (params, adam.init(params)))[0]


def _autoencoder(
  kind: str, descriptor_size: int, num_looks: int, size: int
) -> hk.MultiTransformed:
  """Makes networks: episode [S, O] -> descriptor [D], and D -> [S, O]."""

  def hidden(inputs: Array, name: str) -> Array:
    return jax.nn.relu(hk.Linear(_HIDDEN_SIZE, name=name)(inputs))

  def encode(episode: Array) -> Array:
    if kind == "gru":
      core = hk.GRU(_HIDDEN_SIZE, name="encoder")
      last = hk.dynamic_unroll(core, episode, core.initial_state(None))[1]
    else:
      last = hidden(hidden(episode.reshape(-1), "encoder_0"), "encoder_1")
    return hk.Linear(descriptor_size, name="descriptor")(last)

  def restore(descriptor: Array) -> Array:
    first = hidden(descriptor, "decoder_0")
    if kind == "gru":
      told = jnp.broadcast_to(descriptor, (num_looks, descriptor_size))
      core = hk.GRU(_HIDDEN_SIZE, name="decoder")
      outputs = hk.dynamic_unroll(core, told, first)[0]
      return hk.Linear(size, name="restored")(outputs)
    last = hidden(first, "decoder_1")
    return hk.Linear(num_looks * size, name="restored")(last).reshape(
      num_looks, size)

  return hk.without_apply_rng(hk.multi_transform(
    lambda: (lambda episode: restore(encode(episode)), (encode, restore))))
