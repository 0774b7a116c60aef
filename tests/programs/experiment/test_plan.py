"""Tests of what configurations are made into."""

import dataclasses

import jax
import numpy as np
import pytest

from qdrl_haiku import config as config_lib
from qdrl_haiku import controllers, training
from qdrl_haiku.programs import experiment
from qdrl_haiku.programs.experiment.plan import plan_experiment
from qdrl_haiku.programs.storage.directory import RunDirectory
from qdrl_haiku.training.repertoires import emitters

_MAZE = {
  "env_name": "point_maze", "learner": "td3", "hidden_layer_sizes": (4,)}


def _setup(**settings):
  return experiment.build(
    experiment.TRAIN_ME_PBT.configure(_MAZE | settings))


@pytest.mark.parametrize("settings", [
  {"controller": "mf_pbt", "population_size": 8},
  {"num_replaced": 4, "num_parents": 4, "num_initial_genotypes": 5},
  {"controller": "pb2", "num_initial_genotypes": 200}], ids=str)
def test_the_first_elites_need_not_be_as_many_as_members(settings):
  setup = _setup(**settings)
  size = setup.qd.num_initial_genotypes
  keys = jax.random.split(jax.random.key(0), size)
  drawn = jax.jit(lambda keys: emitters.random_elites(setup, keys).hyperparams)(
    keys)
  for name, values in drawn.items():
    assert values.shape == (size,), name
  assert len(np.unique(drawn["policy_learning_rate"])) == size


def test_a_controller_that_has_nothing_to_tune_is_refused():
  config = experiment.TRAIN_ME_PBT.configure(_MAZE | {"emitter": "ga"})
  config = dataclasses.replace(config, controller=controllers.PB2Config())
  with pytest.raises(ValueError, match=r"controller=PB2Config.* has no effect"):
    experiment.build(config)
  # Beside a preset's a flag that is typed may leave it without effect.
  given = _MAZE | {"emitter": "ga", "controller": "pb2"}
  found = experiment.TRAIN_ME_PBT.configure(given, typed=frozenset({"emitter"}))
  assert found.controller == controllers.PBTConfig()


def test_random_search_keeps_hyperparameters_in_variations():
  setup = _setup(controller="random_search")
  keys = jax.random.split(jax.random.key(0), 2)

  @jax.jit
  def varied(keys):
    elite = jax.tree.map(lambda x: x[:1], emitters.random_elites(setup, keys))
    return elite, setup.qd.variation_fn(keys[1], elite, elite)

  elite, child = varied(keys)
  for name, value in elite.hyperparams.items():
    np.testing.assert_array_equal(child.hyperparams[name], value)
  name = "policy_params"
  assert any(jax.tree.leaves(jax.tree.map(
    lambda x, y: np.any(x != y), getattr(elite.genotype, name),
    getattr(child.genotype, name))))


@pytest.mark.parametrize("emitter", ["pbt", "ga"])
def test_agents_of_a_repertoire_may_have_a_users_policy(emitter):
  policy = "tests.learners.test_own_networks:attention"
  setup = _setup(
    emitter=emitter, learner="sac", hidden_layer_sizes=(8,),
    policy_network=policy)
  state = jax.eval_shape(setup.learner.init, jax.random.key(0))
  names = jax.eval_shape(setup.learner.genotype, state).policy_params
  assert any("multi_head_attention" in name for name in names)


def test_policies_of_two_critics_are_injected_as_there_are():
  setup = _setup(
    emitter="pga:8,dcrl:8", injection_share=0.5, gradient_share=0.5)
  # Of PGA's four one is, and variations take the place of the others.
  assert emitters.make_training_emitter(setup).batch_size == 16


@pytest.mark.parametrize("emitter", ["pga", "dcrl"])
def test_offspring_of_a_critic_have_a_learning_rate(emitter):
  config = experiment.TRAIN_ME_PBT.configure(
    _MAZE | {"emitter": emitter, "offspring_learning_rate": 1e-3},
    frozenset({"emitter", "offspring_learning_rate"}))
  assert experiment.build(config).qd.teaching.offspring_learning_rate == 1e-3


@pytest.mark.parametrize(("emitter", "expected"), [
  ("pbt", 2), ("pbt:3,ga:4", 2), ("pbt:2,ga:4", 1), ("pbt:1,ga:4", 0),
  ("ga", 0)])
def test_elites_replace_two_members_by_default_but_not_all(emitter, expected):
  config = experiment.TRAIN_ME_PBT.configure(_MAZE | {"emitter": emitter})
  assert experiment.build(config).qd.num_replaced_by_samples == expected


@pytest.mark.parametrize(("flags", "expected"), [
  ({"num_timesteps": 20_000}, 100_000),
  ({"num_timesteps": 400_000}, 400_000),
  ({"num_timesteps": 4_000_000}, 1_000_000),
  # Of 32 bytes each: two observations and an action of two numbers, and two.
  ({"num_timesteps": 400_000, "population_size": 256}, 2**31 // 256 // 32),
  ({"num_timesteps": 400_000, "population_size": 4096}, 100_000),
  ({"num_timesteps": 20_000, "min_replay_size": 150_000}, 150_000),
  ({"num_timesteps": 400_000, "replay_capacity": 5000}, 5000)], ids=str)
def test_agents_remember_their_whole_run_up_to_a_million_steps(flags, expected):
  config = experiment.TRAIN_PBT.configure(_MAZE | flags)
  plan = plan_experiment(config)
  assert plan.setup.config.replay_capacity == expected
  # A run that is made longer keeps it.
  assert plan.config.training.replay_capacity == expected


def test_a_critic_of_a_repertoire_remembers_a_whole_run_too():
  # Ten agents act in each generation.
  setup = _setup(emitter="pga", num_timesteps=20_000, variation_batch_size=10)
  assert setup.config.replay_capacity == 200_000


@pytest.mark.parametrize(("program", "flags"), [
  (experiment.TRAIN, {"learner": "ppo", "perturbation_interval": 4000}),
  (experiment.TRAIN_ME_PBT, {"emitter": "ga"}),
  (experiment.TRAIN_ME_PBT, {"emitter": "ga", "learner": "ppo"})], ids=str)
@pytest.mark.parametrize("earlier", [None, 100_000])
def test_what_keeps_no_replay_can_be_made_longer(
  program, flags, earlier, tmp_path
):
  given = _MAZE | flags | {"replay_capacity": earlier}
  first = plan_experiment(program.configure(given | {"num_timesteps": 200_000}))
  RunDirectory(tmp_path).begin(
    config_lib.config_tree_values(first.config)
    | {"launcher": f"{program.name}.py"})
  longer = dataclasses.replace(
    experiment.read_config(str(tmp_path)).run, num_timesteps=400_000)
  again = plan_experiment(dataclasses.replace(
    experiment.read_config(str(tmp_path)), run=longer))
  training.prepare(again.setup)
  capacities = {
    x.config.training.replay_capacity for x in (first, again)}
  assert capacities == {100_000}
