"""Domain randomisation: physics and sensing that differ between episodes."""

from qdrl_haiku.environments.randomizing.randomization import (
  drawn_values,
  is_factor,
  randomized,
)
