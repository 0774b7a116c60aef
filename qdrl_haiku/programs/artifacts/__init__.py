"""Reads what a run left: agents, repertoires, schedules; exports policies."""

from qdrl_haiku.programs.artifacts import export
from qdrl_haiku.programs.artifacts.agents import read_agents, read_best
from qdrl_haiku.programs.artifacts.evaluation import (
    evaluate_agent,
    mean_intervals,
    summarize_evaluation,
)
from qdrl_haiku.programs.artifacts.goals import goal_environment, reach_goals
from qdrl_haiku.programs.artifacts.schedules import (
    Schedule,
    play_back,
    read_schedule,
)
