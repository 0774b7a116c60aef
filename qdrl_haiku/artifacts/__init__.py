"""Reads what a run left: agents, repertoires, schedules; exports policies."""

from qdrl_haiku.artifacts import export
from qdrl_haiku.artifacts.agents import read_agents, read_best
from qdrl_haiku.artifacts.evaluation import evaluate_agent, summarize_evaluation
from qdrl_haiku.artifacts.goals import goal_environment, reach_goals
from qdrl_haiku.artifacts.schedules import Schedule, play_back, read_schedule
