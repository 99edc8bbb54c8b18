"""`lockstep.client` exports every class that its own documentation names."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import lockstep.client
import lockstep.protocol
from lockstep.protocol.errors import BrokerError

INTERNAL = {"BrokerNameTakenError", "ConsumerNotOnlineError", "DuplicateFrameError", "MemberTimeoutError", "RegistrationPendingError"}
"""Errors that a client's requests never get (some are for RocketMQ's tools), or that the SDK treats as success."""


def exported() -> dict[str, object]:
    return {name: getattr(lockstep.client, name) for name in lockstep.client.__all__}


def classes_of_the_sdk() -> set[str]:
    found = set()
    for package in (lockstep.client, lockstep.protocol):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("._native"):
                continue  # it has functions only, and does not load in a process of pure Python
            members = vars(importlib.import_module(module.name))
            found |= {name for name, value in members.items() if inspect.isclass(value) and value.__module__.startswith("lockstep.")}
    return found


def documentation(value: object) -> Iterator[str]:
    yield inspect.getdoc(value) or ""
    if inspect.isclass(value):
        yield from (inspect.getdoc(member) or "" for name, member in inspect.getmembers(value) if not name.startswith("_"))


def test_every_class_named_in_the_documentation_is_exported() -> None:
    named = {
        (word, name)
        for name, value in exported().items()
        if getattr(value, "__module__", "").startswith("lockstep.")
        for text in documentation(value)
        for word in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", text)
    }
    known = classes_of_the_sdk()
    missing = {f"{word}, named by {name}" for word, name in named if word in known and word not in lockstep.client.__all__}
    assert not missing


def test_every_broker_error_that_a_client_can_get_is_exported() -> None:
    refusals = {each.__name__ for each in BrokerError.__subclasses__() if each.__module__ == BrokerError.__module__}
    assert refusals - set(lockstep.client.__all__) == INTERNAL


def test_every_exported_class_and_function_has_a_docstring() -> None:
    undocumented = {
        name
        for name, value in exported().items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and (value.__doc__ or name).startswith(name)
    }
    assert not undocumented


def test_every_name_is_imported_from_the_module_that_type_checkers_read() -> None:
    """The imports under TYPE_CHECKING and the table of the module are the same."""
    tree = ast.parse(Path(lockstep.client.__file__).read_text())
    (block,) = (each for each in tree.body if isinstance(each, ast.If))
    checked = {name.name: each.module for each in block.body if isinstance(each, ast.ImportFrom) for name in each.names}
    assert checked == lockstep.client._MODULES
