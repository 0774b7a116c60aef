"""Names the files of rows that a run writes, and their columns."""

FILES = (
  "metrics.jsonl",
  "pbt_lineage.jsonl",
  "pbt_members.jsonl",
  "skills.jsonl",
)
"""Files whose rows after the last checkpoint a resumed run drops."""

COLUMNS: dict[str, dict[str, type]] = {
  "metrics.jsonl": {"generation": int, "step": int},
  "pbt_members.jsonl": {
    "generation": int, "step": int, "member": int, "hyperparams": dict
  },
  "pbt_lineage.jsonl": {
    "generation": int, "step": int, "child": int, "parent": int,
    "operator": str, "new_hyperparams": dict,
  },
  "skills.jsonl": {"step": int, "member": int, "skill": list},
}  # fmt: skip
"""Types of the columns that readers need, by file."""
