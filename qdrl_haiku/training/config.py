"""The settings of a population's training, and what follows from them."""

import dataclasses
import fractions
import math
from typing import NamedTuple

from qdrl_haiku import checks, learners, map_elites
from qdrl_haiku.config import Settings, setting
from qdrl_haiku.training.curriculum import CurriculumConfig

# Transitions that an agent keeps by default, or more in a longer run.
_LEAST_REPLAY = 100_000


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Settings):
  """Says how a population is trained; every number is per agent.

  A step is one transition of one environment.
  """

  title = "Training"

  population_size: int = setting(
    1, "Agents in the population, or seeds side by side.", low=1,
    needs="population_size")
  num_envs: int = setting(
    8, "Environments in which each agent collects.", low=1, needs="members")
  perturbation_interval: int = setting(
    1000,
    "Environment steps per agent and generation: from one evaluation, and one "
    "decision of the controller, to the next; by default about a twentieth of "
    "--num_timesteps.",
    low=1, open=True, needs="members")
  # 25 divides round numbers of steps, so that they make whole rollouts.
  rollout_length: int = setting(
    25,
    "Steps of each environment in a rollout of an on-policy learner, ppo or "
    "pqn; the settings of replay are for the other learners.",
    low=1, needs="members")
  batch_size: int = setting(
    256, "Transitions per critic step.", low=1, needs="learning")
  # Below 1e-5 `_iteration` would round it to no critic step at all.
  grad_updates_per_step: float = setting(
    1.0, "Critic steps per environment step; may be a fraction.", low=1e-5,
    high=1e5, needs="replay updates")
  n_step: int = setting(
    1,
    "Steps over which rewards are summed before bootstrapping; fewer where the "
    "episode ends before.",
    low=1, needs="learning")
  replay_capacity: int | None = setting(
    None,
    "Transitions in each agent's replay buffer; by default as many as its "
    "steps, from 100,000 to 1,000,000; if those of all agents would take more "
    "than 2 GiB, fewer, but not less than 100,000.",
    low=1, needs="learning")
  min_replay_size: int = setting(
    1000, "Transitions in the replay buffer before learning starts.", low=1,
    needs="learning")
  random_shift: int = setting(
    0,
    "Pixels by which images from replay are shifted at random, at most, with "
    "their borders repeated, as DrQ does; 4 is usual for 84 x 84.",
    low=0, needs="replay updates")
  random_warm_up: bool = setting(
    True,
    "Whether actions are drawn uniformly until learning starts, instead of "
    "from the policy.",
    offered=False, needs="members")
  pool_size: int = setting(
    8,
    "Initial states drawn for each environment before a generation. Its "
    "episodes begin in one after the other, and in the first again after the "
    "last; 1 is enough where episodes last longer than a generation.",
    low=1, offered=False, needs="members")
  num_eval_episodes: int = setting(
    8,
    "Episodes per evaluation; by default 8, with discrete skills 2 per skill, "
    "with continuous skills 64.",
    low=1, open=True)
  coverage_cells: int | None = setting(
    None,
    "Cells along each of the descriptor's first two axes; eval/coverage counts "
    "the cells that evaluations visit. 0 takes unit squares of a robot's x and "
    "y. By default coverage is measured with skills only: of robots in unit "
    "squares, else in 20 cells per axis.",
    low=0, high=1000, needs="skills")
  fitness: str = setting(
    "episode_return", "Which score of an evaluation is a member's fitness.",
    flag="")
  fitness_window: int = setting(
    1, "Evaluations over which fitness is averaged.", low=1, needs="decisions")
  burn_in_period: int = setting(
    0,
    "Environment steps before the controller's first decision; until then only "
    "diverged agents are replaced.",
    low=0, needs="decisions")
  inherit_replay: bool = setting(
    False,
    "Whether a child gets its parent's replay buffer; otherwise it goes on "
    "with its own.",
    needs="replacement")
  curriculum: CurriculumConfig = CurriculumConfig()

  def __post_init__(self) -> None:
    super().__post_init__()
    with checks.Refusals() as refusals:
      for text, number in self._replay_needs():
        if number > self.capacity:
          refusals.refuse(
            f"{text} is more than replay_capacity={self.capacity}; lower the "
            "first or raise the second.")

  @property
  def capacity(self) -> int:
    """Transitions in each agent's replay buffer."""
    return self.replay_capacity or self.least_capacity

  @property
  def least_capacity(self) -> int:
    """The least capacity by default: 100,000, or what other settings need."""
    return max(_LEAST_REPLAY, *(number for _, number in self._replay_needs()))

  def _replay_needs(self) -> tuple[tuple[str, int], ...]:
    """Returns settings, and the transitions that a replay has to hold."""
    n, size = self.n_step, self.num_envs
    return (
      (f"min_replay_size={self.min_replay_size}", self.min_replay_size),
      (f"batch_size={self.batch_size}", self.batch_size),
      (f"n_step={n} times num_envs={size}", n * size))


