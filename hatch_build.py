"""The build hook: compiles the kernels of native/ with cargo, and puts the library into the wheel (ADR 27).

LOCKSTEP_NATIVE   effect
unset             without cargo, or if its build fails, the wheel is pure Python, and a line says why (`pip install -v` shows it)
require           that is an error
0                 cargo is not called
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "lockstep/protocol/_native.abi3.so"
CRATE = "lockstep_native"


class NotBuiltError(Exception):
    """The kernels are not built. The text gives the reason."""


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling finds the hook by its base class."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the kernels before a wheel. An editable one has them in the source root."""
        root = Path(self.root)
        in_sources = root / "protocol" / LIBRARY
        if version == "editable":
            in_sources.unlink(missing_ok=True)  # one of older sources
        try:
            library = build(root / "native")
        except NotBuiltError as error:
            if os.environ.get("LOCKSTEP_NATIVE") == "require":
                raise RuntimeError(f"LOCKSTEP_NATIVE=require, and the native kernels can't be built: {error}") from error
            self.app.display_warning(f"lockstep-mq is installed as pure Python, without its native kernels: {error}")
            return
        self.app.display_info(f"native kernels: {library}")
        if version == "editable":
            shutil.copyfile(library, in_sources.with_suffix(".new"))
            in_sources.with_suffix(".new").replace(in_sources)  # a process that has loaded the old one keeps it
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"][str(library)] = LIBRARY


def build(crate: Path) -> Path:
    """Build the crate and return the path of the library. Raise NotBuiltError if it can't be built here."""
    if os.environ.get("LOCKSTEP_NATIVE") == "0":
        raise NotBuiltError("LOCKSTEP_NATIVE is 0")
    if sys.platform != "linux" or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuiltError("they are for CPython with its lock, on Linux")
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NotBuiltError("there is no cargo on the PATH (Rust 1.85 or newer)")
    command = [cargo, "build", "--release", "--lib", "--message-format", "json-render-diagnostics", "--target-dir", str(crate / "target")]
    environment = {"CARGO_NET_RETRY": "1", **os.environ, "PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1"}
    done = subprocess.run(command, cwd=crate, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuiltError(f"cargo failed with exit code {done.returncode}:\n{done.stderr.strip()}")
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == CRATE:
            return Path(message["filenames"][0])
    raise NotBuiltError("cargo reported no library")
