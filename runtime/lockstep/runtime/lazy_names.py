"""Names of a package that are imported when they are asked for (PEP 562): who needs one module does not load the others."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from lockstep.runtime.extras import with_advice


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: Its `__name__`.
        modules: Name → the module that has it.

    The function raises AttributeError for another name, and ModuleNotFoundError, which names the extra, if a dependency is missing.
    """

    def value_of(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            raise with_advice(error) from None
        setattr(sys.modules[package], name, value)  # so that the next use does not come here
        return value

    return value_of