TAUGHT = ("pga", "dcrl", "pgx", "qdpg")
"""The emitters with a critic that a repertoire's agents share."""


@dataclasses.dataclass(frozen=True)
class TeachingConfig(Settings):
  """Says how agents of a repertoire learn from a critic that they share."""

  title = "Emitters"

  num_critic_steps: int = setting(
    300,
    "Steps of each shared critic in each generation, with --emitter=pga, dcrl, "
    "pgx or qdpg.",
    low=1, needs="teaching")
  num_policy_steps: int = setting(
    100,
    "Steps of each offspring that follows a shared critic's gradient, with "
    "--emitter=pga, dcrl, pgx or qdpg.",
    low=1, needs="teaching")
  gradient_share: float | None = setting(
    None,
    "Share of the offspring that follows a gradient; by default 0.5 with "
    "--emitter=pga, pgx or ascii, 0.25 with dcrl, 0.65 with qdpg, half of it "
    "that of novelty.",
    low=0, high=1, needs="gradients")
  injection_share: float | None = setting(
    None,
    "Share of the offspring that are the shared critic's own policies; by "
    "default one agent of each critic with --emitter=pga, pgx and qdpg, 0.25 "
    "with dcrl. The rest are variations.",
    low=0, high=1, needs="teaching")
  offspring_learning_rate: float = setting(
    5e-3, "Adam's learning rate of the offspring that follow the gradient.",
    above=0, offered=False, needs="teaching")
  length_scale: float = setting(
    0.1,
    "L of `map_elites.dcrl_similarity`: the distance to the target at which "
    "rewards are weighted by 1/e, with descriptors scaled to [-1, 1].",
    above=0, offered=False, needs="targets")

  def counts(
    self, batch_size: int, gradient_share: float, injection_share: float
  ) -> tuple[int, int, int]:
    """Counts offspring that follow the gradient, are injected, and are varied.

    Args:
      batch_size: how many there are in all.
      gradient_share: in [0, 1], where the setting is None; above 0 it gives at
        least one.
      injection_share: as the other share.

    Raises:
      ValueError: if the shares are more than all.
    """
    if self.gradient_share is not None:
      gradient_share = self.gradient_share
    if self.injection_share is not None:
      injection_share = self.injection_share
    if gradient_share + injection_share > 1 + 1e-6:
      raise ValueError(
        f"gradient_share={gradient_share:g} and injection_share="
        f"{injection_share:g} are more than all; lower one of them, or give "
        "injection_share=0.")
    left, counts = batch_size, []
    for share in (gradient_share, injection_share):
      counts.append(min(max(round(share * batch_size), share > 0), left))
      left -= counts[-1]
    return counts[0], counts[1], left


@dataclasses.dataclass(frozen=True)
class CMAConfig(Settings):
  """Configures CMA-ES, which searches where a repertoire can be improved."""

  title = "Emitters"

  num_strategies: int = setting(
    1, "CMA-ES strategies, which share the offspring evenly.", low=1,
    offered=False, needs="cma")
  step_size: float = setting(
    0.3,
    "Step size with which CMA-ES begins around an elite, in units of the "
    "weights, with --emitter=cma.",
    above=0, offered=False, needs="cma")
  ranking: str = setting(
    "improvement",
    "By what CMA-ES ranks offspring, with --emitter=cma: improvement of the "
    "repertoire (with --container=soft this is CMA-MAE); optimizing, returns "
    "alone; or random_direction, of the descriptor, among those that improve "
    "it.",
    choices=tuple(map_elites.RANKINGS), flag="cma_ranking", needs="cma")

  def population_size(self, batch_size: int) -> int:
    """Returns how many of the offspring each strategy makes."""
    size, rest = divmod(batch_size, self.num_strategies)
    if rest or size < 2:
      raise ValueError(
        f"CMA-ES can't make {batch_size} offspring; give a multiple of "
        f"{self.num_strategies} that is at least {2 * self.num_strategies}, as "
        "variation_batch_size, or after cma where emitters have numbers.")
    return size


