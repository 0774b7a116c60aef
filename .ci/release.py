"""Builds the sdist, the wheel from it, and uses the latter as a stranger does.

python .ci/release.py PYTHON...

Each is an interpreter. For each there's a new environment, which has the wheel
and the interpreter's packages if jax is among them; pip installs the others. In
an empty folder a run is started, interrupted, resumed, evaluated, reported and
compared; then a notebook, without the wheel, installs it and is run. QDRL_HOME
is where the project is read, for links.
"""

import email
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

_ROOT = pathlib.Path(__file__).parents[1]
_HOME = "https://example.org/qdrl_haiku"
_NOTEBOOK = "launchers/notebooks/from_qdax.ipynb"  # The quickest one.
_SMALL = [
  "--population_size=2", "--hidden_layer_sizes=8,8", "--episode_length=50",
  "--num_eval_episodes=1", "--perturbation_interval=280"]
_COMMANDS = {
  "train-pbt --logdir=run --resume": "done: run",
  "evaluate --logdir=run --num_eval_episodes=2": '"mean"',
  "report --logdir=run": "wrote report.html",
  "compare --command='train --hidden_layer_sizes=8,8 --num_timesteps=400' "
  "--task='maze: --env_name=point_maze' --method='sac: --learner=sac' "
  "--method='td3: --learner=td3' --num_seeds=2 --output=compared": "compared"}


def _build(folder: pathlib.Path) -> pathlib.Path:
  """Builds both archives, and returns the wheel's path."""
  home = os.environ | {"QDRL_HOME": os.environ.get("QDRL_HOME", _HOME)}
  _call(
    [sys.executable, "setup.py", "-q", "sdist", "-d", folder], _ROOT, env=home)
  (sdist,) = folder.glob("*.tar.gz")
  _call(
    [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder,
     sdist], folder, env=home)
  (wheel,) = folder.glob("*.whl")
  with tarfile.open(sdist) as archive:
    names = archive.getnames()
  with zipfile.ZipFile(wheel) as archive:
    names += archive.namelist()
    (path,) = [x for x in names if x.endswith(".dist-info/METADATA")]
    told = email.message_from_bytes(archive.read(path))
  foreign = [x for x in names if re.search(r"/?tests/|\.(gif|png)$", x)]
  assert not foreign, foreign
  for kept in ("presets/quickstart.flags", "page.css", "page.js", "py.typed"):
    assert any(x.endswith(kept) for x in names), kept
  links = re.findall(r"\]\(([^)\s]+)\)", told.get_payload())
  assert all(re.match("https://|#", x) for x in links), links
  assert told.get_all("Project-URL"), "no links of the project"
  print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
  return wheel


def _call(
  command: list, folder: pathlib.Path, env: dict[str, str] | None = None
) -> str:
  """Runs a command that is to succeed, and returns what it printed."""
  done = subprocess.run(
    list(map(str, command)), cwd=folder, stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT, text=True, env=env)
  assert done.returncode == 0, f"{command}\n{done.stdout}"
  return done.stdout


def _install(python: str, wheel: pathlib.Path, folder: pathlib.Path) -> None:
  """Makes an environment that has the wheel."""
  began, path = time.time(), folder / "venv"
  _call([python, "-m", "venv", path], folder)
  probe = "import importlib.util as u, site; print(site.getsitepackages()[0]"
  shared = _call(
    [python, "-c", f"{probe} if u.find_spec('jax') else '')"], folder).strip()
  if shared:
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(shared)
  pip = [path / "bin/python", "-m", "pip", "install", "-q"]
  # And what isn't shared.
  _call([*pip, f"{wheel}[notebooks,report]", "nbclient"], folder)
  how = "with shared packages" if shared else "with all that it needs"
  print(f"{python}: installed in {time.time() - began:.0f} s, {how}")


def _environment(folder: pathlib.Path) -> dict[str, str]:
  """Returns what a program sees: no git, and nobody's settings."""
  return {
    "PATH": str(folder / "venv/bin"), "HOME": str(folder), "LANG": "C.UTF-8",
    "PYTHONWARNINGS": "ignore"}


def _use(folder: pathlib.Path) -> None:
  """Uses the installed programs in an empty folder."""
  bin_, empty, env = folder / "venv/bin", folder / "empty", _environment(folder)
  empty.mkdir()
  where = _call(
    [bin_ / "python", "-c", "import qdrl_haiku as q; print(q.__file__)"], empty,
    env=env)
  assert where.startswith(str(folder)), where
  train = [str(bin_ / "qdrl-train-pbt"), "--preset=quickstart", "--logdir=run"]
  with subprocess.Popen(
    [*train, *_SMALL, "--num_timesteps=1400"], cwd=empty, env=env, text=True,
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
    assert process.stdout is not None
    for line in process.stdout:
      if "generation 1/" in line:
        process.send_signal(signal.SIGINT)  # Ctrl-C.
      print("  " + line.rstrip(), flush=True)
  assert process.returncode == 75, process.returncode
  for command, expected in _COMMANDS.items():
    name, *flags = shlex.split(command)
    began = time.time()
    out = _call([bin_ / f"qdrl-{name}", *flags], empty, env=env)
    assert expected in out, out
    last = out.strip().splitlines()[-1][:100]
    print(f"  qdrl-{name}: {time.time() - began:.0f} s, {last}", flush=True)


def _run_notebook(folder: pathlib.Path, wheel: pathlib.Path) -> None:
  """Runs a notebook where the wheel is missing, in a folder without others."""
  python, place = folder / "venv/bin/python", folder / "notebook"
  place.mkdir()
  notebook = shutil.copy(_ROOT / _NOTEBOOK, place)
  _call([python, "-m", "pip", "uninstall", "-q", "-y", "qdrl_haiku"], folder)
  env = _environment(folder)
  # The notebook's pip, which a shell starts, finds this wheel alone, whatever
  # is among shared packages; what the wheel needs is there already.
  env |= {f"PIP_{x}": "1" for x in (
    "IGNORE_INSTALLED", "NO_DEPS", "NO_INDEX", "PRE")}
  env |= {
    "PATH": f"{env['PATH']}:{os.defpath}", "PIP_FIND_LINKS": str(wheel.parent)}
  began, run = time.time(), "from nbclient.cli import main; main()"
  _call([python, "-c", run, notebook], place, env=env)
  assert (place / "repertoire.npz").exists()
  print(f"  {_NOTEBOOK}: {time.time() - began:.0f} s", flush=True)


def main() -> None:
  """Builds once, and uses the wheel with each interpreter."""
  with tempfile.TemporaryDirectory() as built:
    wheel = _build(pathlib.Path(built))
    for python in sys.argv[1:] or [sys.executable]:
      with tempfile.TemporaryDirectory() as folder:
        _install(os.path.abspath(python), wheel, pathlib.Path(folder))
        _use(pathlib.Path(folder))
        _run_notebook(pathlib.Path(folder), wheel)


if __name__ == "__main__":
  main()
