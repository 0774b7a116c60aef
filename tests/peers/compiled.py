"""Compiles a peer's training for an accelerator, and reads it as our own.

python -m tests.peers.compiled --peer=qdax --population_size=4 --width=64

Run in an environment that holds jax's compiler for the target (`benchmark.py
--algorithm=compile` names its packages) and the peer: `qdax==0.5.0`, or
`evorl-jax==0.1.1` with `omegaconf`, `hydra-core` and `gymnasium`. Each collects
with 8 environments and updates 8 times with batches of 256 in an iteration, has
a replay of 100,000 transitions, and makes 1,000 steps.
"""

import argparse
import dataclasses
import sys

import jax

from qdrl_haiku.programs import accelerators
from qdrl_haiku.programs.accelerators import cost
from qdrl_haiku.programs.storage import strict_json

_NUM_ENVS, _BATCH, _REPLAY, _ITERATIONS = 8, 256, 100_000, 125


def _qdax(flags):
  """QDax's PBT-SAC or PBT-TD3: its function that trains, and its arguments."""
  from brax import envs
  from qdax.baselines import sac_pbt, td3_pbt

  size, widths = flags.population_size, (flags.width,) * 2
  env = envs.create(
    flags.env_name, episode_length=1000, batch_size=_NUM_ENVS * size,
    auto_reset=True, backend=flags.backend)
  agents, configs = {
    "sac": (sac_pbt.PBTSAC, sac_pbt.PBTSacConfig),
    "td3": (td3_pbt.PBTTD3, td3_pbt.PBTTD3Config)}[flags.learner]
  config = configs(
    batch_size=_BATCH, episode_length=1000, policy_hidden_layer_size=widths,
    critic_hidden_layer_size=widths)
  agent = agents(config, env.action_size)
  init = agent.get_init_fn(size, env.action_size, env.observation_size, _REPLAY)
  train = agent.get_train_fn(env, _ITERATIONS, _NUM_ENVS, 1.0)

  def arguments(key):
    states, buffers = init(jax.random.key_data(key))
    env_states = jax.tree.map(
      lambda x: x.reshape(size, _NUM_ENVS, *x.shape[1:]), env.reset(key))
    return states, env_states, buffers

  return train, arguments


def _evorl(flags):
  """EvoRL's SAC, whose steps are those of its PBT, for all agents at once."""
  import optax
  from evorl.algorithms import sac
  from evorl.envs import AutoresetMode, create_wrapped_brax_env
  from evorl.replay_buffers import ReplayBuffer
  from omegaconf import OmegaConf

  env = create_wrapped_brax_env(
    flags.env_name, parallel=_NUM_ENVS, autoreset_mode=AutoresetMode.NORMAL,
    record_ori_obs=True, backend=flags.backend)
  widths = (flags.width,) * 2
  agent = sac.make_mlp_sac_agent(
    env.action_space, critic_hidden_layer_sizes=widths,
    actor_hidden_layer_sizes=widths)
  config = OmegaConf.create({
    "num_envs": _NUM_ENVS, "rollout_length": 1, "fold_iters": _ITERATIONS,
    "num_updates_per_iter": _NUM_ENVS, "actor_update_interval": 1,
    "adaptive_alpha": True, "tau": 0.005, "random_timesteps": 2000,
    "learning_start_timesteps": 2000, "checkpoint": {"enable": False},
    "output_dir": ""})
  buffer = ReplayBuffer(
    capacity=_REPLAY, min_sample_timesteps=_BATCH, sample_batch_size=_BATCH)
  workflow = sac.SACWorkflow(env, agent, optax.adam(3e-4), None, buffer, config)

  def arguments(key):
    keys = jax.random.split(jax.random.key_data(key), flags.population_size)
    return (jax.vmap(workflow.setup)(keys),)

  return jax.vmap(workflow._multi_steps), arguments


def main():
  parser = argparse.ArgumentParser()
  peers = {"qdax": _qdax, "evorl": _evorl}
  parser.add_argument("--peer", choices=peers, required=True)
  parser.add_argument("--learner", choices=("sac", "td3"), default="sac")
  parser.add_argument("--population_size", type=int, default=4)
  parser.add_argument("--width", type=int, default=64)
  parser.add_argument("--env_name", default="halfcheetah")
  parser.add_argument("--backend", default="spring")
  parser.add_argument("--target", default="h100")
  flags = parser.parse_args()
  with accelerators.compiling_for_target(flags.target) as mesh:
    train, arguments = peers[flags.peer](flags)
    key = jax.eval_shape(lambda: jax.random.key(0))
    here = jax.NamedSharding(mesh, jax.P())
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
      jax.eval_shape(arguments, key))
    donated = tuple(range(len(shapes)))
    compiled = jax.jit(train, donate_argnums=donated).lower(*shapes).compile()
    target = accelerators.TARGETS[flags.target]
    costs = {"train": accelerators.accelerator_cost(compiled, target)}
  print(cost.generation_costs_table(costs, flags.target), file=sys.stderr)
  row = {name: dataclasses.asdict(x) for name, x in costs.items()}
  print(strict_json.to_strict_json(row))


if __name__ == "__main__":
  main()