class Iterations(NamedTuple):
  """Divides a generation into equal iterations of collecting and learning."""

  num_iterations: int
  num_env_steps: int  # T, steps of each environment per iteration.
  num_updates: int  # Calls of `update` per iteration.


def training_iterations(
  config: TrainingConfig, learner: learners.Learner
) -> Iterations:
  """Cuts a generation into the shortest equal iterations that exist.

  An iteration is a rollout and one call of `learner.update`; with replay, the
  fewest steps of each environment for which a whole number of calls is due.
  """
  num_env_steps, num_updates = _iteration(config, learner)
  steps = num_env_steps * config.num_envs
  num_iterations, rest = divmod(config.perturbation_interval, steps)
  if rest:
    raise ValueError(
      f"perturbation_interval={config.perturbation_interval} must be a "
      f"multiple of {steps}: {_settings(config, learner)} make iterations of "
      f"{steps} steps. The nearest: "
      f"{nearest_interval_multiples(config.perturbation_interval, steps)}.")
  if learner.learns_from != "rollout" and steps > config.capacity:
    raise ValueError(
      f"replay_capacity={config.capacity} is less than the {steps} "
      "transitions that one iteration collects; raise it.")
  return Iterations(num_iterations, num_env_steps, num_updates)


def nearest_interval_multiples(number: int, unit: int) -> str:
  """Names the multiples of a unit around a number, for messages."""
  below = number // unit * unit
  return " or ".join(str(n) for n in (below, below + unit) if n > 0)


def training_iteration_steps(
  config: TrainingConfig, learner: learners.Learner
) -> int:
  """Returns an agent's environment steps in one iteration."""
  return _iteration(config, learner)[0] * config.num_envs


def default_training_interval(
  config: TrainingConfig, learner: learners.Learner, num_timesteps: int
) -> int:
  """Returns an interval that cuts a run into about twenty equal generations.

  `num_timesteps` are the run's environment steps per agent, of a `learner`
  trained as `config` says.

  Raises:
    ValueError: if no interval up to a 200th of them does.
  """
  steps = training_iteration_steps(config, learner)
  fitting = [n for n in range(1, 201) if num_timesteps % (n * steps) == 0]
  if not fitting:
    nearest = max(1, round(num_timesteps / (20 * steps))) * 20 * steps
    raise ValueError(
      f"num_timesteps={num_timesteps} can't be cut into equal generations of "
      f"whole iterations, which have {steps} steps with "
      f"{_settings(config, learner)}; {nearest} can. Or give "
      "perturbation_interval.")
  generations = min(fitting, key=lambda n: abs(math.log(n / 20)))
  return num_timesteps // generations


def _iteration(
  config: TrainingConfig, learner: learners.Learner
) -> tuple[int, int]:
  """Steps of each environment, and calls of update, of one iteration."""
  if learner.learns_from == "rollout":
    return config.rollout_length, 1
  rate = fractions.Fraction(config.grad_updates_per_step)
  rate = rate.limit_denominator(100_000) * config.num_envs
  calls_per_env_step = rate / learner.batches_per_update
  return calls_per_env_step.denominator, calls_per_env_step.numerator


def _settings(config: TrainingConfig, learner: learners.Learner) -> str:
  """Names what the length of an iteration follows from, for messages."""
  if learner.learns_from == "rollout":
    return (
      f"num_envs={config.num_envs} and rollout_length={config.rollout_length}")
  return (
    f"num_envs={config.num_envs} and grad_updates_per_step="
    f"{config.grad_updates_per_step} with {learner.batches_per_update} critic "
    "steps per update")
