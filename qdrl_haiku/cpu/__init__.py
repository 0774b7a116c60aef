"""Rewrites programs so that XLA is fast on CPUs; `QDRL_PLAIN=1` leaves them.

The rest of the package meets these hooks, each of which has its plain version
beside it:

- `noise.normal_noise`, `fusion.without_gradient_fusion` and
  `fusion.fuse_gradient_by_outputs`, in networks, policies and losses;
- `one_by_one_on_cpu` and `one_by_one_alone`, loops over members, not batches;
- `batching.rewrite_for_batching`, physics as one kernel (`small_operations`);
- `compiler_options.platform_compiler_options`, by how often a program runs.

`xla` says what of all this the installed XLA knows.
"""
