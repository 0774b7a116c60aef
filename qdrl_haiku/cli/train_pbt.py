"""Trains a population of agents and tunes it by population-based training.

python launchers/train_pbt.py --flagfile=launchers/flagfiles/quickstart.flags
"""

import dataclasses
from typing import Any

from qdrl_haiku.cli import (
  launch,
  learner_flags,
  pbt_flags,
  shared_flags,
  training_runs,
)
from qdrl_haiku.cli.flags import flag
from qdrl_haiku.cli.pbt_flags import ControllerFlags


@dataclasses.dataclass(frozen=True, kw_only=True)
class PBTFlags(ControllerFlags):
  """Say what the population is, and who is replaced."""

  population_size: int = flag(8, "Agents in the population.")
  burn_in_period: int = flag(
    0,
    "Environment steps before the first decision; until then only agents that "
    "have diverged are replaced.",
  )
  exploit: str = flag("truncation", "Or tournament, or none.")
  num_replaced: int | None = flag(
    None,
    "How many of the worst are replaced, but for who is as fit as the best.",
  )
  quantile_fraction: float = flag(
    0.25, "The share that --num_parents and --num_replaced are by default."
  )
  inherit_replay: bool = flag(
    False, "Whether a child gets its parent's replay buffer."
  )
  fitness_window: int = flag(
    1, "Fitness is the mean of so many evaluations."
  )


_WHERE_NOBODY_TAKES_OVER = {"exploit": "none", "controller": "random_search"}


def make_setup(flags: PBTFlags) -> tuple[Any, PBTFlags]:
  """Returns the population that the flags ask for.

  Args:
    flags: of the launcher.

  Returns:
    The `training.Setup`, and the flags with what they left open.

  Raises:
    ValueError: if a flag makes no sense.
  """
  from qdrl_haiku import training

  agent = shared_flags.make_agent(flags)
  controller = pbt_flags.make_controller(
    flags,
    pbt_flags.make_search_space(flags, agent.learner),
    pbt_flags.OF_CONTROLLERS,
    exploit=flags.exploit,
    quantile_fraction=flags.quantile_fraction,
    num_parents=flags.num_parents,
    num_replaced=flags.num_replaced,
  )
  if flags.exploit != "truncation":
    flags.refuse_given(
      ["quantile_fraction"], f"--exploit={flags.exploit} has no quantiles"
    )
  for name, value in _WHERE_NOBODY_TAKES_OVER.items():
    if getattr(flags, name) == value:
      flags.refuse_given(
        ["burn_in_period", "fitness_window", "inherit_replay"],
        f"with --{name}={value} nobody takes over",
        name,
      )
      # A preset may have said so, for the choices that it was made with.
      flags = dataclasses.replace(
        flags, burn_in_period=0, fitness_window=1, inherit_replay=False
      )
  if None not in (flags.num_parents, flags.num_replaced):
    flags.refuse_given(
      ["quantile_fraction"], "--num_parents and --num_replaced are given"
    )
  interval = shared_flags.interval(
    flags, flags.perturbation_interval, agent.learner
  )
  config = shared_flags.make_training_config(
    flags,
    agent,
    population_size=flags.population_size,
    perturbation_interval=interval,
    fitness_window=flags.fitness_window,
    burn_in_period=flags.burn_in_period,
    inherit_replay=flags.inherit_replay,
  )
  setup = training.Setup(
    env=agent.env,
    eval_env=agent.eval_env,
    learner=agent.learner,
    controller=controller,
    config=config,
    evaluate=agent.evaluate,
  )
  return setup, dataclasses.replace(flags, perturbation_interval=interval)


def main(flags: PBTFlags) -> None:
  """Trains the population that the flags ask for.

  Args:
    flags: of the launcher.
  """
  flags = launch.prepare(flags)
  setup, flags = make_setup(flags)
  training_runs.run_training(
    flags,
    setup,
    f"pbt_{learner_flags.learner_name(flags)}",
    [flags.seed],
    more_settings=pbt_flags.ranges(flags, setup.learner),
  )


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  launch.run_main(main, PBTFlags)
