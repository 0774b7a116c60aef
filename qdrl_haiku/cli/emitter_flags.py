"""The flags that say where the agents of a repertoire come from."""

import dataclasses
from typing import Any, NamedTuple, TypeVar

from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.pbt_flags import ControllerFlags

_EMITTERS = ("pbt", "ga", "pga", "dcrl", "cma")
# Those whose agents share a critic.
_TAUGHT = ("pga", "dcrl")
_OF_TEACHING = (
  "num_critic_steps", "num_policy_steps", "gradient_share", "injection_share",
  "offspring_learning_rate",
)  # fmt: skip
_OF_CMA = ("num_strategies", "step_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmitterFlags(ControllerFlags):
  """Say where the agents of a repertoire come from."""

  section = "Emitters"

  emitter: str = flag(
    "pbt",
    "Emitters that make the agents of a generation: pbt, a population that "
    "trains and variations of elites (ME-PBT); ga, variations alone "
    "(MAP-Elites); pga, variations and agents that follow the gradient of one "
    "shared critic (PGA-MAP-Elites); dcrl, the same with a critic that is "
    "conditioned on descriptors (DCRL-MAP-Elites); cma, samples of CMA-ES "
    "(CMA-ME); or package.module:function, a function of the training.Setup "
    "that returns a map_elites.Emitter. Several emitters are given with the "
    "number of each one's agents, like pbt:10,pga:32,ga:32, or without "
    "numbers, like pga,ga, for shares that adapt.",
  )
  num_critic_steps: int = flag(
    300, "Steps of the shared critic of pga or dcrl in each generation."
  )
  num_policy_steps: int = flag(
    100,
    "Gradient steps of each agent of pga or dcrl that follows the shared "
    "critic.",
  )
  gradient_share: float | None = flag(
    None,
    "Share of the agents of pga or dcrl that follow the shared critic's "
    "gradient; by default 0.5 with pga and 0.25 with dcrl.",
  )
  injection_share: float | None = flag(
    None,
    "Share of the agents of pga or dcrl that are the shared critic's own "
    "policies, by default one agent with pga and 0.25 with dcrl; the rest are "
    "variations.",
  )
  offspring_learning_rate: float = flag(
    5e-3,
    "Adam's learning rate for agents of pga or dcrl that follow the shared "
    "critic.",
  )
  length_scale: float = flag(
    0.1,
    "Distance from the target descriptor at which dcrl multiplies rewards by "
    "1/e, where the descriptor's bounds are -1 and 1.",
  )
  num_strategies: int = flag(
    1, "Number of CMA-ES instances that share the agents of cma evenly."
  )
  step_size: float = flag(
    0.3,
    "Standard deviation, in units of the weights, with which CMA-ES starts "
    "around an elite with cma.",
  )


_Flags = TypeVar("_Flags", bound=EmitterFlags)


class Part(NamedTuple):
  """An emitter as the flag has it.

  Attributes:
    name: one of ours, or package.module:function.
    batch_size: the number behind it, None if there is none.
  """

  name: str
  batch_size: int | None


def parts(flags: EmitterFlags) -> list[Part]:
  """Returns the emitters that the flag lists, pbt first.

  Args:
    flags: of the launcher.

  Raises:
    ValueError: if one is unknown, or if the numbers make no sense.
  """
  from qdrl_haiku import names

  found = []
  for text in flags.emitter.split(","):
    name, _, number = text.rpartition(":")
    part = Part(text, None)
    if number.isdecimal():
      part = Part(name, int(number))
    if ":" not in part.name and part.name not in _EMITTERS:
      raise ValueError(
        f"--emitter={flags.emitter}: {part.name} is unknown; "
        f"{names.nearest(part.name, _EMITTERS)}"
      )
    found.append(part)
  numbers = [part.batch_size for part in found if part.batch_size is not None]
  if len({part.name for part in found}) < len(found):
    raise ValueError(
      f"--emitter={flags.emitter} names one twice; name each once."
    )
  if numbers and len(numbers) < len(found):
    raise ValueError(
      f"--emitter={flags.emitter} has numbers for some; give each one, like "
      "pbt:10,ga:32, or none for shares that adapt."
    )
  if 0 in numbers:
    raise ValueError(
      f"--emitter={flags.emitter} has an emitter that makes nothing; leave it "
      "out."
    )
  if len(found) > 1 and not numbers and "pbt" in [x.name for x in found]:
    raise ValueError(
      f"--emitter={flags.emitter}: all members of pbt have to be evaluated, so "
      "that its share can't adapt; give each emitter a number, like "
      "pbt:10,ga:32."
    )
  return sorted(found, key=lambda part: part.name != "pbt")


def check(flags: _Flags, emitters: list[Part]) -> _Flags:
  """Refuses what has no effect on such emitters, and fills in what follows.

  Args:
    flags: of the launcher.
    emitters: of `parts`.

  Returns:
    The flags; agents that need no critics of their own have none, and what
    numbers of emitters say is in the flags that would have said it.

  Raises:
    ValueError: if a flag has no effect.
  """
  names = [part.name for part in emitters]
  taught = [name for name in names if name in _TAUGHT]
  if not taught:
    flags.refuse_given(
      (*_OF_TEACHING, "length_scale"),
      f"with --emitter={flags.emitter} no critic is shared",
      "emitter",
    )
  trains_alone = any(":" in name or name == "pbt" for name in names)
  if taught and not trains_alone:
    flags.refuse_given(
      ["grad_updates_per_step"], "--num_critic_steps says how often"
    )
  if (
    (taught or "cma" in names)
    and not trains_alone
    and "own_critics" not in flags.given
    and flags.learner == "td3"
  ):
    flags = dataclasses.replace(flags, own_critics=False)
  if taught and "dcrl" not in names:
    flags.refuse_given(["length_scale"], "pga sees no targets", "emitter")
  if "cma" not in names:
    flags.refuse_given(
      _OF_CMA, f"with --emitter={flags.emitter} nothing is sampled", "emitter"
    )
  if emitters[0].batch_size is None:
    return flags
  why = f"--emitter={flags.emitter} has the numbers"
  counts: dict[str, Any] = {"variation_batch_size": 0}
  for part in emitters:
    name = "variation_batch_size"
    if part.name == "pbt":
      name = "gradient_population_size"
    counts[name] = counts.get(name, 0) + part.batch_size
  flags.refuse_given(counts, why, "emitter")
  return dataclasses.replace(flags, **counts)


def make_emitter(flags: EmitterFlags, emitters: list[Part]) -> Any:
  """Returns the emitter as a setup has it.

  Args:
    flags: of the launcher.
    emitters: of `parts`.

  Returns:
    A name, a function, or several parts.
  """
  from qdrl_haiku import training

  (first, *others) = emitters
  if not others and first.batch_size is None:
    return _function(flags, first.name) if ":" in first.name else first.name
  return tuple(
    training.Part(
      label(part.name),
      part.batch_size,
      _function(flags, part.name) if ":" in part.name else None,
    )
    for part in emitters
  )


def label(name: str) -> str:
  """Returns what an emitter is called: of a user's own, the function's name.

  Args:
    name: as the flag has it.
  """
  return name.rpartition(":")[2]


def make_teaching(flags: EmitterFlags) -> Any:
  """Returns how agents learn that share a critic.

  Args:
    flags: of the launcher.

  Returns:
    A `training.TeachingConfig`.
  """
  from qdrl_haiku import training

  return training.TeachingConfig(
    **{name: getattr(flags, name) for name in (*_OF_TEACHING, "length_scale")}
  )


def make_cma(flags: EmitterFlags) -> Any:
  """Returns how CMA-ES searches.

  Args:
    flags: of the launcher.

  Returns:
    A `training.CMAConfig`.
  """
  from qdrl_haiku import training

  return training.CMAConfig(**{name: getattr(flags, name) for name in _OF_CMA})


def _function(flags: EmitterFlags, path: str) -> Any:
  """Returns a user's function, whose result is checked."""
  alone = dataclasses.replace(flags, emitter=path)
  function = alone.users_function("emitter", "setup")

  def make(setup: Any) -> Any:
    from qdrl_haiku import map_elites

    emitter = function(setup)
    alone.check_users_result("emitter", emitter, map_elites.Emitter)
    return emitter

  return make
