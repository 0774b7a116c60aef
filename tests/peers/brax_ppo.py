"""Trains brax's PPO with our settings: `python -m tests.peers.brax_ppo`.

Its names of the same numbers: a rollout is `unroll_length` steps of all
environments, cut into minibatches of whole environments.
"""

import functools

from brax.training.agents.ppo import networks, train

from tests.peers import brax_common


def main():
  """Prints one line of JSON for each evaluation."""
  args = brax_common.parser(
    rollout_length=25, num_epochs=4, num_minibatches=4, learning_rate=3e-4,
    gae_lambda=0.95, clip_epsilon=0.2, entropy_cost=1e-3,
    max_gradient_norm=1.0).parse_args()
  size, rest = divmod(args.num_envs, args.num_minibatches)
  if rest:
    raise ValueError("num_envs must be a multiple of num_minibatches.")
  brax_common.train(
    train, args, unroll_length=args.rollout_length, batch_size=size,
    num_minibatches=args.num_minibatches, num_updates_per_batch=args.num_epochs,
    learning_rate=args.learning_rate, gae_lambda=args.gae_lambda,
    clipping_epsilon=args.clip_epsilon, entropy_cost=args.entropy_cost,
    max_grad_norm=args.max_gradient_norm,
    network_factory=functools.partial(
      networks.make_ppo_networks,
      policy_hidden_layer_sizes=brax_common.sizes(args),
      value_hidden_layer_sizes=brax_common.sizes(args),
      activation=brax_common.activation(args)))


if __name__ == "__main__":
  main()
