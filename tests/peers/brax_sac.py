"""Trains brax's SAC with our settings: `python -m tests.peers.brax_sac`.

All its networks have one learning rate; the temperature's is 3e-4.
"""

import functools

from brax.training.agents.sac import networks, train

from tests.peers import brax_common


def main():
  """Prints one line of JSON for each evaluation."""
  args = brax_common.parser(
    num_envs=8, num_timesteps=50_000, num_evals=11, discount=0.99,
    grad_updates_per_step=1.0, batch_size=256, min_replay_size=1000,
    replay_capacity=100_000, learning_rate=3e-4, tau=0.005).parse_args()
  # Per step of all environments.
  num_updates = args.grad_updates_per_step * args.num_envs
  if num_updates != int(num_updates):
    raise ValueError("brax makes a whole number of updates per step of all.")
  brax_common.train(
    train, args, batch_size=args.batch_size,
    grad_updates_per_step=int(num_updates),
    min_replay_size=args.min_replay_size, max_replay_size=args.replay_capacity,
    learning_rate=args.learning_rate, tau=args.tau,
    network_factory=functools.partial(
      networks.make_sac_networks, hidden_layer_sizes=brax_common.sizes(args),
      activation=brax_common.activation(args)))


if __name__ == "__main__":
  main()
