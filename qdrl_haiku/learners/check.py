"""Checks of a learner, and of what an update is given, by shapes alone."""

import functools
import numbers
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from qdrl_haiku import checks, networks, specs, trees, types
from qdrl_haiku.learners.base import Learner

_NUM_ENVS = 3
_NUM_ARGUMENTS = {
  "init": 1, "update": 4, "act": 5, "act_greedy": 3, "observe": 2,
  "genotype": 1, "from_genotype": 1, "memory": 0}
_ACTING = (
  "act is (state, hyperparams, observation, memory, key) -> "
  "types.Acted(action, memory, extras), and act_greedy is (state, observation, "
  "memory) -> types.Acted(action, memory); agents without a memory return the "
  "one they are given, () (until 0.4 there was none, and act_greedy returned "
  "the action alone).")


def check(
  learner: Learner, observation_size: int | specs.Observation,
  action_size: int | specs.Action,
  extras: Mapping[str, jax.ShapeDtypeStruct | types.Array] | None = None,
  batch_size: int = 256, rollout_shape: tuple[int, int] = (16, 8),
) -> None:
  """Refuses a learner whose functions don't do what `Learner` says.

  Nothing is computed or compiled; only shapes are looked at.

  Args:
    learner: of a user's own, perhaps.
    observation_size: O, or the spec of observations.
    action_size: A, or the spec of actions.
    extras: shapes and dtypes of what each stored transition has as `extras`,
      by name; none by default.
    batch_size: B, transitions in a batch.
    rollout_shape: T and E of a rollout, for on-policy learners.

  Raises:
    ValueError: if a field or a returned value isn't as `Learner` says, or if
      the learner reads an extra that isn't stored.
  """
  extras = dict(extras or {})
  check_learner_defaults(learner.hyperparams)
  checks.check_count("batches_per_update", learner.batches_per_update, 1)
  if learner.learns_from not in ("replay", "sequences", "rollout"):
    raise ValueError(
      f"learns_from={learner.learns_from!r} is unknown; give 'replay', "
      "'sequences' or 'rollout'.")
  checks.check_names("stores", learner.stores)
  check_learner_functions(learner)
  is_on_policy = learner.learns_from == "rollout"
  if learner.learns_from != "replay" or "truncation" in learner.stores:
    extras["truncation"] = _array()
  key = jax.eval_shape(lambda: jax.random.key(0))
  hyperparams = jax.tree.map(lambda _: _array(), learner.hyperparams)
  shapes = functools.partial(_shapes, learner, extras)

  state = shapes("init", key)
  if not jax.tree.leaves(state):
    raise ValueError(
      "the state that the learner's init returns has no array, and agents are "
      "counted by those; let it have one, such as jnp.zeros(()).")
  observed = specs.observation_spec(observation_size)
  done = specs.action_spec(action_size)
  observations = specs.shapes(observed, _NUM_ENVS)
  acted = _check_acting(shapes, state, hyperparams, observations, done)
  extras |= _stored_extras(learner, acted.extras)
  if missing := {*learner.stores} - extras.keys():
    raise ValueError(
      f"the learner stores {', '.join(sorted(missing))}, which transitions "
      f"don't have ({', '.join(sorted(extras)) or 'none'}); let its act return "
      "it among its extras, or take an environment that has it.")

  batches: tuple[int, ...] = rollout_shape
  if not is_on_policy:
    batches = learner.batches_per_update, *learner.batch_shape(batch_size)
  extras_of_batches: types.Tree = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((*batches, *x.shape), x.dtype), extras)
  transitions = types.Transition(
    observation=specs.shapes(observed, *batches),
    action=specs.shapes(done, *batches), reward=_array(*batches),
    discount=_array(*batches),
    next_observation=specs.shapes(observed, *batches),
    extras=extras_of_batches)
  after, metrics = _update_result(
    shapes("update", state, hyperparams, transitions, key))
  for name, found in (
    ("observe", shapes("observe", state, observations)),
    ("from_genotype", shapes("from_genotype", shapes("genotype", state))),
    ("update", after),
  ):
    checks.check_like(
      f"the state that the learner's {name} returns", found, state)
  for name, value in metrics.items():
    if getattr(value, "shape", None) != ():
      raise ValueError(
        f"the learner's update returns the metric {name!r} with "
        f"{trees.describe_tree(value)}; give one number, such as its mean.")


