"""Trains agents from scratch with the schedule that PBT found for another.

python launchers/retrain_schedule.py --logdir=logs/my_run --num_seeds=4

Is it the schedule, or whose weights were inherited? All else is as in that run.
"""

from qdrl_haiku.cli import retrain_schedule

if __name__ == "__main__":
  retrain_schedule.run()
