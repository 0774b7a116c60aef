"""Makes the emitters of a repertoire by name."""

import functools
from collections.abc import Callable

import jax

from qdrl_haiku import config as config_lib
from qdrl_haiku import map_elites, names, prng, trees
from qdrl_haiku.distributed import sharding
from qdrl_haiku.map_elites.containers.container import check_container_functions
from qdrl_haiku.map_elites.variation import IsWeightFn, is_running_state
from qdrl_haiku.training import members as members_lib
from qdrl_haiku.training import population
from qdrl_haiku.training import setup as setup_lib
from qdrl_haiku.training.learning import train_members
from qdrl_haiku.training.repertoires import crossover, teachers
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.training.state import Members
from qdrl_haiku.types import Array, Hyperparams, Key, Metrics, Tree


def make_training_emitter(setup: Setup) -> map_elites.Emitter:
  """Makes the emitter that a setup names.

  Raises:
    ValueError: if a user's own isn't as `map_elites.Emitter` says.
  """
  wanted, size = setup.qd.emitter, setup.qd.variation_batch_size
  if isinstance(wanted, tuple):
    emitter = map_elites.multi_emitter(
      {part.name: _make_part(setup, part) for part in wanted},
      size if wanted[0].batch_size is None else None)
  else:
    make = EMITTERS[wanted] if isinstance(wanted, str) else wanted
    emitter = make(setup)
  if emitter.batch_size != (planned := setup.sizes.new):
    raise ValueError(
      f"the emitter makes {emitter.batch_size} agents, and {planned} are "
      f"planned, of which {size} are no members "
      "(setup.qd.variation_batch_size); make as many.")
  if callable(wanted):
    _check_own(setup, emitter)
  return emitter


def _check_own(setup: Setup, emitter: map_elites.Emitter) -> None:
  """Refuses a user's emitter that wouldn't do."""
  if unknown := set(emitter.needs) - {"transitions"}:
    raise ValueError(
      f"the emitter needs {', '.join(sorted(unknown))}, which evaluation "
      "doesn't tell; it tells transitions alone.")
  container = setup.qd.container
  check_container_functions(container)
  map_elites.check(emitter, jax.eval_shape(
    lambda: container.show(container.init(_elite(setup), {}))))


def _make_part(setup: Setup, part: setup_lib.Part) -> map_elites.Emitter:
  """Makes one of several emitters as if it were alone with its own number."""
  size = 0 if part.name == "pbt" else part.batch_size
  if size is None:
    size = setup.qd.variation_batch_size
  return make_training_emitter(setup._replace(map_elites=setup.qd._replace(
    emitter=part.emitter or part.name, variation_batch_size=size)))


def _members_and_variations(setup: Setup) -> map_elites.Emitter:
  """Returns `map_elites.pbt_emitter` of what `train_members` trains."""
  qd, controller = setup.qd, setup.controller
  assert controller is not None

  def known(tree: Tree) -> Tree:
    return sharding.all_gather(setup.mesh, tree, setup.config.population_size)

  def train(
    members: Members, hyperparams: Hyperparams, keys: Key
  ) -> tuple[Members, Metrics]:
    members, *trained = setup.over_members(train_members)(
      members, hyperparams, keys)
    metrics, num_updates = known(trained)
    return members, metrics | {"num_updates": num_updates.astype(float)}

  def transplant(members: Members, genotypes: Tree, where: Array) -> Members:
    # Replicated: XLA would otherwise shard the decision's computation too.
    decided = sharding.replicate(setup.mesh, (where, genotypes))
    where, genotypes = sharding.shard_into_slots(setup.mesh, decided)
    states = jax.vmap(setup.learner.from_genotype)(genotypes)
    return members._replace(
      learner=trees.choose_rows(where, states, members.learner))

  return map_elites.pbt_emitter(
    map_elites.Agents(
      init=setup.over_members(members_lib.init_member_agents), train=train,
      genotypes=lambda members: known(
        jax.vmap(setup.learner.genotype)(members.learner)),
      inherit=functools.partial(population.inherit_in_population, setup),
      transplant=transplant,
      is_finite=lambda members: known(trees.all_finite_leaves(
        members_lib.finite_part_of_members(members)))),
    controller._replace(
      update=sharding.run_replicated(setup.mesh, controller.update)),
    qd.variation_fn, population_size=setup.config.population_size,
    variation_batch_size=qd.variation_batch_size,
    num_replaced_by_samples=qd.num_replaced_by_samples)


def _improvements(setup: Setup) -> map_elites.Emitter:
  """Makes the emitter of CMA-ME; each device computes all strategies."""
  config = setup.qd.cma
  population_size = config.population_size(setup.qd.variation_batch_size)
  everywhere = functools.partial(sharding.run_replicated, setup.mesh)

  def make_strategies(size: int) -> map_elites.Strategies:
    *functions, number, of_each = map_elites.cma_es(
      size, config.num_strategies, population_size, config.step_size)
    return map_elites.Strategies._make(
      [*map(everywhere, functions), number, of_each])

  return map_elites.cma_emitter(
    make_strategies, *_elite_and_weights(setup),
    map_elites.RANKINGS[config.ranking])


