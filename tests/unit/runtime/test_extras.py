"""A dependency that is missing is named with the command that installs it."""

import re
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import lockstep.client
from lockstep.runtime import lazy_names
from lockstep.runtime.extras import EXTRA_OF, installation_advice, with_advice

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def absent(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(("module", "extra"), [("typer", "server"), ("prometheus_client.core", "server"), ("pyspark.sql", "spark")])
def test_advice_names_the_extra_that_has_the_module(module: str, extra: str) -> None:
    advice = installation_advice(absent(module))
    assert advice == f"{module.split('.')[0]} is not installed: it belongs to the extra [{extra}]; run: pip install 'lockstep-mq[{extra}]'"
    explained = with_advice(absent(module))
    assert (str(explained), explained.name) == (advice, module)


def test_other_missing_modules_keep_their_error() -> None:
    error = absent("lockstep_of_the_user")
    assert installation_advice(error) is None
    assert with_advice(error) is error


def test_extras_have_the_modules_of_the_project_file() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert "otel" in declared, "the module of opentelemetry-api is opentelemetry"
    for extra in ("server", "dashboard", "spark", "taskiq", "testing", "lz4", "zstd"):
        named = {re.split(r"[<>=\[]", dependency)[0].replace("-", "_") for dependency in declared[extra]} - {"lockstep_mq"}
        assert named == {module for module, home in EXTRA_OF.items() if home == extra}


@pytest.mark.parametrize(("package", "name", "module"), [("spark", "register", "pyspark"), ("testing", "simulate", "pytest")])
def test_packages_of_extras_name_what_they_lack(monkeypatch: pytest.MonkeyPatch, package: str, name: str, module: str) -> None:
    def missing(path: str) -> object:
        raise absent(module)

    home = import_module(f"lockstep.{package}")
    # lockstep.testing imports nothing of the runtime before it has to (test_plugin.py), so it has a function of its own.
    monkeypatch.setattr(home if package == "testing" else lazy_names, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'lockstep-mq\[{EXTRA_OF[module]}\]'"):
        vars(home)["__getattr__"](name)


def test_version_is_that_of_the_distribution() -> None:
    assert lockstep.client.__version__ == version("lockstep-mq")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vars(lockstep.client)["__getattr__"]("nothing")
