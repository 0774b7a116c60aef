"""Rewrites programs so that XLA is fast on CPUs; `QDRL_PLAIN=1` leaves them.

The rest of the package meets these hooks, each of which has its plain version
beside it:

- `noise.normal`, `fusion.gradient_apart` and `fusion.gradient_by_outputs`, in
  networks, policies and losses;
- `one_by_one.on_cpu` and `alone`, loops over members instead of batches;
- `batching.of_batch`, physics as one kernel (`small_operations` rewrites it);
- `compiler_options.of_mesh`, by how often a program runs.

`xla` says what of all this the installed XLA knows.
"""
