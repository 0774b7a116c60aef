"""Imports users' functions by name, and advises on misspelt names."""

import difflib
import fnmatch
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any


def load_named_function(path: str) -> Callable:
  """Imports a user's function, "package.module:function".

  The module is looked up on `sys.path` and in the current working directory,
  see `search_names_in_working_directory`. A ValueError says why there is no
  function; errors of the module itself are raised as they are.
  """
  module_name, _, function_name = path.partition(":")
  if not all(module_name.split(".")) or not function_name.isidentifier():
    raise ValueError(
      f"{path!r} is no function; give it as 'package.module:function'.")
  directory = search_names_in_working_directory()
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    # A module that exists but fails to import another is the user's to see.
    if not f"{module_name}.".startswith(f"{error.name}."):
      raise
    raise ValueError(
      f"{path!r}: there is no module {error.name!r} on sys.path or in "
      f"{directory}; check the spelling, or set PYTHONPATH.") from error
  function = getattr(module, function_name, None)
  if not callable(function):
    candidates = [n for n, value in vars(module).items() if callable(value)]
    raise ValueError(
      f"{path!r}: {module_name} has no function {function_name!r}; "
      f"{nearest_name(function_name, candidates)}")
  return function


def import_extra(
  where: str, module: str, title: str = "", extra: str = ""
) -> Any:
  """Imports an extra's module, or says how to install it.

  Args:
    where: what needs it.
    module: of the extra.
    title: of what is missing, if it isn't `module`.
    extra: its name, if it isn't `module`.
  """
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as error:
    if error.name != module.partition(".")[0]:
      raise
    raise ValueError(
      f"{where} needs {title or module}; pip install "
      f"'qdrl_haiku[{extra or module}]'.") from error


def search_names_in_working_directory() -> str:
  """Appends the current working directory to `sys.path`, and returns it.

  It is looked into last, so that no file there replaces an installed package.
  """
  directory = os.getcwd()
  if directory not in sys.path:
    sys.path.append(directory)
  return directory


def nearest_name(name: str, known: Iterable[str]) -> str:
  """Returns advice for an unknown name.

  It's the known names that resemble it, capitals or not, or all if none does.
  """
  known = list(known)
  by_lower = {k.lower(): k for k in known}
  close = [
    by_lower[k] for k in difflib.get_close_matches(name.lower(), by_lower)]
  if close:
    return f"did you mean {' or '.join(map(repr, close))}?"
  return f"give one of {', '.join(known) or '(there is none)'}."


def is_of(one: str, name: str) -> bool:
  """Returns whether a name is the one, is of a glob, or is of all, ""."""
  return not one or (
    name != "" and (one == name or fnmatch.fnmatchcase(name, one)))
