"""Refuses combinations of libraries that are known to fail."""

import functools
import importlib.metadata
import importlib.util
import pathlib
import re

# From so many on rows at the end are wrong in jax issue 39103.
_NUM_ROWS = 32_769


def check_compatibility() -> None:
  """Refuses a jax that computes wrong numbers, and a stable tfp."""
  if importlib.metadata.version("jax") == "0.10.2":
    raise ImportError(
      "jax 0.10.2 computes wrong numbers on CPU (jax issue 39103); install "
      "another: pip install 'jax!=0.10.2' 'jaxlib!=0.10.2'")
  if _tensorflow_probability_suffix() == "":
    raise ImportError(
      "a stable tensorflow-probability has overwritten tfp-nightly, without "
      "which distrax and rlax don't import; run: pip uninstall -y "
      "tensorflow-probability && pip install --force-reinstall --no-deps "
      "tfp-nightly")


@functools.cache
def check_numeric_compatibility() -> None:
  """Refuses a jax that computes wrong numbers on CPUs, whatever its version.

  The sum of jax issue 39103 is computed once in a process. Not at import: jax
  looks for devices then, and the user may still have to choose them.
  """
  import jax

  found, expected = _last_square(), float(_NUM_ROWS - 1) ** 2
  if jax.default_backend() == "cpu" and found != expected:
    version = importlib.metadata.version("jaxlib")
    raise ImportError(
      f"jax {version} computes wrong numbers on CPU (as in jax issue 39103: "
      f"{found:.0f} instead of {expected:.0f}); install another: pip install "
      f"'jax!={version}' 'jaxlib!={version}'")


def _last_square() -> float:
  """Computes (n-1)^2 for n = 32,769, as the last of n rows of one program."""
  import jax
  import jax.numpy as jnp

  def squares() -> jax.Array:
    numbers = jnp.arange(_NUM_ROWS, dtype=jnp.float32)
    rows = jnp.pad(numbers[:, None], ((0, 0), (0, 2)))
    matrix = jax.lax.optimization_barrier(jnp.eye(3))
    return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(rows)

  # The caller may be tracing something else.
  with jax.ensure_compile_time_eval():
    return float(jax.jit(squares)()[-1])


def _tensorflow_probability_suffix() -> str | None:
  """Returns the suffix of the installed version: "dev" of nightly ones.

  It is read from the file, since the record of what was installed still names
  the package that was overwritten, and since importing it takes long.
  """
  spec = importlib.util.find_spec("tensorflow_probability")
  if spec is None or spec.origin is None:
    return None
  file = pathlib.Path(spec.origin).parent / "python" / "version.py"
  text = file.read_text() if file.exists() else ""
  found = re.search(r"^_VERSION_SUFFIX = '(.*)'", text, re.MULTILINE)
  return found.group(1) if found else None
