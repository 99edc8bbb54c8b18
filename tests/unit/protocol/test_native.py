"""The choice between the compiled kernels and the Python forms, in processes of their own."""

import os
import subprocess
import sys

import pytest

from lockstep.protocol.native import implementation
from support.kernels import needs_kernels

PRINT = "from lockstep.protocol.native import implementation; print(implementation())"


def printed(program: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_PURE_PYTHON"}
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**inherited, "PYTHONPATH": path, **environment}).stdout


@needs_kernels
@pytest.mark.parametrize("value", ["", "0"])
def test_kernels_run_if_they_are_built_and_not_switched_off(value: str) -> None:
    assert printed(PRINT, LOCKSTEP_PURE_PYTHON=value) == "native kernels\n"


@needs_kernels
def test_variable_switches_the_kernels_off() -> None:
    assert printed(PRINT, LOCKSTEP_PURE_PYTHON="1") == "pure Python: LOCKSTEP_PURE_PYTHON is set\n"


def test_without_the_library_the_python_forms_run() -> None:
    missing = f"import sys; sys.modules['lockstep.protocol._native'] = None; {PRINT}"
    assert printed(missing) == "pure Python: the kernels were not built at the installation\n"


def test_library_of_other_sources_is_not_used() -> None:
    other = (
        "import sys, types, lockstep.protocol; other = types.ModuleType('lockstep.protocol._native'); other.INTERFACE = 0; "
        f"sys.modules[other.__name__] = other; {PRINT}"
    )
    assert printed(other) == "pure Python: the kernels were built from other sources, install lockstep-mq again\n"


def test_this_process_says_which_form_runs() -> None:
    assert implementation() == "native kernels" or implementation().startswith("pure Python: ")
