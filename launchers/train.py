"""Trains one learner, or several seeds of it side by side.

python launchers/train.py --learner=sac --env_name=reacher --num_seeds=3
"""

from qdrl_haiku.cli import training

if __name__ == "__main__":
  training.train_from_flags()
