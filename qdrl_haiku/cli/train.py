"""Trains one learner, or several seeds of it side by side.

python launchers/train.py --learner=sac --env_name=reacher --num_seeds=3
"""

from qdrl_haiku import experiment
from qdrl_haiku.cli import training


def run() -> None:
  """Starts this launcher with the arguments of the command line."""
  training.run(experiment.TRAIN, __doc__)
