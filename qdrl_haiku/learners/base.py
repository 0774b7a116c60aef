"""Defines learners: records of pure functions over one agent.

A learner has no key in its state, no population axis, no buffer and no device.
A population is `jax.vmap` of such functions, and cloning an agent cannot clone
its randomness, because keys are arguments.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from qdrl_haiku import networks, types
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners.statistics import ObservationStatistics

ActFn = Callable[
  [types.State, types.Hyperparams, types.Array, types.Tree, types.Key],
  types.Acted]
ActGreedyFn = Callable[[types.State, types.Array, types.Tree], types.Acted]
LossAndMore = tuple[types.Array, tuple[types.Tree, types.Params]]
"""(loss [], (auxiliary outputs, the parameters, with the running state that
training moved if the network has one))."""


class PolicyParts(NamedTuple):
  """Holds what an export writes of an agent's greedy policy."""

  layers: networks.PolicyLayers  # Of the network, see `networks.PolicyLayers`.
  # "normal_tanh", whose first A of 2A outputs are locations, or
  # "deterministic_tanh"; the action is the tanh of the first A outputs. Or
  # "categorical", the index of the largest output.
  distribution: str
  # By which `normalize_by_statistics` normalises the first numbers of an
  # observation, as many as the statistics have, or None.
  statistics: ObservationStatistics | None = None
  # What it remembers, as `AgentConfig.memory` says. The network and the
  # statistics are of a window's K observations; or the network is of an
  # observation and H numbers that arrays "memory/..." make of it.
  memory: str = "none"


class SharedCritic(NamedTuple):
  """Holds the functions by which many agents learn from one agent's critics.

  The agent that has the critics, the teacher, observes what the other agents
  observe and a context [K], such as a target descriptor: [O + K], or as
  `specs.Extended(..., "context", K)` puts them together.

  Attributes:
    learner: the teacher's.
    improve: (the teacher's state, genotype of another agent, observations
      [S, B, O] without context, context [K], learning rate) -> the genotype
      after S steps of its policy, a batch each, with a new optimiser, that
      increase the value which the teacher's first critic gives in that context.
    genotype_at: (the teacher's state, context [K]) -> the genotype of an agent
      that observes no context and acts as the teacher does in that context.
  """

  learner: "Learner"
  improve: Callable[
    [types.State, types.Tree, types.Array, types.Array, types.Array | float],
    types.Tree]
  genotype_at: Callable[[types.State, types.Array], types.Tree]


