"""Shows the package another system than Linux: a plugin, `-p tests.elsewhere`.

Of that system, QDRL_TESTS_SYSTEM (as `sys.platform` names it), the package's
modules see what it lacks; libraries, which have ways of their own, see Linux.
"""

import builtins
import os
import pathlib
import sys
import types
from typing import Any

_SYSTEM = os.environ["QDRL_TESTS_SYSTEM"]
_NO_MODULES, _NO_NAMES = {
  "darwin": ("", {"os": (
    "eventfd getrandom memfd_create sched_getaffinity sched_setaffinity")}),
  "win32": ("fcntl grp pwd resource termios", {
    "os": (
      "fork getegid geteuid getgid getuid killpg mkfifo nice posix_spawn "
      "sched_getaffinity setsid statvfs sysconf sysconf_names uname waitpid"),
    "signal": "SIGALRM SIGHUP SIGKILL SIGUSR1 SIGUSR2"})}[_SYSTEM]


class _Seen(types.ModuleType):
  """A module without some of its names."""

  def __init__(self, module: types.ModuleType, absent: str) -> None:
    vars(self).update(_module=module, _absent=absent.split())
    if module is sys:
      vars(self)["platform"] = _SYSTEM

  def __getattr__(self, name: str) -> Any:
    if name in self._absent:
      raise AttributeError(f"{self._module.__name__}.{name} on {_SYSTEM}")
    return getattr(self._module, name)

  def __setattr__(self, name: str, value: Any) -> None:
    setattr(self._module, name, value)


_SEEN = {
  name: _Seen(__import__(name), _NO_NAMES.get(name, ""))
  for name in ("os", "signal", "sys")}
_import = builtins.__import__


def _import_elsewhere(name: str, *args: Any, **kwargs: Any) -> Any:
  """Imports as there, for a module of the package."""
  importer = (args[0] or {}).get("__name__", "") if args else ""
  if importer.startswith("qdrl_haiku"):
    if name in _NO_MODULES.split():
      raise ModuleNotFoundError(f"No module named {name!r} on {_SYSTEM}")
    if name in _SEEN:
      return _SEEN[name]
  return _import(name, *args, **kwargs)


def _watch(event: str, args: tuple[Any, ...]) -> None:
  """Refuses the package what files can't be or do there."""
  if event not in ("open", "os.symlink"):
    return
  frame = sys._getframe(1)
  while frame and frame.f_globals.get("__name__", "").startswith("pathlib"):
    frame = frame.f_back
  caller = str(frame and frame.f_globals.get("__name__"))
  if not caller.startswith("qdrl_haiku"):
    return
  if str(args[0]).startswith(("/proc", "/sys")):
    raise FileNotFoundError(args[0])
  is_file = isinstance(args[0], (str, os.PathLike))
  if _SYSTEM == "win32" and (
    event == "os.symlink" or is_file and pathlib.Path(args[0]).is_dir()):
    raise PermissionError(args[0])


builtins.__import__ = _import_elsewhere
sys.addaudithook(_watch)
