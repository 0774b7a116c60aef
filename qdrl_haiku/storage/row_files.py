"""The files of rows that a run writes, and what their readers depend on."""

FILES = (
  "metrics.jsonl",
  "pbt_lineage.jsonl",
  "pbt_members.jsonl",
  "skills.jsonl",
)
"""The files of rows, of which a resumed run forgets what it does again."""

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
"""Columns on which readers depend, by file, and their types."""
