"""Setups of a learner of ten lines, with members or with a repertoire."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdrl_haiku import (
  controllers,
  environments,
  learners,
  map_elites,
  training,
  types,
)
from tests.controllers import common as controllers_common

KEY = jax.random.key(0)
TARGET = 0.5


def init(setup, key=KEY):
  return training.init(setup, key)


def step(setup, state, key=KEY):
  return training.step(setup, state, key)


def changed(state, hyperparams=None, **parts):
  """A state whose members have other parts, or other hyperparameters."""
  if hyperparams is None:
    hyperparams = state.hyperparams
  emitter = state.emitter._replace(
    hyperparams=hyperparams, members=state.members._replace(**parts))
  return state._replace(emitter=emitter)


class Trainer:
  """A setup's compiled functions, and its state before the first generation."""

  def __init__(self, setup, key=KEY):
    self.setup = setup
    self.key = key
    self.compiled = jax.jit(functools.partial(step, setup))
    self.first = jax.device_get(jax.jit(functools.partial(init, setup))(key))

  def step(self, state):
    return jax.device_get(self.compiled(state, self.key))

  def restart(self, state):
    return training.restart_generation(self.setup, state, self.key)

  def history(self):
    """The states before each of four generations, the last; and reports."""
    states, reports = [self.first], []
    for _ in range(4):
      state, report = self.step(states[-1])
      states.append(state)
      reports.append(report)
    return states, reports


def shapes(setup):
  """The shapes of the first state; raises what `init` raises."""
  return jax.eval_shape(functools.partial(init, setup), KEY)


class Drift:
  """A point that drifts by its action; the reward is nearness to `TARGET`.

  What is near is the action, not the point, so the return of a learner whose
  action is its state says how good that state is.
  """

  observation_size = 2
  action_size = 2

  def _state(self, point, reward):
    return environments.State(point, point, reward, jnp.zeros(()))

  def reset(self, key):
    return self._state(jax.random.normal(key, (2,)), jnp.zeros(()))

  def step(self, state, action):
    reward = -jnp.sum(jnp.square(action - TARGET))
    return self._state(state.obs + 0.1 * action, reward)


class Placed(Drift):
  """Has the place as its descriptor.

  After an action of (1, _) the descriptor is NaN, after one of (_, 1) the
  reward is.
  """

  descriptor = environments.Descriptor(("x", "y"), (-2.0, -2.0), (2.0, 2.0))

  def _state(self, point, reward):
    state = super()._state(point, reward)
    return state.replace(info={"state_descriptor": point})

  def step(self, state, action):
    state = super().step(state, action)
    place = jnp.where(action[0] == 1.0, jnp.nan, state.obs)
    reward = jnp.where(action[1] == 1.0, jnp.nan, state.reward)
    return state.replace(reward=reward, info={"state_descriptor": place})


class Patient(Placed):
  """Has infinities by design, which are no fault."""

  def _state(self, point, reward):
    state = super()._state(point, reward)
    return state.replace(metrics={"deadline": jnp.float32(jnp.inf)})


class Genotype(NamedTuple):
  """What a repertoire stores of a `QuadraticState`."""

  policy_params: types.Array
  statistic: types.Array


class QuadraticState(NamedTuple):
  """A point, what it has seen, a number of each kind, and empty parts."""

  point: types.Array
  critic_steps: types.Array
  observations: types.Array
  statistic: types.Array
  critic: types.Array
  nothing: None
  empty: dict[str, types.Array]


def quadratic_learner(size=2, batches_per_update=1):
  """Moves a point towards `TARGET` at the hyperparameter `learning_rate`.

  A little noise and the replayed rewards come in too, so that keys and buffers
  leave a trace in the state. `parent` is for `scripted`.
  """

  def update(state, hyperparams, transitions, key):
    step = hyperparams["learning_rate"] * (TARGET - state.point)
    noise = jax.random.normal(key, (size,)) + jnp.mean(transitions.reward)
    point = state.point + step + 1e-3 * noise
    batches = transitions.reward.shape[0]
    return state._replace(
      point=point, critic_steps=state.critic_steps + batches
    ), {"loss": jnp.sum(jnp.square(point - TARGET))}

  def act_greedy(state, observation, memory):
    action = jnp.clip(state.point[:2], -1.0, 1.0)
    return types.Acted(
      jnp.broadcast_to(action, (*observation.shape[:-1], 2)), memory)

  def act(state, hyperparams, observation, memory, key):
    del hyperparams
    greedy = act_greedy(state, observation, memory).action
    noise = 0.1 * jax.random.normal(key, greedy.shape)
    return types.Acted(jnp.clip(greedy + noise, -1.0, 1.0), memory)

  def observe(state, observation):
    # Those that are left out are NaN here.
    count = jnp.sum(jnp.isfinite(observation).all(axis=-1))
    return state._replace(observations=state.observations + count)

  def from_genotype(genotype):
    zero = jnp.zeros((), jnp.int32)
    critic = jnp.zeros(())
    return QuadraticState(
      genotype.policy_params, zero, zero, genotype.statistic, critic, None, {})

  return learners.Learner(
    init=lambda key: from_genotype(Genotype(
      jax.random.uniform(key, (size,), minval=-1.0, maxval=0.0),
      jax.random.uniform(key))),
    update=update, act=act, act_greedy=act_greedy, observe=observe,
    hyperparams={"learning_rate": 0.01, "parent": 0.0},
    batches_per_update=batches_per_update,
    genotype=lambda state: Genotype(state.point, state.statistic),
    from_genotype=from_genotype)


PBT = controllers.PBTConfig(num_parents=1, num_replaced=1)
SPACE = {
  "learning_rate": controllers.LogUniform(1e-4, 1e-1),
  "parent": controllers.Fixed(0.0)}


