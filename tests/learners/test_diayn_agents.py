"""Tests of DIAYN over learners that learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import learners, skills
from tests import configs, jaxprs
from tests.learners import common
from tests.learners import diayn_common as diayn

_O = common.OBSERVATION_SIZE
_K = diayn.NUM_SKILLS
_D = diayn.DESCRIPTOR_SIZE


def _base(name):
  """SAC or TD3 for observations that end with a skill."""
  factory, config_class = {
    "sac": (learners.sac, learners.SACConfig),
    "td3": (learners.td3, learners.TD3Config),
  }[name]
  config = configs.make(
    config_class,
    normalize_observations=False,
    policy_hidden_layer_sizes=(4,),
    critic_hidden_layer_sizes=(5,),
    activation="tanh",
  )
  return factory(_O + _K, common.ACTION_SIZE, config)


_BASES = {name: _base(name) for name in ("sac", "td3")}
_LEARNERS = {
  name: learners.diayn(base, _O, diayn.PRIOR, _D, diayn.config())
  for name, base in _BASES.items()
}
_EACH = pytest.mark.parametrize("name", _BASES)
_UPDATE = {
  name: jax.jit(learner.update) for name, learner in _LEARNERS.items()
}
_UPDATE_ALL = {
  name: jax.jit(jax.vmap(learner.update))
  for name, learner in _LEARNERS.items()
}


def _rates(name, **changes):
  """Defaults of a learner with larger rates, so that steps are visible."""
  return common.hyperparams(
    _LEARNERS[name], discriminator_learning_rate=0.05, **changes
  )


@pytest.mark.parametrize("name", ["discriminator_learning_rate",
                                  "task_reward_weight", "discount"])
@pytest.mark.slow
def test_every_hyperparameter_is_live(name):
  learner, default = _LEARNERS["sac"], _rates("sac")
  after = []
  for value in (default[name], np.float32(default[name] * 0.8 or 0.5)):
    state = diayn.agent(learner)
    for i in range(3):
      state, _ = _UPDATE["sac"](
        state, default | {name: value}, diayn.batches(seed=i), jax.random.key(i)
      )
    after.append(state)
  discriminators = [x.discriminator_params for x in after]
  # What the base learner does is no matter of the discriminator.
  is_own = name == "discriminator_learning_rate"
  assert (common.distance(*discriminators) > 1e-6) == is_own
  assert common.distance(*(x.agent.policy_params for x in after)) > 1e-6


@_EACH
def test_it_is_a_learner_as_others_are(name):
  descriptor = jax.ShapeDtypeStruct((_D,), jnp.float32)
  extras = {"next_descriptor": descriptor}
  learners.check(_LEARNERS[name], _O + _K, common.ACTION_SIZE, extras)


def test_an_update_has_no_conditional():
  learner = _LEARNERS["td3"]
  args = (
    common.fresh(learner), learner.hyperparams,
    diayn.batches(learner.batches_per_update), jax.random.key(0),
  )  # fmt: skip
  primitives = {
    e.primitive.name for e in jaxprs.equations(learner.update, *args)
  }
  assert "dot_general" in primitives
  assert "cond" not in primitives
  assert not jaxprs.waiting_loops(learner.update, *args)


@pytest.mark.slow
@_EACH
def test_an_update_of_a_population_is_that_of_each_member(name):
  learner = _LEARNERS[name]
  num = learner.batches_per_update
  states = [
    _UPDATE[name](
      diayn.agent(learner, i),
      _rates(name),
      diayn.batches(num),
      jax.random.key(9),
    )[0]
    for i in range(3)
  ]
  rates = [
    _rates(name, discount=0.9 + 0.03 * i, task_reward_weight=0.1 * i)
    for i in range(3)
  ]
  batches = [diayn.batches(num, seed=i) for i in range(3)]
  keys = jax.random.split(jax.random.key(1), 3)
  together = _UPDATE_ALL[name](
    *map(common.stack, (states, rates, batches)), keys
  )
  for i in range(3):
    common.assert_close(
      common.member(together, i),
      _UPDATE[name](states[i], rates[i], batches[i], keys[i]),
      rtol=1e-5,
      atol=1e-5,
    )


@pytest.mark.slow
@_EACH
def test_the_base_learner_learns_from_the_relabelled_batches(name):
  base, learner = _BASES[name], _LEARNERS[name]
  num = {"sac": 1, "td3": 2}[name]
  assert learner.batches_per_update == base.batches_per_update == num
  state, batches, rates = diayn.agent(learner), diayn.batches(num), _rates(name)
  after, metrics = _UPDATE[name](state, rates, batches, jax.random.key(3))
  spy = diayn.spied(batches_per_update=num)
  seen, spied_metrics = jax.jit(spy.update)(
    state._replace(agent=diayn.Seen(0.0)),
    common.hyperparams(spy, discriminator_learning_rate=0.05),
    batches,
    jax.random.key(3),
  )
  agent, agent_metrics = jax.jit(base.update)(
    state.agent, rates, seen.agent.transitions, jax.random.key(3)
  )
  common.assert_close(after.agent, agent, rtol=1e-5, atol=1e-6)
  common.assert_close(
    after._replace(agent=0), seen._replace(agent=0), rtol=1e-5, atol=1e-6
  )
  del spied_metrics["spied"]
  common.assert_close(metrics, agent_metrics | spied_metrics, 1e-5, 1e-6)
  assert after.discriminator_optimizer_state.count == num


@_EACH
def test_a_new_agent_is_a_new_base_agent_and_a_discriminator(name):
  learner = _LEARNERS[name]
  states = [common.fresh(learner, seed=i) for i in range(2)]
  structure = jax.tree.structure(
    jax.eval_shape(_BASES[name].init, jax.random.key(0))
  )
  for state in states:
    assert jax.tree.structure(state.agent) == structure
    leaves = jax.tree.leaves(state)
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)
    assert not any(
      jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves
    )
  first, second = states
  assert common.distance(first.agent.policy_params, second.agent.policy_params)
  assert common.distance(
    first.discriminator_params, second.discriminator_params
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "prior", [skills.sphere(2), skills.sphere(3), skills.normal(2)]
)
def test_agents_with_continuous_skills_learn_to_be_told_apart(prior):
  """The descriptor gives the skill away."""
  learner = learners.diayn(
    diayn.spy(), _O, prior, prior.size, diayn.config(activation="relu")
  )
  update = jax.jit(learner.update)
  state, metrics = common.fresh(learner), None
  first = None
  for i in range(150):
    batches = diayn.batches(prior=prior, seed=i)
    skill = batches.observation[..., _O:]
    batches = batches._replace(extras={"next_descriptor": skill})
    state, metrics = update(
      state, diayn.HYPERPARAMS, batches, jax.random.key(i)
    )
    state = state._replace(agent=diayn.Seen(state.agent.weight))
    first = first or metrics
  assert metrics["intrinsic_reward"] > first["intrinsic_reward"] + 0.5
  assert metrics["discriminator_loss"] < first["discriminator_loss"] - 0.5
