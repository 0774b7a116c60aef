"""AURORA: descriptors that an autoencoder learns of what elites have seen.

Grillotti and Cully (2022), "Unsupervised behaviour discovery with
quality-diversity optimisation", arXiv:2106.05648. An episode is described by
what the encoder makes of its observations.
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
from qdrl_haiku.types import Array, Key, Metrics, Params, Tree

_HIDDEN_SIZE = 64


@dataclasses.dataclass(frozen=True)
class AuroraConfig(Settings):
  """Says how descriptors are learned (--describer=aurora)."""

  title = "Repertoire"

  encoder: str = setting(
    "mlp",
    "What --describer=aurora encodes an episode by: mlp, two layers that see "
    "all of its observations at once; gru, a recurrent network that sees one "
    "after the other.",
    choices=("mlp", "gru"))
  descriptor_size: int = setting(
    2, "Numbers of a learned descriptor.", low=1)
  num_looks: int = setting(
    10,
    "Observations of an episode by which it's described, from its first step "
    "to its last possible one; after its end, its last.",
    low=1)
  improvement_interval: int = setting(
    10,
    "Generations from the first training of the autoencoder, which follows the "
    "first one, to the next; each later pause is longer by as many. After "
    "each, all elites are described and placed anew.",
    low=1)
  describer_epochs: int = setting(
    50, "How often the autoencoder sees each elite in a training.", low=1)
  describer_batch_size: int = setting(
    128, "Episodes per step of the autoencoder.", low=1, offered=False)
  describer_learning_rate: float = setting(
    1e-3, "Adam's learning rate of the autoencoder.", above=0, offered=False)


class Aurora(NamedTuple):
  """Holds an autoencoder; O numbers of an observation."""

  params: Params
  mean: Array  # Of what elites have seen, [O].
  scale: Array  # One over its standard deviation, [O]; 0 where that is 0.
  generation: Array  # int32 [], how many have been.
  next_one: Array  # int32 [], the generation of the next training.
  num_trainings: Array  # int32 [], with those that diverged.
  num_diverged: Array  # int32 [], of which nothing was kept.
  loss: Array  # float32 [], of all elites after the last training.


def aurora(
  config: AuroraConfig, observation_spec: specs.Observation, num_steps: int
) -> Describer:
  """Makes a describer that learns.

  Observations are normalised by the mean and the standard deviation of what
  elites have seen. A training begins with the weights of the last one; where
  one ends with a number that isn't finite, all stays as it was before.

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
      jnp.ones(size), zero, zero, zero, zero, jnp.float32(jnp.nan))

  def normalized(state: Aurora, episode: Array) -> Array:
    return (episode - state.mean) * state.scale

  def loss_of(state: Aurora, params: Params, episode: Array) -> Array:
    seen = normalized(state, episode)
    errors = restore(params, encode(params, seen)) - seen
    return jnp.sum(errors**2) * (1 / errors.size)

  def improve(
    state: Aurora, repertoire: Repertoire, key: Key
  ) -> tuple[Aurora, Array]:
    is_due = state.generation == state.next_one
    num_trainings = state.num_trainings + is_due
    pause = config.improvement_interval * num_trainings
    state = state._replace(
      generation=state.generation + 1, num_trainings=num_trainings,
      next_one=state.next_one + jnp.where(is_due, pause, 0))
    episodes = repertoire.extras[EPISODES]
    trained = jax.lax.cond(
      is_due, platform.decision(train), lambda state, *_: state,
      state, episodes, repertoire.occupied, key)
    is_finite = trees.all_finite_leaves(trained, 0)
    kept = jax.tree.map(
      lambda x, old: jnp.where(is_due & is_finite, x, old), trained, state)
    num_diverged = state.num_diverged + (is_due & ~is_finite)
    return kept._replace(num_diverged=num_diverged), is_due & is_finite

  def train(
    state: Aurora, episodes: Array, occupied: Array, key: Key
  ) -> Aurora:
    state = _normalization(state, episodes, occupied)
    rows = episodes.reshape(-1, looks, size)
    exists = jnp.repeat(occupied, episodes.shape[1])
    params = _fit(
      config, lambda params, rows: jax.vmap(loss_of, (None, None, 0))(
        state, params, rows), state.params, rows, exists, key)
    losses = jax.vmap(loss_of, (None, None, 0))(state, params, rows)
    total = jnp.sum(jnp.where(exists, losses, 0))
    return state._replace(params=params, loss=total * (1 / jnp.sum(exists)))

  def metrics(state: Aurora) -> Metrics:
    return {
      "loss": state.loss, "num_trainings": state.num_trainings,
      "num_diverged": state.num_diverged}

  return Describer(
    look=lambda state: specs.as_vector(
      state.info["next_observation"], spec),
    summarize=summarize, init=init, improve=improve, metrics=metrics,
    describe=platform.member(
      lambda state, episode: encode(state.params, normalized(state, episode))))


def _normalization(
  state: Aurora, episodes: Array, occupied: Array
) -> Aurora:
  """Sets mean and scale to those of the elites' episodes [C, N, S, O]."""
  weights = jnp.broadcast_to(
    occupied[:, None, None, None], (*episodes.shape[:3], 1))
  share = 1 / jnp.sum(weights)
  mean = jnp.sum(weights * episodes, axis=(0, 1, 2)) * share
  variance = jnp.sum(weights * (episodes - mean) ** 2, axis=(0, 1, 2)) * share
  # Rounding errors of what doesn't vary are no variance.
  varies = variance > 1e-10 * (1 + mean**2)
  scale = jnp.where(varies, jax.lax.rsqrt(jnp.where(varies, variance, 1)), 0)
  return state._replace(mean=mean, scale=scale)


def _fit(
  config: AuroraConfig, losses: Callable[[Params, Array], Array],
  params: Params, rows: Array, exists: Array, key: Key,
) -> Params:
  """Descends the losses of batches of rows [R, ...] that exist, by Adam."""
  size = config.describer_batch_size
  adam = optax.adam(config.describer_learning_rate)
  in_front = jnp.argsort(~exists, stable=True)
  num = jnp.sum(exists)

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
      outputs, _ = hk.dynamic_unroll(core, episode, core.initial_state(None))
      last = outputs[-1]
    else:
      last = hidden(hidden(episode.reshape(-1), "encoder_0"), "encoder_1")
    return hk.Linear(descriptor_size, name="descriptor")(last)

  def restore(descriptor: Array) -> Array:
    first = hidden(descriptor, "decoder_0")
    if kind == "gru":
      core = hk.GRU(_HIDDEN_SIZE, name="decoder")
      told = jnp.broadcast_to(descriptor, (num_looks, descriptor_size))
      outputs, _ = hk.dynamic_unroll(core, told, first)
      return hk.Linear(size, name="restored")(outputs)
    outputs = hk.Linear(num_looks * size, name="restored")(
      hidden(first, "decoder_1"))
    return outputs.reshape(num_looks, size)

  def make() -> tuple[Callable[..., Tree], tuple[Callable[..., Tree], ...]]:
    return lambda episode: restore(encode(episode)), (encode, restore)

  return hk.without_apply_rng(hk.multi_transform(make))
