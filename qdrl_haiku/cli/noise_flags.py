"""The flags that say how far a repertoire trusts what it saw of an agent."""

import dataclasses
from typing import Any

from qdrl_haiku.cli.emitter_flags import EmitterFlags
from qdrl_haiku.cli.flags import flag

_ADDING = ("once", "adaptive")
_OF_RESAMPLING = ("resampling_share", "resampling_depth")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseFlags(EmitterFlags):
  """Say how often the agents of a repertoire are evaluated."""

  section = "Evaluation"

  adding: str = flag(
    "once",
    "Evaluation by which agents enter the repertoire: once, after they are "
    "made; or adaptive, for noisy environments, where the best are evaluated "
    "again and ranked by the means of their evaluations (Extract-ME).",
  )
  resampling_share: float = flag(
    0.25,
    "Share of a generation's evaluations that go to agents which were "
    "evaluated before, with --adding=adaptive; the number of new agents stays.",
  )
  resampling_depth: int = flag(
    4,
    "Number of the fittest agents that each cell keeps with --adding=adaptive.",
  )
  num_reevaluations: int = flag(
    2,
    "Number of times that each elite is evaluated again when a run ends, for "
    "corrected scores; 0 for none. These steps do not count in "
    "total_env_steps.",
  )
  reevaluation_interval: int | None = flag(
    None,
    "Generations from one reevaluation of all elites to the next; by default "
    "the only one is at the end.",
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