def _update_result(result: types.Tree) -> tuple[types.State, types.Metrics]:
  """Refuses what is no result of an update, and returns it."""
  match result:
    case (_, dict()):
      return result
  parts = result if isinstance(result, tuple) else (result,)
  kinds = " and ".join(f"a {type(x).__name__}" for x in parts) or "nothing"
  raise ValueError(
    f"the learner's update returns {kinds}; return a pair, the new state and a "
    "dict of numbers by name.")


def _check_acting(
  shapes: Callable[..., types.Tree], state: types.State,
  hyperparams: types.Hyperparams, observations: types.Tree, done: specs.Action,
) -> types.Acted:
  """Refuses what a learner returns when it acts; `act`'s is returned."""
  key = jax.eval_shape(lambda: jax.random.key(0))
  expected = specs.shapes(done, _NUM_ENVS)
  memory = specs.shapes(shapes("memory"), _NUM_ENVS)
  greedy = shapes("act_greedy", state, observations, memory)
  exploring = shapes("act", state, hyperparams, observations, memory, key)
  for name, acted in (("act", exploring), ("act_greedy", greedy)):
    if not isinstance(acted, types.Acted):
      raise ValueError(
        f"the learner's {name} returns {trees.describe_tree(acted)}; {_ACTING}")
    if trees.tree_difference(acted.action, expected):
      raise ValueError(
        f"the learner's {name} makes {trees.describe_tree(acted.action)} of "
        f"observations {trees.describe_tree(observations)}; return actions "
        f"{expected.dtype}{expected.shape}, one for each observation.")
    checks.check_like(
      f"the memory that the learner's {name} returns", acted.memory, memory,
      "what its memory returns")
  return exploring


def check_learner_functions(learner: Learner) -> None:
  """Refuses functions that take other arguments, such as a learner's of 0.4."""
  for name, number in _NUM_ARGUMENTS.items():
    if not checks.takes_arguments(function := getattr(learner, name), number):
      fix = _ACTING if name.startswith("act") else "see learners.Learner."
      raise ValueError(
        f"the learner's {name} is a {type(function).__name__} that doesn't "
        f"take {number} arguments; {fix}")


def _stored_extras(
  learner: Learner, extras: Mapping[str, types.Tree]
) -> dict[str, types.Tree]:
  """Returns shapes of one transition's extras that are stored of `act`'s."""
  found = {name: extras[name] for name in extras.keys() & {*learner.stores}}
  for name, tree in found.items():
    for shape in map(jnp.shape, jax.tree.leaves(tree)):
      if shape[:1] != (_NUM_ENVS,):
        raise ValueError(
          f"the learner stores {name!r}, of which its act makes {shape} of "
          f"{_NUM_ENVS} observations; return [..., ...] of [..., O].")
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), found)


def check_learner_update(
  transitions: types.Transition, hyperparams: types.Hyperparams,
  defaults: types.Hyperparams, batches_per_update: int,
  *sequence_length: int,
) -> None:
  """Refuses what an update can't learn from, before anything is computed.

  Args:
    transitions: leaves [N, B, ...], or [N, B, L, ...] of sequences.
    hyperparams: of one agent.
    defaults: the learner's, which tell the right tree.
    batches_per_update: N.
    *sequence_length: L, or nothing.

  Raises:
    ValueError: if shapes or the tree of hyperparameters differ.
  """
  n, observed = batches_per_update, transitions.observation
  if isinstance(observed, networks.Sequences):
    observed = transitions.reward  # Checked before it was made flat.
  num_axes = 2 + len(sequence_length)
  shapes = [jnp.shape(x) for x in jax.tree.leaves(observed)]
  rewards = jnp.shape(transitions.reward)
  discounts = jnp.shape(transitions.discount)
  leading = {rewards, discounts, *(x[:num_axes] for x in shapes)}
  others = rewards[:1] + rewards[2:]
  is_right = len(rewards) == num_axes and others == (n, *sequence_length)
  if not is_right or len(leading) > 1:
    axes = ", ".join(map(str, (n, "B", *sequence_length)))
    fix = f"sample {n} of them, with the shape ({axes})"
    if len(rewards) == 1 and n == 1:
      fix = "add the axis: jax.tree.map(lambda x: x[None], transitions)"
    raise ValueError(
      f"the transitions' observations have shape {shapes[0]}, their rewards "
      f"{rewards} and their discounts {discounts}, but an update of one agent "
      f"takes observations ({axes}, O), and ({axes}) of the others, as many "
      f"batches as batches_per_update={n} says; {fix}.")
  checks.check_hyperparams(hyperparams, defaults)


