"""Lets a repertoire's agents take over what others did better."""

import jax
import jax.numpy as jnp

from qdrl_haiku import learners, map_elites, platform, specs
from qdrl_haiku.distributed import sharding
from qdrl_haiku.map_elites import variation
from qdrl_haiku.training.setup import Setup
from qdrl_haiku.types import Array, Tree

# Those of the paper, whose normal policies have a standard deviation of 2.
_SCALE, _CLIP, _DISCOUNT, _SHARE = 2.0, 0.2, 0.99, 0.5
_LEARNING_RATE, _NUM_STEPS = 3e-3, 32


def crossover_emitter(
  setup: Setup, is_weight: variation.IsWeightFn | None
) -> map_elites.Emitter:
  """Makes the emitter of ASCII-MAP-Elites; refuses what doesn't fit it."""
  learner, env, does = setup.learner, setup.eval_env, "emitter ascii compares"
  if isinstance(env.action_spec, specs.Discrete):
    raise ValueError(
      f"{does} actions by their distance, and here an action is one of n; take "
      "an environment with continuous actions, or another emitter.")
  if jax.tree.leaves(jax.eval_shape(learner.memory)):
    raise ValueError(
      f"{does} single steps, and agents with memory act by earlier ones; take "
      "memory=none, or another emitter.")
  number, steps = specs.Array(()), env.episode_length
  example = map_elites.Episodes._make([
    *specs.shapes((env.observation_spec, env.action_spec, number), steps),
    jax.ShapeDtypeStruct((), jnp.int32)])
  num_crossed, _, num_varied = setup.qd.teaching.counts(
    setup.qd.variation_batch_size, _SHARE, 0)
  return map_elites.ascii_emitter(
    crossover(setup, is_weight), setup.qd.variation_fn, example,
    discount=_DISCOUNT, gradient_batch_size=num_crossed,
    variation_batch_size=num_varied)


def crossover(
  setup: Setup, is_weight: variation.IsWeightFn | None
) -> map_elites.CrossFn:
  """Makes the `CrossFn` for policies of any learner, on all devices.

  Args:
    setup: of which learner and mesh count.
    is_weight: which of a genotype's leaves are the policy's weights, by default
      those of `map_elites.weights_only`.
  """
  learner, optimizer = setup.learner, learners.Optimizer()

  def cross_one(
    genotype: Tree, others: map_elites.Episodes, weights: Array
  ) -> Tree:
    chosen = variation.find_varied_weights(genotype, is_weight)
    taken = others.action
    assert taken is not None

    def loss_fn(params: Tree) -> Array:
      agent = learner.from_genotype(
        variation.put_varied_weights(genotype, params))
      action = learner.act_greedy(agent, others.observation, ()).action
      return map_elites.ascii_loss(action, taken, weights, _SCALE, _CLIP)

    def step(carry: Tree, _: None) -> tuple[Tree, None]:
      params, moments = carry
      return optimizer.update(
        jax.grad(loss_fn)(params), moments, params,
        jnp.float32(_LEARNING_RATE)), None

    params = variation.pick_varied_weights(genotype, chosen)
    (params, _), _ = jax.lax.scan(
      step, (params, optimizer.init(params)), length=_NUM_STEPS)
    return variation.put_varied_weights(genotype, params)

  def cross(
    parents: map_elites.Elite, others: map_elites.Episodes, weights: Array
  ) -> map_elites.Elite:
    # Replicated: XLA would otherwise shard the choice of parents too.
    known = sharding.replicate(
      setup.mesh, (parents.genotype, others, weights))
    spread = sharding.run_on_shards(
      setup.mesh,
      lambda _, trees: jax.vmap(platform.member(cross_one))(*trees), ())
    return parents._replace(genotype=sharding.all_gather(
      setup.mesh, spread(*known), weights.shape[0]))

  return cross
