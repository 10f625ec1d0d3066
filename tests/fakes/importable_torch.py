"""A stand-in for torch as a wheel: it gives every name that is asked of it, so that what imports torch can be imported without two gigabytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.fakes.wheels import make_wheel

SOURCE = '''\
"""Stands in for torch where something only wants to import it: whatever is asked for is there, and does nothing."""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "@VERSION@"


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *arguments, **named):  # as a decorator it gives what it was given
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not named else cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())

    def __bool__(cls):
        return False

    def __lt__(cls, other):
        return False

    __gt__ = __le__ = __ge__ = __lt__


class Anything(metaclass=_Anything):
    pass


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torch.") else None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything
'''


def make_importable_torch(folder: Path, version: str, *, requires: Sequence[str] = ()) -> Path:
    """The wheel's path in `folder`."""
    return make_wheel(folder, "torch", version, requires=requires, files={"torch/__init__.py": SOURCE.replace("@VERSION@", version)})
