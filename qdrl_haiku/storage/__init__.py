"""How a run is kept on a disk: its directory and its checkpoints."""
