"""What the drivers of brax's own learners share.

brax 0.14.2 calls `jax.device_put_replicated`, which jax 0.10 no longer has;
here is one.
"""

import argparse
import json
import time

import flax.linen
import jax
import jax.numpy as jnp
from brax import envs


def parser(**defaults):
  """Makes a parser of what both learners are told, and of numbers."""
  made = argparse.ArgumentParser()
  made.add_argument("--env_name", default="halfcheetah")
  made.add_argument("--backend", default="spring")
  made.add_argument("--hidden_layer_sizes", default="64,64")
  made.add_argument("--activation", default="relu")
  defaults = {
    "seed": 0, "num_timesteps": 1_000_000, "num_evals": 21,
    "num_eval_episodes": 8, "episode_length": 1000, "num_envs": 64,
    "discount": 0.995, "reward_scaling": 1.0} | defaults
  for name, value in defaults.items():
    made.add_argument(f"--{name}", type=type(value), default=value)
  return made


def sizes(args):
  """The widths of all hidden layers."""
  return tuple(map(int, args.hidden_layer_sizes.split(",")))


def train(module, args, **settings):
  """Trains by one of brax's modules, and prints each evaluation as JSON.

  Seconds are from the call on, compilation and evaluation included; those of
  `training_seconds` are brax's own, of training alone, the first compilation
  included.
  """
  if not hasattr(jax, "device_put_replicated"):
    jax.device_put_replicated = _device_put_replicated
  begin = time.monotonic()

  def report(step, metrics):
    row = {
      "step": int(step),
      "seconds": time.monotonic() - begin,
      "training_seconds": metrics.get("training/walltime", 0.0),
      "return": float(metrics["eval/episode_reward"])}
    print(json.dumps(row | {"seed": args.seed}), flush=True)

  module.train(
    environment=envs.get_environment(args.env_name, backend=args.backend),
    num_timesteps=args.num_timesteps, episode_length=args.episode_length,
    num_envs=args.num_envs, num_evals=args.num_evals,
    num_eval_envs=args.num_eval_episodes, deterministic_eval=True,
    normalize_observations=True, discounting=args.discount,
    reward_scaling=args.reward_scaling, seed=args.seed,
    progress_fn=report, **settings)


def activation(args):
  """The activation of hidden layers."""
  return getattr(flax.linen, args.activation)


def _device_put_replicated(tree, devices):
  """Puts a tree on each device, with an axis of them."""
  mesh = jax.sharding.Mesh(devices, ("i",))
  where = jax.NamedSharding(mesh, jax.P("i"))
  return jax.tree.map(
    lambda x: jax.device_put(jnp.stack([x] * len(devices)), where), tree)
