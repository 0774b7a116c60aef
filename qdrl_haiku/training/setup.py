"""Composes what is trained."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qdrl_haiku import (
  actors,
  controllers,
  environments,
  learners,
  map_elites,
  platform,
  replay,
  specs,
  types,
)
from qdrl_haiku.distributed import sharding
from qdrl_haiku.map_elites import Describer, Repertoire
from qdrl_haiku.training import config as config_lib
from qdrl_haiku.types import Array, Hyperparams, Tree

Scores = dict[str, Array]
"""Scores of an evaluation by name, each [P]."""
EvaluateMembersFn = Callable[
  [learners.Learner, types.State, environments.State],
  tuple[actors.Evaluation, Scores]]
"""(learner, its states, leaves [P, ...], and the initial states of
`num_eval_episodes` episodes of each in `eval_env`, leaves [P, N, ...]) ->
(evaluation, scores of each member beside the episode return)."""
EmitterFn = Callable[["Setup"], map_elites.Emitter]
"""Makes an emitter of `map_elites.variation_batch_size` elites for a setup."""


class Part(NamedTuple):
  """One of several emitters that share a repertoire."""

  # Its name in the logs, and in `EMITTERS` unless `emitter` is given.
  name: str
  # How many agents it makes; None where the emitters' shares adapt.
  batch_size: int | None = None
  emitter: EmitterFn | None = None  # A user's own, None for that of the name.


class MapElites(NamedTuple):
  """Holds what MAP-Elites adds to a setup.

  Attributes:
    emitter: where new agents come from: a name, see `RepertoireConfig.emitter`;
      a function of the `Setup` that makes a `map_elites.Emitter` of elites; or
      several of them, "pbt" first, which then makes no variations.
    container: says which agents stay.
    describer: what makes descriptors of episodes; None for the environment's
      own `Descriptor`.
    measured: places for the environment's own descriptors, as many as the
      container has, by which a repertoire with a describer is measured, drawn
      and saved; None for by the describer's.
    variation_fn: (key, first parents, second parents) -> offspring, all of
      them `map_elites.Elite`s with leaves [n, ...].
    variation_batch_size: offspring per generation beside the population's own
      members, >= 0, of all emitters together.
    num_initial_genotypes: random agents in the first repertoire, >= 1.
    num_replaced_by_samples: members that elites replace in each generation,
      beside those that the controller replaces.
    qd_offset: what is added to each elite's return in the QD score.
    shard_repertoire: whether the elites' genotypes are sharded over the devices
      along C, instead of replicated. With a mesh.
    teaching: how agents with a shared critic learn.
    cma: how CMA-ES searches.
    me_es: how the evolution strategy of ME-ES searches.
  """

  emitter: str | EmitterFn | tuple[Part, ...]
  container: map_elites.Container
  variation_fn: map_elites.VariationFn
  variation_batch_size: int
  num_initial_genotypes: int
  num_replaced_by_samples: int = 0
  qd_offset: float = 0.0
  shard_repertoire: bool = False
  teaching: config_lib.TeachingConfig = config_lib.TeachingConfig()
  cma: config_lib.CMAConfig = config_lib.CMAConfig()
  me_es: map_elites.EvolutionStrategy = map_elites.EvolutionStrategy()
  describer: map_elites.Describer | None = None
  measured: map_elites.Tessellation | None = None

  @property
  def emitter_names(self) -> tuple[str, ...]:
    """Names of all emitters; "" of a function without one."""
    if isinstance(self.emitter, tuple):
      return tuple(part.name for part in self.emitter)
    return (self.emitter if isinstance(self.emitter, str) else "",)


class Sizes(NamedTuple):
  """Says how many agents there are, and what devices share."""

  first: int  # Agents that are evaluated before the first generation.
  new: int  # Those that are new in each generation, members among them.
  again: int  # Those that are evaluated again in each generation, beside them.
  # Of what devices share: members, and agents that are evaluated alone.
  batches: tuple[int, ...]
  shared_cells: int = 0  # Cells that devices share, 0 if they share none.

  @property
  def evaluated(self) -> int:
    """Agents that are evaluated in each generation."""
    return self.new + self.again


class Setup(NamedTuple):
  """Holds what training is composed of.

  Attributes:
    env: the environment in which agents collect.
    eval_env: the one in which they are evaluated; may be the same, unless its
      states can't be copied.
    learner: the algorithm of every agent.
    controller: decides after each generation which members are replaced by
      copies of which; None for agents that train each for itself.
    config: the settings.
    mesh: devices along one axis `population` over which members are sharded,
      evenly or not; None for no sharding.
    evaluate: how members are evaluated; None for greedy episodes in `eval_env`,
      `config.num_eval_episodes` of each. It has to be None with `map_elites`.
    map_elites: what fills a repertoire; None for no repertoire.
  """

  env: environments.BatchedEnvironment
  eval_env: environments.BatchedEnvironment
  learner: learners.Learner
  controller: controllers.Controller | None
  config: config_lib.TrainingConfig
  mesh: jax.sharding.Mesh | None = None
  evaluate: EvaluateMembersFn | None = None
  map_elites: MapElites | None = None

  @property
  def qd(self) -> MapElites:
    """Returns `map_elites`, which must not be None, for type checkers."""
    assert self.map_elites is not None
    return self.map_elites

  @property
  def on_policy(self) -> bool:
    """Whether agents learn from what they have just collected."""
    return self.learner.learns_from == "rollout"

  @property
  def keeps_order(self) -> bool:
    """Whether a step's successor is found in replay, see `n_step`."""
    return self.config.n_step > 1 or self.learner.learns_from == "sequences"

  @property
  def boundaries(self) -> tuple[str, ...]:
    """Names of the boundaries that curricula move; () without these."""
    if self.config.curriculum.widen_above is None:
      return ()
    return getattr(environments.one_instance(self.env), "boundaries", ())

  @property
  def describer(self) -> Describer:
    """What describes a repertoire's agents."""
    descriptor = self.eval_env.descriptor
    if self.qd.describer is not None or descriptor is None:
      describer = self.qd.describer
      assert describer is not None
      return describer._replace(improve=describer.improve and (
        sharding.run_replicated(self.mesh, describer.improve)))
    return map_elites.Describer(
      look=lambda state: state.info["next_state_descriptor"],
      summarize=lambda looks, mask: (looks, mask),
      describe=lambda state, episode: descriptor.function(*episode))

  @property
  def descriptor_names(self) -> tuple[str, ...]:
    """Names of the descriptors by which a repertoire is measured."""
    own, qd = self.eval_env.descriptor, self.qd
    if own is not None and (qd.describer is None or qd.measured is not None):
      return own.names
    size = qd.container.tessellation.num_dimensions
    return tuple(f"learned {i + 1}" for i in range(size))

  def measured(self, repertoire: Repertoire) -> Repertoire:
    """Returns what a container shows by the descriptors that measure it."""
    if self.qd.measured is None:
      return repertoire
    extras = {
      name: x for name, x in repertoire.extras.items()
      if name != map_elites.EPISODES}
    own = extras.pop(map_elites.OWN_DESCRIPTORS)
    return dataclasses.replace(
      repertoire, descriptors=own, tessellation=self.qd.measured,
      extras=extras | {"learned_descriptors": repertoire.descriptors})

  @property
  def trains_members(self) -> bool:
    """Whether there is a population whose members train."""
    qd = self.map_elites
    return qd is None or "pbt" in qd.emitter_names

  @property
  def steps_per_generation(self) -> int:
    """Environment steps per agent: collected, or evaluated if none trains."""
    if self.trains_members:
      return self.config.perturbation_interval
    return self.config.num_eval_episodes * self.eval_env.episode_length

  @property
  def abilities(self) -> environments.Abilities:
    """What both environments can do."""
    default, both = environments.Abilities(), (self.env, self.eval_env)
    of_both = (getattr(env, "abilities", default) for env in both)
    return environments.Abilities(*map(min, *of_both))

  @property
  def sizes(self) -> Sizes:
    """How many agents there are, and what devices share."""
    size, qd = self.config.population_size, self.map_elites
    alone = not self.abilities.spreads
    if qd is None:
      return Sizes(size, size, 0, (1,) if alone else (size,))
    new = qd.variation_batch_size + size * self.trains_members
    again = qd.container.again.batch_size if qd.container.again else 0
    batches = (size,) * self.trains_members + (new + again,)
    return Sizes(
      first=qd.num_initial_genotypes, new=new, again=again,
      batches=(1,) if alone else batches,
      shared_cells=qd.container.tessellation.num_cells * qd.shard_repertoire)

  @property
  def buffer(self) -> replay.ReplayBuffer:
    """The replay buffer of one agent, which stores images once."""
    capacity, num_envs = self.config.capacity, self.config.num_envs
    if specs.has_images(self.env.observation_spec):
      return replay.with_frames(capacity, num_envs)
    return replay.uniform(capacity)

  def default_hyperparams(self, size: int) -> Hyperparams:
    """Returns the learner's hyperparameters for each of so many agents."""
    return jax.tree.map(
      lambda x: jnp.full(size, x, jnp.float32), self.learner.hyperparams)

  def make_mesh(self) -> jax.sharding.Mesh:
    """Returns a mesh of the devices that divide the agents best."""
    size, *other_sizes = self.sizes.batches
    return sharding.population_mesh(
      size, other_sizes=other_sizes, num_shared_cells=self.sizes.shared_cells)

  def over_members(
    self, function: Callable[..., Any], known: Tree = None
  ) -> Callable[..., Any]:
    """Makes a function of members that runs on each device's share.

    The function is called as (setup, known, *trees [S, ...]) -> tree [S, ...],
    where `known` is a replicated tree, left out if None. The returned function
    is called with the trees, [P, ...] or in slots already.
    """
    shared = () if known is None else (known,)
    if self.mesh is None:
      return functools.partial(function, self, *shared)
    setup = self._replace(learner=_looping_learner(self.learner))
    return sharding.run_on_shards(
      self.mesh, lambda shared, trees: function(setup, *shared, *trees), shared)


def _looping_learner(learner: learners.Learner) -> learners.Learner:
  """Returns a learner that acts in a loop over members on a CPU."""
  # Updates are in another, all of an iteration in turn (`learning.learn`).
  return learner._replace(
    act=platform.member(learner.act),
    act_greedy=platform.member(learner.act_greedy),
    observe=platform.member(learner.observe))
