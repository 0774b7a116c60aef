"""The settings of a whole run."""

import dataclasses
from collections.abc import Sequence

from qdrl_haiku.storage.kept import Kept


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """What a run is, beside what it trains.

  Attributes:
    logdir: the directory that it leaves behind.
    num_timesteps: environment steps per agent in all, a multiple of the
      interval of a generation; of MAP-Elites without members the most that
      there can be, if no episode ends early.
    seeds: one seed, from which the run's key is made; or one per member, which
      makes each member a run of its own.
    dry_run: whether to stop where everything is checked and the memory is
      planned, before anything is written or compiled.
    resume: whether to go on from the latest checkpoint in `logdir`.
    warm_start: directory of another run whose agents this one begins with, or
      None. It stays the same when the run is resumed, and isn't read then.
    use_tensorboard: whether to write TensorBoard events.
    checkpoint_interval: generations from one checkpoint to the next, >= 1;
      None for as many as keep checkpoints to about a twentieth of the time.
    max_checkpoints: how many checkpoints are kept, >= 1.
    checkpoint_replay: whether checkpoints hold the replay buffers. Without
      them a resumed run begins with empty ones, and isn't the run that it
      would have been.
    on_divergence: what is done when no member is finite: "restart" with new
      ones, or "stop".
    repertoire_interval: generations from one file and picture of the
      repertoire to the next, >= 1; the last generation has them anyway.
    num_reevaluations: how often each elite of a repertoire is evaluated again
      at the end; 0 for not at all, and never.
    reevaluation_interval: generations from one such second look to the next,
      >= 1, beside that at the end; None for that alone.
    kept: programs of earlier runs whose setup, devices and source were the
      same, and where those of this one are kept; None for no such thing.

  Raises:
    ValueError: if a setting is out of its range.
  """

  logdir: str
  num_timesteps: int
  seeds: Sequence[int] = (0,)
  dry_run: bool = False
  resume: bool = False
  warm_start: str | None = None
  use_tensorboard: bool = True
  checkpoint_interval: int | None = None
  max_checkpoints: int = 2
  checkpoint_replay: bool = True
  on_divergence: str = "restart"
  repertoire_interval: int = 10
  num_reevaluations: int = 2
  reevaluation_interval: int | None = None
  kept: Kept | None = None

  def __post_init__(self) -> None:
    for name in (
      "num_timesteps",
      "checkpoint_interval",
      "max_checkpoints",
      "repertoire_interval",
      "reevaluation_interval",
    ):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")
    if self.num_reevaluations < 0:
      raise ValueError(
        f"num_reevaluations must be at least 0, got {self.num_reevaluations}."
      )
    if self.on_divergence not in ("restart", "stop"):
      raise ValueError(
        f"on_divergence={self.on_divergence!r} is unknown; give 'restart' or "
        "'stop'."
      )
    seeds = self.seeds
    if isinstance(seeds, range):  # There may be too many to be looked at.
      seeds = (seeds[0], seeds[-1])
    for seed in seeds:
      if not 0 <= seed < 2**32:
        raise ValueError(
          f"seed must be at least 0 and below 2**32, got {seed}."
        )
