"""Installs the package, with its launchers as programs."""

import os
import pathlib
import re

import setuptools
from setuptools.command import sdist

_ROOT = pathlib.Path(__file__).parent
_VERSION = re.search(
  r'__version__ = "(.+)"', (_ROOT / "qdrl_haiku/__init__.py").read_text()
).group(1)
# Where the project is read; what builds a release knows it.
_HOME = os.environ.get("QDRL_HOME", "").rstrip("/")
_PROGRAMS = {
  "benchmark": "benchmark:benchmark_from_flags",
  "compare": "compare:compare_from_flags",
  "evaluate": "evaluate:evaluate_from_flags",
  "report": "report:report_from_flags",
  "train": "training:train_from_flags",
  "train-me-pbt": "training:train_me_pbt_from_flags",
  "train-pbt": "training:train_pbt_from_flags",
}


def _description() -> str:
  """Returns README.md, whose links also lead somewhere away from here."""
  branch = "main" if "dev" in _VERSION else f"v{_VERSION}"

  def link(found: re.Match[str]) -> str:
    is_picture, text, path = found.groups()
    if re.match(r"\w+:|#", path):
      return found.group()
    if not _HOME:
      return "" if is_picture else text
    kind = "raw" if is_picture else "blob"
    return f"{is_picture}[{text}]({_HOME}/{kind}/{branch}/{path})"

  text = re.sub(
    r"(!?)\[([^]]*)\]\(([^)\s]+)\)", link, (_ROOT / "README.md").read_text())
  # A table of pictures alone.
  return re.sub(r"^[| ]+\n[| -]+\n", "", text, flags=re.MULTILINE)


class _Sdist(sdist.sdist):
  """Leaves tests and pictures out."""

  def make_release_tree(self, base_dir: str, files: list[str]) -> None:
    super().make_release_tree(base_dir, [
      x for x in files if not x.startswith(("tests/", "launchers/pictures/"))])


setuptools.setup(
  name="qdrl_haiku",
  version=_VERSION,
  cmdclass={"sdist": _Sdist},
  description=(
    "Population-based and quality-diversity reinforcement learning in JAX"
  ),
  long_description=_description(),
  long_description_content_type="text/markdown",
  project_urls={
    "Source": _HOME, "Documentation": f"{_HOME}/blob/main/launchers/README.md",
    "Changes": f"{_HOME}/blob/main/CHANGELOG.md", "Issues": f"{_HOME}/issues",
  } if _HOME else {},
  license="Apache-2.0",
  license_files=["LICENSE"],
  keywords=[
    "reinforcement learning", "quality diversity", "population-based training",
    "MAP-Elites", "JAX",
  ],
  classifiers=[
    "Development Status :: 4 - Beta",
    "Intended Audience :: Science/Research",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
  ],
  packages=[
    *setuptools.find_packages(include=["qdrl_haiku", "qdrl_haiku.*"]),
    "qdrl_haiku.presets",
  ],
  # The flagfiles of the launchers, for --preset.
  package_dir={"qdrl_haiku.presets": "launchers/flagfiles"},
  entry_points={
    "console_scripts": [
      f"qdrl-{name}=qdrl_haiku.programs.cli.{function}"
      for name, function in _PROGRAMS.items()
    ]
  },
  package_data={
    "qdrl_haiku": ["py.typed"],
    "qdrl_haiku.presets": ["*.flags"],
    "qdrl_haiku.programs.reports": ["*.css", "*.js"],
  },
  python_requires=">=3.11",
  install_requires=[
    "absl-py",
    "brax>=0.14",
    "chex",
    "distrax",
    "dm-haiku",
    # Its CMA-ES, as it is from this version on.
    "evosax>=0.3.2,<0.4",
    # 0.10.2 computes wrong numbers on CPU: a vmapped matrix-vector product
    # that is then reduced (jax issue 39103). Below the next minor versions
    # after those tested: to raise a bound, install the new version, run all
    # tests (`.ci/run`), compare speed and time to the first update with the
    # benchmark (launchers/benchmark.py), and name the version in RESULTS.md.
    "jax>=0.10,!=0.10.2,<0.13",
    "jaxlib>=0.10,!=0.10.2,<0.13",
    "mujoco<4.1",
    "matplotlib",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "rlax",
    "scipy",
    "tensorboardX",
  ],
  extras_require={
    # ruff lays out signatures.
    "docs": ["mkdocs<2", "mkdocs-material", "mkdocstrings[python]", "ruff"],
    "gymnasium": ["gymnasium[mujoco]>=1.1"],
    # Whose step tells terminations from truncations.
    "gymnax": ["gymnax>=1.0"],
    "jumanji": ["jumanji>=1.1"],
    "lint": ["mypy", "ruff"],
    "notebooks": ["ipykernel", "pandas"],
    "onnx": ["jax2onnx", "onnxruntime"],
    "playground": ["playground"],
    "report": ["plotly"],
    # MuJoCo Warp is a part of mujoco-mjx, which leaves out what runs it.
    "warp": ["warp-lang>=1.19"],
    "test": [
      "gymnasium>=1.1",
      # On newer Pythons the newest jax is tested, which gymnax excludes and
      # jumanji wasn't made for.
      "gymnax>=1.0; python_version < '3.12'",
      "jumanji>=1.1; python_version < '3.12'",
      "hypothesis",
      "ipykernel",
      "nbclient",
      "nbformat",
      "pandas",
      "plotly",
      "pytest",
      "pytest-xdist",
      "selenium",
    ],
  },
)
