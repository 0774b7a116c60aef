"""The settings of a population's training, and what follows from them."""

import dataclasses
import fractions
import math
from typing import NamedTuple

LARGEST = 2**31 - 1
"""What an int32 holds: jax counts and indexes with those."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
  """How a population is trained; every number is per agent.

  A step is one transition of one environment.

  Attributes:
    population_size: P, >= 1.
    num_envs: E, environments, >= 1.
    perturbation_interval: steps per generation: what an agent collects between
      two evaluations, and so between two decisions of the controller.
    batch_size: B, transitions per critic step, >= 1.
    grad_updates_per_step: critic steps per step, > 0; may be a fraction.
    n_step: how many steps a transition that is learned from is over, >= 1:
      fewer where the episode ends before; see `training.n_step`.
    replay_capacity: transitions in the replay buffer.
    min_replay_size: transitions in the buffer before learning starts.
    random_warm_up: whether actions are drawn uniformly until learning starts,
      instead of from the policy.
    pool_size: I, initial states that are drawn for each environment before a
      generation, >= 1. Its episodes in the generation begin with one after the
      other, and with the first again after the last. One is enough where
      episodes last longer than a generation.
    num_eval_episodes: N, episodes per evaluation, >= 1.
    fitness: which score of an evaluation makes a member's fitness.
    fitness_window: fitness is the mean over so many evaluations, >= 1.
    burn_in_period: steps before the controller's first decision, >= 0; until
      then it replaces only members that aren't finite.
    inherit_replay: whether a child takes over its parent's replay buffer;
      otherwise it goes on with its own.
    replay_extras: names of the transitions' extras that are stored, and so in
      the batches that a learner's update gets: some of `truncation`,
      `descriptor`, `next_descriptor` and `skill`; see `types.Transition`.
    exact_placement: whether each member is computed by itself, so that the
      numbers don't depend on how many devices there are, to the last bit.
      Physics is slower then, and the replay is held twice. Without a mesh it
      has no effect.

  Raises:
    ValueError: if a setting is out of its range, or if two don't fit.
  """

  population_size: int = 1
  num_envs: int = 8
  perturbation_interval: int = 1000
  batch_size: int = 256
  grad_updates_per_step: float = 1.0
  n_step: int = 1
  replay_capacity: int = 100_000
  min_replay_size: int = 1000
  random_warm_up: bool = True
  pool_size: int = 8
  num_eval_episodes: int = 8
  fitness: str = "episode_return"
  fitness_window: int = 1
  burn_in_period: int = 0
  inherit_replay: bool = False
  replay_extras: tuple[str, ...] = ()
  exact_placement: bool = False

  def __post_init__(self) -> None:
    for name in (
      "population_size",
      "perturbation_interval",
      "batch_size",
      "n_step",
      "replay_capacity",
      "min_replay_size",
      "pool_size",
      "num_eval_episodes",
      "fitness_window",
    ):
      if getattr(self, name) < 1:
        raise ValueError(
          f"{name} must be at least 1, got {getattr(self, name)}."
        )
      if getattr(self, name) > LARGEST:
        raise ValueError(
          f"{name} must be at most {LARGEST}, got {getattr(self, name)}."
        )
    if not 0 <= self.burn_in_period <= LARGEST:
      raise ValueError(
        f"burn_in_period must be at least 0 and at most {LARGEST}, got "
        f"{self.burn_in_period}; 0 lets the controller decide from the first "
        "generation on."
      )
    _check_rate(self.num_envs, self.grad_updates_per_step)
    if self.min_replay_size > self.replay_capacity:
      raise ValueError(
        f"min_replay_size {self.min_replay_size} is more than replay_capacity "
        f"{self.replay_capacity}, so learning would never start; lower the "
        "first or raise the second."
      )
    if self.n_step > 1 and self.n_step * self.num_envs > self.replay_capacity:
      raise ValueError(
        f"replay_capacity {self.replay_capacity} doesn't hold n_step="
        f"{self.n_step} steps of each of {self.num_envs} environments; raise "
        "the first or lower the second."
      )
    if self.batch_size > self.replay_capacity:
      raise ValueError(
        f"batch_size {self.batch_size} is more than replay_capacity "
        f"{self.replay_capacity}; lower the first or raise the second."
      )


@dataclasses.dataclass(frozen=True)
class TeachingConfig:
  """How a repertoire's agents learn from a critic that all of them share.

  Attributes:
    num_critic_steps: of the critic in each generation, >= 1.
    num_policy_steps: of each offspring that follows its gradient, >= 1.
    gradient_share: of the offspring, those that do, in [0, 1]; None as the
      emitter has it.
    injection_share: of the offspring, those that are the critic's own policies,
      in [0, 1]; the rest are variations. None likewise.
    offspring_learning_rate: of the offspring that follow the gradient, > 0.
    length_scale: L of `map_elites.similarity`, > 0, where the descriptors'
      bounds are -1 and 1.

  Raises:
    ValueError: if a setting is out of its range.
  """

  num_critic_steps: int = 300
  num_policy_steps: int = 100
  gradient_share: float | None = None
  injection_share: float | None = None
  offspring_learning_rate: float = 5e-3
  length_scale: float = 0.1

  def __post_init__(self) -> None:
    for name in ("num_critic_steps", "num_policy_steps"):
      if not 1 <= getattr(self, name) <= LARGEST:
        raise ValueError(
          f"{name} must be at least 1 and at most {LARGEST}, got "
          f"{getattr(self, name)}."
        )
    for name in ("gradient_share", "injection_share"):
      if not 0 <= (getattr(self, name) or 0) <= 1:
        raise ValueError(
          f"{name} must be at least 0 and at most 1, got "
          f"{getattr(self, name)}."
        )
    for name in ("offspring_learning_rate", "length_scale"):
      if not 0 < getattr(self, name) < math.inf:
        raise ValueError(
          f"{name} must be finite and above 0, got {getattr(self, name)}."
        )

  def counts(
    self, batch_size: int, gradient_share: float, injection_share: float
  ) -> tuple[int, int, int]:
    """Divides offspring among the three ways to make them.

    Args:
      batch_size: B, >= 0.
      gradient_share: where this leaves it open.
      injection_share: likewise.

    Returns:
      How many follow the gradient, are injected, and are varied; of a share
      above 0 at least one, as far as there are enough.

    Raises:
      ValueError: if the shares are more than all.
    """
    if self.gradient_share is not None:
      gradient_share = self.gradient_share
    if self.injection_share is not None:
      injection_share = self.injection_share
    if gradient_share + injection_share > 1 + 1e-6:
      raise ValueError(
        f"gradient_share {gradient_share:g} and injection_share "
        f"{injection_share:g} are more than all; lower one of them."
      )
    left, counts = batch_size, []
    for share in (gradient_share, injection_share):
      counts.append(min(max(round(share * batch_size), share > 0), left))
      left -= counts[-1]
    return counts[0], counts[1], left


@dataclasses.dataclass(frozen=True)
class CMAConfig:
  """How CMA-ES searches where a repertoire can be improved.

  Attributes:
    num_strategies: that share the emitter's offspring evenly, >= 1.
    step_size: of each at first, > 0, in units of the weights.

  Raises:
    ValueError: if a setting is out of its range.
  """

  num_strategies: int = 1
  step_size: float = 0.3

  def __post_init__(self) -> None:
    if not 1 <= self.num_strategies <= LARGEST:
      raise ValueError(
        f"num_strategies must be at least 1 and at most {LARGEST}, got "
        f"{self.num_strategies}."
      )
    if not 0 < self.step_size < math.inf:
      raise ValueError(
        f"step_size must be finite and above 0, got {self.step_size}."
      )

  def population_size(self, batch_size: int) -> int:
    """Returns how many offspring each strategy makes.

    Args:
      batch_size: B, of all together.

    Raises:
      ValueError: if they can't share them evenly, two or more each.
    """
    size, rest = divmod(batch_size, self.num_strategies)
    if rest or size < 2:
      raise ValueError(
        f"num_strategies {self.num_strategies} can't share {batch_size} "
        "offspring evenly, two or more each; give a multiple."
      )
    return size


class Iterations(NamedTuple):
  """How a generation is cut into equal iterations of collecting and learning.

  Attributes:
    num_iterations: per generation.
    num_env_steps: T, steps of each environment per iteration.
    num_updates: calls of `learner.update` per iteration; each of them takes
      `batches_per_update` batches.
  """

  num_iterations: int
  num_env_steps: int
  num_updates: int


def iterations(config: TrainingConfig, batches_per_update: int) -> Iterations:
  """Cuts a generation into the shortest equal iterations that exist.

  An iteration steps each environment as few times as make a whole number of
  calls of `learner.update`.

  Args:
    config: the settings.
    batches_per_update: critic steps in one call of `learner.update`.

  Returns:
    The schedule.

  Raises:
    ValueError: if `perturbation_interval` isn't a whole number of iterations,
      or if the replay buffer can't take what one iteration collects.
  """
  num_env_steps, num_updates = _iteration(
    config.num_envs, config.grad_updates_per_step, batches_per_update
  )
  steps = num_env_steps * config.num_envs
  if config.perturbation_interval % steps:
    raise ValueError(
      f"perturbation_interval {config.perturbation_interval} must be a "
      f"multiple of {steps}: num_envs={config.num_envs} and "
      f"grad_updates_per_step={config.grad_updates_per_step} with "
      f"{batches_per_update} critic steps per update make iterations of "
      f"{steps} steps. The nearest: "
      f"{nearest_multiples(config.perturbation_interval, steps)}."
    )
  if steps > config.replay_capacity:
    raise ValueError(
      f"replay_capacity {config.replay_capacity} is less than the {steps} "
      "transitions that one iteration collects; raise it."
    )
  return Iterations(
    num_iterations=config.perturbation_interval // steps,
    num_env_steps=num_env_steps,
    num_updates=num_updates,
  )


def nearest_multiples(number: int, unit: int) -> str:
  """Words which multiples a number lies between, for messages.

  Args:
    number: no multiple of the unit.
    unit: >= 1.

  Returns:
    Such as "16 or 24"; without 0.
  """
  below = number // unit * unit
  return " or ".join(str(n) for n in (below, below + unit) if n > 0)


def iteration_steps(
  *, num_envs: int, grad_updates_per_step: float, batches_per_update: int
) -> int:
  """Returns the steps of one iteration, of which an interval is a multiple.

  Args:
    num_envs: E.
    grad_updates_per_step: critic steps per environment step.
    batches_per_update: critic steps in one call of `learner.update`.

  Returns:
    Environment steps per agent.

  Raises:
    ValueError: if a number is out of its range.
  """
  _check_rate(num_envs, grad_updates_per_step)
  num_env_steps, _ = _iteration(
    num_envs, grad_updates_per_step, batches_per_update
  )
  return num_env_steps * num_envs


def default_interval(
  num_timesteps: int,
  *,
  num_envs: int,
  grad_updates_per_step: float,
  batches_per_update: int,
) -> int:
  """Returns an interval that cuts a run into about twenty equal generations.

  Args:
    num_timesteps: environment steps per agent in all.
    num_envs: E.
    grad_updates_per_step: critic steps per environment step.
    batches_per_update: critic steps in one call of `learner.update`.

  Returns:
    Environment steps per agent and generation.

  Raises:
    ValueError: if a number is out of its range, or if no number of generations
      up to 200 cuts the run.
  """
  steps = iteration_steps(
    num_envs=num_envs,
    grad_updates_per_step=grad_updates_per_step,
    batches_per_update=batches_per_update,
  )
  fitting = [
    n for n in range(1, 201) if num_timesteps % (n * steps) == 0
  ]
  if num_timesteps < 1 or not fitting:
    nearest = max(1, round(num_timesteps / (20 * steps))) * 20 * steps
    raise ValueError(
      f"num_timesteps {num_timesteps} can't be cut into equal generations of "
      f"whole iterations, which have {steps} steps with num_envs={num_envs} "
      f"and grad_updates_per_step={grad_updates_per_step}; {nearest} can. Or "
      "give perturbation_interval."
    )
  generations = min(fitting, key=lambda n: abs(math.log(n / 20)))
  return num_timesteps // generations


def _check_rate(num_envs: int, grad_updates_per_step: float) -> None:
  """Refuses what makes no iteration."""
  if not 1 <= num_envs <= LARGEST:
    limit = "at least 1" if num_envs < 1 else f"at most {LARGEST}"
    raise ValueError(
      f"num_envs must be {limit}, got {num_envs}; 8 is common."
    )
  # Below that, `_iteration` would round it to no critic step at all.
  if not 1e-5 <= grad_updates_per_step <= 1e5:
    raise ValueError(
      f"grad_updates_per_step must be at least 1e-5 and at most 1e5, got "
      f"{grad_updates_per_step}; 1 is one critic step per environment step."
    )


def _iteration(
  num_envs: int, grad_updates_per_step: float, batches_per_update: int
) -> tuple[int, int]:
  """Steps of each environment, and calls of update, of one iteration."""
  rate = fractions.Fraction(grad_updates_per_step).limit_denominator(100_000)
  calls_per_env_step = rate * num_envs / batches_per_update
  return calls_per_env_step.denominator, calls_per_env_step.numerator
