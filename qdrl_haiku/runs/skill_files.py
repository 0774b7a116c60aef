"""Writes what a run knows of its agents' skills."""

import numpy as np

from qdrl_haiku import actors, environments
from qdrl_haiku.storage.directory import RunDirectory


def write_skill_files(
  directory: RunDirectory,
  generation: int,
  step: int,
  evaluation: actors.Evaluation,
  descriptor: environments.Descriptor | None,
) -> None:
  """Writes how each skill did, and where its episodes went.

  `skills.jsonl` gets a row for each member and skill, means over its episodes;
  `skills.npz` holds the latest episodes: `returns`, `lengths` [P, N], the
  trajectory of `skill_evaluation`, and the descriptor's `names`, `lower` and
  `upper` [D].
  """
  rows = []
  trajectory = evaluation.trajectory
  for member, skills in enumerate(trajectory["skill"]):
    for skill in np.unique(skills, axis=0):
      episodes = np.all(skills == skill, axis=1)
      rows.append(
        {
          "generation": generation,
          "step": step,
          "member": member,
          "skill": skill.tolist(),
          "return": float(np.mean(evaluation.returns[member, episodes])),
          "diversity_return": float(
            np.mean(trajectory["diversity_return"][member, episodes])
          ),
        }
      )
  directory.append("skills.jsonl", rows)
  axes = {} if descriptor is None else {
    name: np.array(getattr(descriptor, name))
    for name in ("names", "lower", "upper")
  }
  returns = {"returns": evaluation.returns, "lengths": evaluation.lengths}
  directory.write_arrays("skills.npz", trajectory | returns | axes)
