"""Makes what describes a repertoire's agents by name."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from qdrl_haiku import environments, map_elites
from qdrl_haiku.config import Settings, UsersOwn
from qdrl_haiku.map_elites import AuroraConfig, Describer
from qdrl_haiku.types import Tree


@dataclasses.dataclass(frozen=True)
class OwnDescriptorConfig(Settings):
  """Says that agents are described by the environment's own descriptor."""


KINDS = {"environment": OwnDescriptorConfig(), "aurora": AuroraConfig()}
"""Settings of what describes agents, by name."""


def make_describer(
  config: Settings, env: environments.BatchedEnvironment
) -> Describer | None:
  """Makes a describer, None for the environment's own descriptor."""
  if isinstance(config, UsersOwn):
    return config.call("describer", Describer, env=env)
  if isinstance(config, AuroraConfig):
    return map_elites.aurora(config, env.observation_spec, env.episode_length)
  return None


def learned_descriptor(
  describer: Describer, env: environments.BatchedEnvironment
) -> environments.Descriptor:
  """Returns the names of a describer's descriptors, which have no bounds."""
  size = describer_shapes(describer, env)[-1].size
  return environments.Descriptor(
    tuple(f"learned {i + 1}" for i in range(size)), (-math.inf,) * size,
    (math.inf,) * size)


def describer_shapes(
  describer: Describer, env: environments.BatchedEnvironment
) -> tuple[Tree, Tree, Tree]:
  """Returns the shapes of what a describer's three functions return."""

  def trace() -> tuple[Tree, Tree, Tree]:
    key = jax.random.key(0)
    look, T = describer.look(env.reset(key)), env.episode_length
    looks = jax.tree.map(lambda x: jnp.broadcast_to(x, (T, *x.shape)), look)
    episode = describer.summarize(looks, jnp.ones(T, bool))
    return look, episode, describer.describe(describer.init(key), episode)

  return jax.eval_shape(trace)