class Learner(NamedTuple):
  """One algorithm, as pure functions over the state of one agent.

  `learners.check` tests whether a user's own learner is as described here.
  Axes: N batches of B transitions, O observation, A action. Keys are consumed.

  Attributes:
    init: (key) -> state, a new agent: any tree of at least one array, without
      a key in it.
    update: (state, hyperparams, transitions [N, B, ...], key) -> (state,
      metrics): learns from N = `batches_per_update` batches, which have the
      axis N also where that is 1; metrics are scalars by name. `hyperparams`
      are scalars, in a tree like the learner's. In training each batch holds
      transitions drawn uniformly from the agent's replay buffer: in no order,
      from many episodes and older policies. Their `extras` are those that it
      `stores`. See `types.Transition`, and for on-policy learners
      `learns_from`.
    act: (state, hyperparams, observations [..., O], memory, leaves [..., ...],
      key) -> `types.Acted`: actions which explore, the memory with which the
      agent acts next, and extras: those that it `stores`, perhaps others.
    act_greedy: (state, observations [..., O], memory) -> `types.Acted`, the
      best actions known; extras are ignored.
    observe: (state, observations [..., O]) -> state: updates running
      statistics, once per collected observation; evaluation never calls it.
    hyperparams: the defaults, a tree of Python floats; `update` and `act` take
      a tree of the same structure.
    batches_per_update: N, how many batches one call of `update` takes, for one
      critic step each; of an on-policy learner, its critic steps per rollout.
    genotype: (state) -> what a repertoire stores of an agent: no optimisers, no
      target networks. Variation changes leaves below a name that ends in
      "params"; if there is no such name, every float, statistics too.
    from_genotype: (genotype) -> state, with fresh optimisers and with target
      networks equal to the online ones.
    declared: declarations of the hyperparameters, by name (a leaf's path in
      their tree, joined by "/"); a name that is missing here is looked up in
      `learners.COMMON_HYPERPARAMETERS`, those that several learners share.
    share: (K) -> a `SharedCritic`, by which many agents learn from one agent's
      critics; None if the learner doesn't support it.
    supports_n_step: whether a transition's reward may be the discounted sum of
      several steps, and its discount the product of theirs; not where the
      learner rewards single steps by itself, or sees windows of them.
    learns_from: "replay", or "rollout" of an on-policy learner. Then `update`
      takes, in the place of batches, the transitions [T, E, ...] that the
      agent has just collected in T steps of E environments, in their order,
      with `truncation` [T, E] among their `extras`. `observe` is called after
      `update`, so that `update` sees the statistics by which the policy acted.
      Or "sequences" from replay, [N, B, L, ...], of L = `sequence_length`
      steps of one environment in their order, with `truncation` too: after a
      step that has one, or a discount of 0, others begin.
    sequence_length: L, of a learner from sequences.
    burn_in: the first steps of a sequence, which it doesn't learn from: a batch
      is as many sequences as have `batch_size` later steps.
    stores: names of the transitions' extras that `update` learns from, which
      `act` returns or the environment has (see `types.Transition`).
    memory: () -> what an agent remembers where an episode begins, any tree of
      arrays without leading axes; () for most. Actors put it back where an
      episode ends, and carry it on from rollout to rollout, also in a member
      that gets another's weights. `update` sees of it what `act` returns among
      its extras and the learner `stores`.
    policy: (state) -> `PolicyParts`, what an export writes as .npz; None if the
      policy is of other parts.
  """

  init: Callable[[types.Key], types.State]
  update: Callable[
    [types.State, types.Hyperparams, types.Transition, types.Key],
    tuple[types.State, types.Metrics]]
  act: ActFn
  act_greedy: ActGreedyFn
  observe: Callable[[types.State, types.Array], types.State]
  hyperparams: types.Hyperparams
  batches_per_update: int
  genotype: Callable[[types.State], types.Tree]
  from_genotype: Callable[[types.Tree], types.State]
  declared: Mapping[str, Hyperparameter] = MappingProxyType({})
  share: Callable[[int], SharedCritic] | None = None
  supports_n_step: bool = True
  learns_from: str = "replay"
  sequence_length: int = 1
  burn_in: int = 0
  stores: tuple[str, ...] = ()
  memory: Callable[[], types.Tree] = tuple
  policy: Callable[[types.State], PolicyParts] | None = None

  def batch_shape(self, batch_size: int) -> tuple[int, ...]:
    """Returns the leading axes of a batch with `batch_size` transitions."""
    if self.learns_from != "sequences":
      return (batch_size,)
    num_learned = self.sequence_length - self.burn_in
    return batch_size // num_learned, self.sequence_length


class Descent(NamedTuple):
  """Holds what `Optimizer.descend` returns."""

  loss: types.Array  # [], before the step.
  more: types.Tree  # The loss function's auxiliary outputs.
  params: types.Params  # After the step.
  optimizer_state: types.State  # After the step.
  gradient_norm: types.Array  # [], before it was clipped.