def check_learner_rollout(
  transitions: types.Transition, hyperparams: types.Hyperparams,
  defaults: types.Hyperparams, num_minibatches: int = 1,
  stores: Sequence[str] = (),
) -> None:
  """Refuses a rollout that an update can't learn from.

  Args:
    transitions: leaves [T, E, ...], with `truncation` in their extras.
    hyperparams: of one agent.
    defaults: the learner's, which tell the right tree.
    num_minibatches: into which T * E transitions are cut.
    stores: names that the extras need beside `truncation`.

  Raises:
    ValueError: if shapes, names or the tree of hyperparameters differ.
  """
  shape = jnp.shape(jax.tree.leaves(transitions.observation)[0])
  rewards = transitions.reward
  if isinstance(transitions.observation, networks.Sequences):
    shape = (*rewards.shape, *shape[2:])
  scalars = {"reward": rewards, "discount": transitions.discount}
  # Extras may be trees.
  shapes = jax.tree.map(jnp.shape, scalars | transitions.extras)
  needed = {shapes.get(name) for name in (*scalars, "truncation")}
  if len(shape) < 3 or needed != {shape[:2]}:
    raise ValueError(
      f"the transitions' observations have shape {shape}, and the others "
      f"{shapes}; an update of one agent takes a rollout in its order, "
      "observations (T, E, O), and reward, discount and, in their extras, "
      "truncation (T, E).")
  if missing := set(stores) - transitions.extras.keys():
    raise ValueError(
      f"the transitions' extras are {', '.join(transitions.extras)}; an update "
      f"takes {', '.join(missing)} too, which the learner's act returned.")
  if rewards.size % num_minibatches:
    steps, num_envs = rewards.shape
    raise ValueError(
      f"rollout_length={steps} times num_envs={num_envs} are {rewards.size} "
      f"transitions, which can't be cut into {num_minibatches} equal "
      f"minibatches; make that product a multiple of {num_minibatches}.")
  checks.check_hyperparams(hyperparams, defaults)


def check_learner_defaults(hyperparams: types.Hyperparams) -> None:
  """Refuses default hyperparameters that are no tree of numbers."""
  if not jax.tree.leaves(hyperparams):
    raise ValueError(
      f"the learner's hyperparams={hyperparams!r} have no number; give one, "
      "such as {'discount': 0.99}, though the learner needn't heed it.")
  names = trees.tree_leaf_names(hyperparams)
  values = jax.tree.leaves(hyperparams)
  for name, value in zip(names, values, strict=True):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
      raise ValueError(
        f"the learner has the hyperparameter {name}={value!r}; give a Python "
        "float.")


def _shapes(
  learner: Learner, extras: Mapping[str, jax.ShapeDtypeStruct | types.Array],
  name: str, *args: types.Tree,
) -> types.Tree:
  """Returns the shapes of what one of a learner's functions returns."""
  try:
    return jax.eval_shape(getattr(learner, name), *args)
  except (TypeError, ValueError) as error:
    raise ValueError(f"the learner's {name} fails: {error}") from error
  except KeyError as error:
    hyperparams = trees.tree_leaf_names(learner.hyperparams)
    raise ValueError(
      f"the learner's {name} looks for {error}, which is none of its "
      f"hyperparameters ({', '.join(hyperparams)}) and none of the extras that "
      f"its batches hold ({', '.join(extras) or 'none'}); an extra of "
      f"transitions is stored only if Learner.stores=({error},) names it, and "
      "'truncation' always with learns_from='rollout'.") from error


def _array(*shape: int) -> types.Tree:
  return jax.ShapeDtypeStruct(shape, jnp.float32)
