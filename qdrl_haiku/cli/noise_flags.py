"""The flags that say how far a repertoire trusts what it saw of an agent."""

import dataclasses
from typing import Any

from qdrl_haiku.cli.emitter_flags import EmitterFlags
from qdrl_haiku.cli.flags import flag

_ADDING = ("once", "adaptive")
_OF_RESAMPLING = ("resampling_share", "resampling_depth")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseFlags(EmitterFlags):
  """Say how often agents are evaluated that episodes flatter or wrong."""

  adding: str = flag(
    "once",
    "How agents get into the repertoire: once, by the evaluation after they "
    "are made; or adaptive, for noisy environments: the best are evaluated "
    "again and again, and count by their means (Extract-ME).",
  )
  resampling_share: float = flag(
    0.25,
    "Of all evaluations of a generation, with --adding=adaptive: those of "
    "agents that were evaluated before. They come on top of new agents.",
  )
  resampling_depth: int = flag(
    4,
    "Agents kept for each cell, with --adding=adaptive: the elite, and those "
    "next in line.",
  )
  num_reevaluations: int = flag(
    2,
    "How often each elite is evaluated again when a run ends, for what the "
    "repertoire is without luck; 0 for not at all. No step of it counts in "
    "total_env_steps.",
  )
  reevaluation_interval: int | None = flag(
    None,
    "Generations from one such second look to the next; by default there is "
    "one at the end alone.",
  )


def make_resampling(flags: NoiseFlags) -> Any:
  """Returns how often agents are evaluated again to get into the repertoire.

  Args:
    flags: of the launcher.

  Returns:
    A `map_elites.Resampling`, None for never.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import map_elites

  flags.check_choice("adding", _ADDING)
  if flags.adding == "once":
    flags.refuse_given(
      _OF_RESAMPLING, "--adding=once evaluates an agent once", "adding"
    )
    return None
  return map_elites.Resampling(flags.resampling_share, flags.resampling_depth)


def second_looks(flags: NoiseFlags) -> dict[str, Any]:
  """Returns what a `runs.RunConfig` says of elites that are evaluated again.

  Args:
    flags: of the launcher.

  Returns:
    Settings by name.

  Raises:
    ValueError: if one has no effect.
  """
  if not flags.num_reevaluations:
    flags.refuse_given(
      ["reevaluation_interval"],
      "--num_reevaluations=0 evaluates no elite again",
      "num_reevaluations",
    )
  return {
    "num_reevaluations": flags.num_reevaluations,
    "reevaluation_interval": flags.reevaluation_interval,
  }