def _taught(
  make: Callable[..., map_elites.Emitter], gradient_share: float,
  injection_share: float | None, setup: Setup, *, num_policies: int = 0,
  sees_targets: bool = False, critics: str = "one",
) -> map_elites.Emitter:
  """Makes an emitter with critics, of default shares of the offspring."""
  size = setup.qd.variation_batch_size
  if injection_share is None:  # The greedy policies that there are.
    injection_share = min(num_policies / max(1, size), 1 - gradient_share)
  improved, injected, varied = setup.qd.teaching.counts(
    size, gradient_share, injection_share)
  if num_policies:  # None is injected twice.
    more = max(0, injected - num_policies)
    injected, varied = injected - more, varied + more
  num_agents, env = max(size, setup.qd.num_initial_genotypes), setup.eval_env
  steps = num_agents * setup.config.num_eval_episodes * env.episode_length
  if steps > setup.config.capacity:
    raise ValueError(
      f"replay_capacity={setup.config.capacity} is less than the "
      f"{steps} transitions of {num_agents} agents' episodes; raise it.")
  return make(
    teachers.teacher(
      env, setup.learner, setup.config, setup.qd.teaching, mesh=setup.mesh,
      sees_targets=sees_targets, critics=critics),
    setup.qd.variation_fn, gradient_batch_size=improved,
    injection_batch_size=injected, variation_batch_size=varied)


def _objectives_emitter(setup: Setup) -> map_elites.Emitter:
  """Makes the emitter of MOME-PGX, with a critic of each objective."""
  objectives = setup.eval_env.objectives
  return _taught(
    map_elites.dcrl_emitter, 0.5, None, setup, critics="objectives",
    num_policies=len(objectives.names) if objectives else 0)


def random_elites(setup: Setup, keys: Key) -> map_elites.Elite:
  """Returns new agents, their hyperparameters drawn by the controller."""
  size = keys.shape[0]
  states = jax.vmap(setup.learner.init)(keys)
  genotypes = jax.vmap(setup.learner.genotype)(states)
  controller = setup.controller
  if controller is None:
    hyperparams = setup.default_hyperparams(size)
  else:
    # By as many as members are, which is what the controller may depend on.
    population_size = setup.config.population_size
    key = jax.random.fold_in(keys[0], prng.OfMember.HYPERPARAMS)
    draw = jax.vmap(lambda key: controller.init(key, population_size)[1])
    populations = draw(jax.random.split(key, -(-size // population_size)))
    hyperparams = jax.tree.map(
      lambda x: x.reshape(-1, *x.shape[2:])[:size], populations)
  return map_elites.Elite(genotypes, hyperparams)


def _elite(setup: Setup) -> map_elites.Elite:
  """Returns shapes and dtypes of an elite."""
  elites = jax.eval_shape(lambda: random_elites(
    setup, jax.random.split(jax.random.key(0), 1)))
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), elites)


def _elite_and_weights(
  setup: Setup
) -> tuple[map_elites.Elite, IsWeightFn | None]:
  """Returns what `_elite` does, and which leaves an emitter may sample."""
  elite = _elite(setup)
  # A critic's weights are no part of what an elite does.
  paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(elite)]
  return elite, _is_of_policy if any(map(_is_of_policy, paths)) else None


def _is_of_policy(path: jax.tree_util.KeyPath) -> bool:
  """Whether a leaf of an elite is one of its policy's weights."""
  names = [jax.tree_util.keystr((entry,), simple=True) for entry in path]
  return "policy_params" in names and not is_running_state(path)


EMITTERS: dict[str, setup_lib.EmitterFn] = {
  "ascii": lambda setup: crossover.crossover_emitter(
    setup, _elite_and_weights(setup)[1]),
  "cma": _improvements,
  # With the shares of the papers.
  "dcrl": functools.partial(
    _taught, map_elites.dcrl_emitter, 0.25, 0.25, sees_targets=True),
  "ga": lambda setup: map_elites.genetic_emitter(
    setup.qd.variation_fn, setup.qd.variation_batch_size),
  # Each device computes its gradient.
  "me_es": lambda setup: map_elites.me_es_emitter(
    setup.qd.me_es, setup.qd.variation_batch_size, *_elite_and_weights(setup),
    functools.partial(sharding.run_replicated, setup.mesh)),
  "pbt": _members_and_variations,
  "pga": functools.partial(
    _taught, map_elites.pga_emitter, 0.5, None, num_policies=1),
  "pgx": _objectives_emitter,
  "qdpg": functools.partial(
    _taught, map_elites.dcrl_emitter, 0.65, None, num_policies=2,
    critics="novelty")}
"""Functions that make an emitter of a setup, by name."""


def parse_emitters(text: str) -> tuple[setup_lib.Part, ...]:
  """Reads emitters' names and numbers, like `pbt:10,ga:32`.

  Args:
    text: see `RepertoireConfig.emitter`.

  Returns:
    The emitters, pbt first; a user's own is called as its function.

  Raises:
    ValueError: if one is unknown, or makes nothing.
  """
  found = []
  for part in text.split(","):
    path, _, number = part.rpartition(":")
    path, size = (path, int(number)) if number.isdecimal() else (part, None)
    emitter = _users_emitter(path) if ":" in path else None
    if emitter is None and path not in EMITTERS:
      raise ValueError(
        f"emitter={text}: {path} is unknown; "
        f"{names.nearest_name(path, EMITTERS)}")
    name = path.rpartition(":")[2]
    if emitter is not None and name in EMITTERS:
      raise ValueError(
        f"emitter={text}: {path} has the name of one of ours; give the "
        "function another.")
    if size == 0:
      raise ValueError(
        f"emitter={text} has an emitter that makes nothing; leave it out.")
    found.append(setup_lib.Part(name, size, emitter))
  return tuple(sorted(found, key=lambda part: part.name != "pbt"))


def _users_emitter(path: str) -> setup_lib.EmitterFn:
  """Returns the function of a user's emitter, whose result is checked."""
  own = config_lib.UsersOwn(path)
  return lambda setup: own.call("emitter", map_elites.Emitter, setup=setup)
