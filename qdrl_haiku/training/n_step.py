"""N-step transitions, assembled when they are sampled from replay.

Sutton and Barto, "Reinforcement learning", 2018, section 7.1; with replay as in
Hessel et al., "Rainbow", arXiv 1710.02298: there is no off-policy correction
for the actions in between, and SAC's entropy terms of the steps in between are
left out. Each step is stored once, and rewards are summed when a window is
learned from, since PBT may change the discount until then.
"""

from typing import NamedTuple

import jax.numpy as jnp

from qdrl_haiku import replay, trees
from qdrl_haiku.training import order
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.types import Array, Hyperparams, Key, Transition


class Windows(NamedTuple):
  """Steps that follow each other in one episode of one environment.

  A window ends after n steps, with the episode, or with the latest step added.
  """

  # From the first step's observation to the last one's next observation, leaves
  # [...]; its reward and discount are those of the first.
  transition: Transition
  rewards: Array  # [n - 1, ...], of the later steps, 0 after the last.
  discounts: Array  # [n - 1, ...], of the later steps, 1 after the last.
  is_inside: Array  # bool [n - 1, ...], whether there is such a step.


def sample_n_step(
  setup: Setup, state: replay.ReplayState, key: Key, shape: tuple[int, ...]
) -> Windows:
  """Draws first steps, and the steps that follow each of them.

  Args are those of `ReplayBuffer.sample`, and the `setup` with n.
  """
  stored: Transition = state.storage
  first = setup.buffer.draw(state, key, shape)
  gather = replay.gather_from_replay

  told = stored.reward, stored.discount, stored.extras[order.TRUNCATION]
  _, discount, truncation = gather(told, first)
  last, goes_on = first, (discount != 0) & (truncation == 0)
  steps = []
  for i in range(1, setup.config.n_step):
    places, exists = setup.buffer.later(state, first, i * setup.config.num_envs)
    reward, discount, truncation = gather(told, places)
    is_inside = goes_on & exists & (truncation != order.INSTEAD)
    steps.append((
      jnp.where(is_inside, reward, 0), jnp.where(is_inside, discount, 1),
      is_inside))
    last = jnp.where(is_inside, places, last)
    goes_on = is_inside & (discount != 0) & (truncation == 0)

  extras = {
    name: gather(x, last if name.startswith("next_") else first)
    for name, x in stored.extras.items()
    if name in setup.learner.stores}
  transition = gather(stored._replace(extras={}), first)._replace(
    next_observation=gather(stored.next_observation, last), extras=extras)
  return Windows(
    setup.buffer.show(state, transition),
    *(jnp.stack(x) for x in zip(*steps, strict=True)))


def fold_n_step(windows: Windows, hyperparams: Hyperparams) -> Transition:
  """Folds each window into one transition, with one member's discount."""
  own = trees.tree_leaves_by_name(hyperparams)["discount"]
  reward, discount = windows.transition.reward, windows.transition.discount
  for i in range(windows.rewards.shape[0]):
    reward += discount * own * windows.rewards[i]
    discount *= jnp.where(windows.is_inside[i], own * windows.discounts[i], 1)
  return windows.transition._replace(reward=reward, discount=discount)