class Optimizer:
  """Adam (Kingma and Ba, arXiv 1412.6980), with optax's defaults.

  Its learning rate is an argument of every step, so that changing it rebuilds
  and recompiles nothing. Of a network with running state it changes only the
  parameters. With weight decay it's AdamW (Loshchilov and Hutter, arXiv
  1711.05101): the decay doesn't enter the moments.
  """

  def __init__(self, b1: float = 0.9) -> None:
    self._adam = optax.scale_by_adam(b1)

  def init(self, params: types.Params) -> types.State:
    """Returns the state, Adam's moments, for new parameters: any tree."""
    is_stateful = isinstance(params, networks.Variables)
    return self._adam.init(params.params if is_stateful else params)

  def update(
    self, gradients: types.Params, state: types.State, params: types.Params,
    learning_rate: types.Array, weight_decay: types.Array | None = None,
  ) -> tuple[types.Params, types.State]:
    """Takes a step along gradients.

    Args:
      gradients: a tree like the parameters.
      state: of the optimiser.
      params: without running state.
      learning_rate: [].
      weight_decay: [], in units of the learning rate, or None.

    Returns:
      Parameters and state after the step.
    """
    steps, state = self._adam.update(gradients, state, params)
    if weight_decay is not None:
      steps = jax.tree.map(lambda s, p: s + weight_decay * p, steps, params)
    params = jax.tree.map(lambda p, s: p - learning_rate * s, params, steps)
    return params, state

  def descend(
    self, loss_fn: Callable[[types.Params], LossAndMore], params: types.Params,
    state: types.State, learning_rate: types.Array,
    weight_decay: types.Array | None = None,
    max_norm: types.Array | None = None,
  ) -> Descent:
    """Takes a gradient step on a loss.

    Args:
      loss_fn: (parameters) -> (loss [], (auxiliary outputs, the parameters,
        with the running state that training moved if the network has one)).
      params: with running state, if the network has one (`networks.Variables`).
      state: of the optimiser.
      learning_rate: [].
      weight_decay: [], in units of the learning rate, or None.
      max_norm: [], to which longer gradients are shortened, or None.

    Returns:
      Parameters and state after the step, and what the loss function returned.
    """
    is_stateful = isinstance(params, networks.Variables)
    own = params.params if is_stateful else params
    (loss, (more, moved)), gradients = jax.value_and_grad(
      lambda x: loss_fn(params._replace(params=x) if is_stateful else x),
      has_aux=True)(own)
    shortened = gradients
    if max_norm is not None:
      factor = max_norm / jnp.maximum(optax.tree.norm(gradients), max_norm)
      shortened = jax.tree.map(lambda x: factor * x, gradients)
    own, state = self.update(shortened, state, own, learning_rate, weight_decay)
    after = moved._replace(params=own) if is_stateful else own
    return Descent(loss, more, after, state, optax.tree.norm(gradients))


def policy_parts(
  policy: networks.Network, distribution: str
) -> Callable[[types.State], PolicyParts] | None:
  """Returns `Learner.policy` of agents with `policy_params`, where known."""
  layers = policy.layers
  if layers is None:
    return None
  return lambda state: PolicyParts(
    layers(state.policy_params), distribution, state.observation_statistics)


def learner_state(
  kind: type[types.Tree], genotype: types.Tree, optimizer: Optimizer,
  **others: types.Tree,
) -> types.State:
  """Returns a state with fresh moments, and targets as online.

  Args:
    kind: the named tuple that the state is.
    genotype: a named tuple with some of its fields.
    optimizer: makes the moments of each `<name>_params`.
    **others: further fields, by name.
  """
  found = genotype._asdict() | others
  for name in [x for x in kind._fields if x not in found]:
    online = found[
      name.removeprefix("target_").replace("optimizer_state", "params")]
    # A copy: a buffer can't be donated twice.
    found[name] = (
      jax.tree.map(jnp.copy, online) if name.startswith("target_")
      else optimizer.init(online))
  return kind(**found)


def learner_state_parts(
  state: types.State, kind: type[types.Tree]
) -> types.Tree:
  """Returns a record, a `kind`, with the fields that a state has, too."""
  return kind(**{name: getattr(state, name) for name in kind._fields})


def move_target_networks(
  targets: types.Params, online: types.Params, tau: types.Array
) -> types.Params:
  """Moves target networks towards the online ones, and copies running state.

  Args:
    targets: their parameters, any tree; at first copies of the online ones.
    online: a tree like it.
    tau: [], in [0, 1], the share of the way.

  Returns:
    targets + tau * (online - targets).
  """
  if isinstance(online, networks.Variables):
    params = move_target_networks(targets.params, online.params, tau)
    return networks.Variables(params, jax.tree.map(jnp.copy, online.state))
  return jax.tree.map(lambda t, o: t + tau * (o - t), targets, online)
