"""The settings of a whole run."""

import dataclasses
import importlib.util

from qdrl_haiku import checks
from qdrl_haiku.config import Settings, setting


@dataclasses.dataclass(frozen=True)
class RunConfig(Settings):
  """Says how long a run is, what it leaves behind, and how it goes on."""

  title = "Run"

  num_timesteps: int = setting(
    100_000,
    "Environment steps per agent in all. Where no members train, those of "
    "evaluations, each episode counted at full length, though it may end "
    "early.",
    low=1, high=2**53, needs="timesteps", may_change=True)
  num_generations: int | None = setting(
    None, "Generations, instead of --num_timesteps.",
    low=1, needs="repertoire", may_change=True)
  seed: int = setting(
    0,
    "Seed of all random numbers. Where agents are runs of their own, side by "
    "side, it is the first one's, and the others have the next numbers.",
    low=0, high=2**32 - 1)
  logdir: str | None = setting(
    None, "Directory of the run; by default a new one in logs/.",
    may_change=True)
  resume: bool = setting(
    False, "Goes on with the run in --logdir from its last checkpoint.",
    may_change=True)
  warm_start: str | None = setting(
    None, "Directory of another run whose agents this one begins with.",
    needs="members")
  checkpoint_interval: int | None = setting(
    None,
    "Generations from one checkpoint to the next; by default as many as keep "
    "checkpoints to about 5 % of the time.",
    low=1, may_change=True)
  max_checkpoints: int = setting(
    2, "How many checkpoints are kept, the latest ones.",
    low=1, may_change=True)
  checkpoint_replay: bool = setting(
    True,
    "Whether checkpoints hold the replay buffers; if not, a resumed run begins "
    "with empty ones.",
    offered=False, needs="members")
  on_divergence: str = setting(
    "restart",
    "When all agents have diverged: restart begins all of them anew; stop "
    "ends the run.",
    choices=("restart", "stop"), needs="members", may_change=True)
  repertoire_interval: int = setting(
    10,
    "Generations from one file and picture of the repertoire to the next; the "
    "last generation has them anyway.",
    low=1, offered=False, needs="repertoire", may_change=True)
  num_reevaluations: int = setting(
    2,
    "Episodes in which each elite is evaluated again when the run ends, to "
    "correct the repertoire's scores for lucky evaluations; 0 for none. Their "
    "steps aren't counted in total_env_steps.",
    low=0, needs="repertoire", may_change=True)
  reevaluation_interval: int | None = setting(
    None,
    "Generations from one such reevaluation to the next; by default there is "
    "one at the end alone.",
    low=1, offered=False, needs="repertoire", may_change=True)
  log_to: tuple[str, ...] = setting(
    ("tensorboard",),
    "Where metrics go beside metrics.jsonl and metrics.csv: tensorboard, wandb "
    "(offline without an account), or both; empty for nowhere.",
    choices=("tensorboard", "wandb"), may_change=True)
  picture_interval: int = setting(
    0,
    "Generations from one picture of the population's lineage, and of the "
    "repertoire, to the next, for the trackers that --log_to names; the last "
    "generation has them anyway; 0 for none.",
    low=0, needs="pictures", may_change=True)
  film: bool = setting(
    False,
    "Whether the run ends with a film of its best agent, "
    "plots/best_<step>.gif, for the trackers of --log_to too; it may take a "
    "minute.",
    may_change=True)
  dry_run: bool = setting(
    False, "Checks all settings, prints the memory needed, and ends.",
    may_change=True)

  def __post_init__(self) -> None:
    super().__post_init__()
    with checks.Refusals() as refusals:
      if "wandb" in self.log_to and not importlib.util.find_spec("wandb"):
        refusals.refuse(
          "log_to=wandb needs wandb; pip install wandb, or leave it out.")
      if self.picture_interval and not self.log_to:
        refusals.refuse(
          f"picture_interval={self.picture_interval} has no effect: log_to= "
          "names no tracker that shows pictures; give log_to=tensorboard, or "
          "leave it out.")
      if self.reevaluation_interval is not None and not self.num_reevaluations:
        refusals.refuse(
          f"reevaluation_interval={self.reevaluation_interval} has no effect: "
          "num_reevaluations=0 evaluates no elite again; leave it out.")