def scripted():
  """A controller that makes member i a child of `hyperparams["parent"][i]`.

  Otherwise it is PBT that replaces none by rank, only non-finite members. A
  child that was asked for gets twice its parent's learning rate.
  """
  pbt = controllers.pbt(controllers.PBTConfig(exploit="none"), SPACE)

  def update(state, key, fitness, hyperparams):
    state, decision = pbt.update(state, key, fitness, hyperparams)
    wanted = hyperparams["parent"].astype(jnp.int32)
    asked = (decision.operator == controllers_common.SURVIVE) & (
      wanted != jnp.arange(wanted.shape[0]))
    rate = hyperparams["learning_rate"]
    chosen = jnp.where(
      asked, 2 * rate[wanted], decision.hyperparams["learning_rate"])
    return state, controllers.Decision(
      parents=jnp.where(asked, wanted, decision.parents),
      hyperparams=decision.hyperparams | {"learning_rate": chosen},
      operator=jnp.where(asked, controllers_common.PERTURB, decision.operator))

  return controllers.Controller(pbt.init, update, pbt.operators)


def setup(controller=None, learner=None, env=Drift, **settings):
  """Four members with two environments each, generations of 16 steps."""
  defaults = {
    "population_size": 4, "num_envs": 2, "perturbation_interval": 16,
    "batch_size": 4, "replay_capacity": 48, "min_replay_size": 4,
    "num_eval_episodes": 2}
  env = environments.Environment(env(), episode_length=5)
  return training.Setup(
    env=env, eval_env=env, learner=learner or quadratic_learner(),
    controller=controller,
    config=training.TrainingConfig(**(defaults | settings)))


class Scripted(Trainer):
  """After a generation member i is a child of parents[i].

  Environments keep infinities by design, and updates are rounds of two critic
  steps.
  """

  def __init__(self):
    learner = quadratic_learner(batches_per_update=2)
    learner = learner._replace(stores=("next_descriptor",))
    super().__init__(setup(
      scripted(), learner, Patient, fitness_window=2, min_replay_size=16,
      pool_size=1))

  def step(self, state, parents=(0, 1, 2, 3)):
    asked = {"parent": jnp.array(parents, jnp.float32)}
    return super().step(changed(state, state.hyperparams | asked))


class Tuned(Trainer):
  """PBT after a burn-in period, in which agents act from the first step on.

  Members whose hyperparameter `parent` is above 0 act with NaN.
  """

  def __init__(self):
    learner = quadratic_learner()

    def act(state, hyperparams, *args):
      action = learner.act(state, hyperparams, *args).action
      return types.Acted(jnp.where(hyperparams["parent"] > 0, jnp.nan, action))

    super().__init__(setup(
      controllers.pbt(PBT, SPACE), learner._replace(act=act),
      inherit_replay=True, random_warm_up=False, burn_in_period=32))


scripted_trainer = functools.cache(Scripted)
tuned_trainer = functools.cache(Tuned)


NUM_VARIATIONS, NUM_INITIAL = 2, 6


def vary(key, first, second):
  """Offspring, as by default."""
  explore = controllers.explore(PBT, SPACE)
  return training.vary_elites(0.1, 0.2, explore)(key, first, second)


def repertoire_setup(
  env=Placed, with_pbt=True, mesh=None, variations=NUM_VARIATIONS, shape=(6, 6),
  **plan,
):
  """Four members, of which the best replaces one and an elite another."""
  defaults = {
    "emitter": "pbt" if with_pbt else "ga",
    "num_replaced_by_samples": int(with_pbt),
    "container": map_elites.cells(
      map_elites.Grid(shape, (-2.0, -2.0), (2.0, 2.0))),
    "variation_fn": vary, "variation_batch_size": variations,
    "num_initial_genotypes": NUM_INITIAL}
  return setup(
    controllers.pbt(PBT, SPACE) if with_pbt else None, env=env,
    population_size=4 if with_pbt else 1,
  )._replace(mesh=mesh, map_elites=training.MapElites(**(defaults | plan)))


def leaves(tree):
  """Arrays by path, typed keys as the integers that they are."""
  return {
    jax.tree_util.keystr(path): jax.device_get(
      jax.random.key_data(x)
      if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
      else x)
    for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def _bits(tree):
  return {
    name: (x.dtype, x.shape, x.tobytes()) for name, x in leaves(tree).items()}


def assert_bits_equal(actual, expected):
  """Compares two trees bit for bit, NaNs included."""
  actual, expected = _bits(actual), _bits(expected)
  assert actual.keys() == expected.keys()
  assert [name for name, x in actual.items() if x != expected[name]] == []


def differ(first, second):
  """Whether two trees differ anywhere."""
  return _bits(first) != _bits(second)


def all_finite(tree):
  return all(np.isfinite(x).all() for x in leaves(tree).values())


def member(tree, i):
  """One member of a tree with leaves [P, ...]."""
  return jax.tree.map(lambda x: x[i], tree)


def broken(state, name="learner/point", members=..., number=np.nan, column=0):
  """A state with a number in one entry of some members, or of all.

  It is put there in all floats whose names begin with this one.
  """

  def fill(path, x):
    found = jax.tree_util.keystr(path, simple=True, separator="/")
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    if not found.startswith(name) or not is_float:
      return x
    rows = np.array(x).reshape(x.shape[0], -1)
    rows[members, column] = number
    return rows.reshape(x.shape)

  parts = {"hyperparams": state.hyperparams, **state.members._asdict()}
  return changed(state, **jax.tree_util.tree_map_with_path(fill, parts))
