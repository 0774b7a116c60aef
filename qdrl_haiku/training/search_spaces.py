"""Makes search spaces of hyperparameters, by default or by specifications."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import jax

from qdrl_haiku import checks, environments, learners, names, ranges, trees
from qdrl_haiku.learners.check import check_learner_defaults
from qdrl_haiku.types import Hyperparams, Key, Metrics, Transition, Tree

_TERMS = "reward_terms"
_Declared = Mapping[str, learners.Hyperparameter]


def search_space(
  hyperparams: Hyperparams, specifications: Sequence[str] = (),
  given: Mapping[str, float] = MappingProxyType({}),
  declared: _Declared = MappingProxyType({}),
) -> Tree:
  """Returns a range for each hyperparameter of a learner.

  Args:
    hyperparams: the learner's, a tree of values that are kept where no range is
      searched. A name is a leaf's path in the tree, joined by "/".
    specifications: like "tau:log_uniform:1e-3:1e-1", see
      `ranges.parse_range`; the later of two for one name counts. Without any,
      the default ranges are searched.
    given: values that the user has fixed, by name.
    declared: the learner's declarations by name, see `learners.Learner`.

  Returns:
    A tree of the same structure, its leaves ranges; `Fixed` for those that
    aren't searched.
  """
  named = trees.tree_leaves_by_name(hyperparams)
  said: dict[str, ranges.Range] = {}
  with checks.Refusals() as refusals:
    for text in specifications:
      with refusals.noted():
        said.update([ranges.parse_range(text)])
    for name in (*said, *given):
      if name not in named:
        where = "search_space" if name in said else "given"
        refusals.refuse(
          f"{where} names {name!r}, which is {_unknown(name, named)}")
      elif name in said and name in given:
        refusals.refuse(
          f"{_flag_of(name)}={given[name]} fixes what --search_space searches; "
          "leave out one of the two.")
  searched: dict[str, ranges.Range | None] = dict(said) or {
    name: x.search for name in named
    if name not in given and (x := _declaration(declared, name))}
  found = [
    searched.get(name) or ranges.Fixed(given.get(name, value))
    for name, value in named.items()]
  with checks.Refusals() as refusals:
    for name, range_ in zip(named, found, strict=True):
      for value in dict.fromkeys(ranges.bounds(range_)):
        flag = _flag_of(name) if name in given else f"--search_space: {name}"
        with refusals.noted():
          check_search_space_value(declared, name, value, f"{flag}={value}")
  return jax.tree.unflatten(jax.tree.structure(hyperparams), found)


def with_tunables(
  learner: learners.Learner, env: environments.BatchedEnvironment,
  *, pay_anew: bool | None = None, leave_out: Collection[str] = (),
) -> learners.Learner:
  """Puts an environment's tunables among a learner's hyperparameters.

  Args:
    learner: which may heed them or not.
    env: that agents collect in.
    pay_anew: whether rewards are those of the agent's weights when it learns,
      not when it collected; by default, where the environment tells its
      `reward_terms` and the learner learns from what others' weights paid.
    leave_out: names of tunables that something else sets.

  Returns:
    The learner with hyperparameters `env/<name>`. Each agent then collects with
    its own values, and is evaluated with the environment's defaults.

  Raises:
    ValueError: if the learner's hyperparameters are no dict, or if rewards
      can't be paid anew.
  """
  declared = {
    environments.TUNABLE + name: x for name, x in env.tunables.items()
    if name not in leave_out}
  if declared and type(learner.hyperparams) is not dict:
    raise ValueError(
      f"the learner's hyperparams are a {type(learner.hyperparams).__name__}, "
      f"to which {', '.join(declared)} can't be added; make them a dict.")
  if not declared:
    return learner
  defaults = {name: x.default for name, x in declared.items()}
  learner = learner._replace(
    hyperparams=learner.hyperparams | defaults,
    declared={**learner.declared, **declared})
  states = jax.eval_shape(
    lambda: env.reset(jax.random.split(jax.random.key(0), 1)))
  can_pay = _TERMS in states.info
  if pay_anew is None:
    pay_anew = can_pay and learner.learns_from != "rollout"
  if not pay_anew:
    return learner
  if not can_pay:
    raise ValueError(
      "pay_anew needs an environment that tells its reward's terms in "
      f"info[{_TERMS!r}], and this one doesn't; leave it out.")
  return _paying_anew(learner)


def _paying_anew(learner: learners.Learner) -> learners.Learner:
  """Returns the learner of rewards by an agent's present weights."""
  if learner.learns_from == "rollout":
    raise ValueError(
      "pay_anew has no effect on a learner from rollouts, whose rewards are "
      "always of the present weights; leave it out.")

  def update(
    state: Tree, hyperparams: Hyperparams, transitions: Transition, key: Key
  ) -> tuple[Tree, Metrics]:
    extras = dict(transitions.extras)
    terms = dict(extras.pop(_TERMS))
    reward = terms.pop("rest")
    for name, term in terms.items():
      reward += hyperparams[environments.TUNABLE + name] * term
    transitions = transitions._replace(reward=reward, extras=extras)
    return learner.update(state, hyperparams, transitions, key)

  return learner._replace(
    update=update, stores=(*learner.stores, _TERMS), supports_n_step=False)


def with_hyperparameters(
  learner: learners.Learner, given: Mapping[str, float]
) -> learners.Learner:
  """Returns the learner with other values of its hyperparameters, by name."""
  check_learner_defaults(learner.hyperparams)
  named = trees.tree_leaves_by_name(learner.hyperparams)
  with checks.Refusals() as refusals:
    for name, value in given.items():
      if name not in named and name in learners.DECLARATIONS:
        refusals.refuse(
          f"--{name}={value} has no effect: the learner's hyperparameters are "
          f"{', '.join(named)}; leave it out.")
      elif name not in named:
        refusals.refuse(
          f"--hyperparam={name}={value:g} is {_unknown(name, named)}")
      else:
        with refusals.noted():
          check_search_space_value(
            learner.declared, name, value, f"{_flag_of(name)}={value}")
  leaves = [given.get(name, value) for name, value in named.items()]
  structure = jax.tree.structure(learner.hyperparams)
  return learner._replace(hyperparams=jax.tree.unflatten(structure, leaves))


def check_search_space_value(
  declared: _Declared, name: str, value: float, where: str
) -> None:
  """Refuses a value of a known hyperparameter that is out of its range.

  Args:
    declared: hyperparameters by name.
    name: of one of them, or an unknown one, of which nothing is checked.
    value: to be checked.
    where: it stands, for the message.

  Raises:
    ValueError: if it's out of its range.
  """
  if known := _declaration(declared, name):
    known.check(where, value)


def _unknown(name: str, known: Collection[str]) -> str:
  """Says what a name isn't, and which is the nearest."""
  prefix = environments.TUNABLE
  if not name.startswith(prefix):
    fix = names.nearest_name(name, known)
    return f"no hyperparameter of the learner; {fix}"
  tunables = [x for x in known if x.startswith(prefix)]
  none = "it has none, so leave it out."
  fix = names.nearest_name(name, tunables) if tunables else none
  return f"no tunable of the environment; {fix}"


def _flag_of(name: str) -> str:
  """Returns the flag that gives a hyperparameter a value."""
  is_ours = name in learners.DECLARATIONS
  return f"--{name}" if is_ours else f"--hyperparam={name}"


def _declaration(
  declared: _Declared, name: str
) -> learners.Hyperparameter | None:
  """Returns how a learner, or else how several of ours declare a name."""
  return declared.get(name) or learners.COMMON_HYPERPARAMETERS.get(name)
