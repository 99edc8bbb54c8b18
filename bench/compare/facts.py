"""What the figures depend on: the machine, the versions, the commit."""

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare.systems.base import ROOT, System


def facts(systems: Sequence[System]) -> dict[str, Any]:
    """Return the description of this machine and of the measured programs."""
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit(),
        "versions": {system.name: system.versions for system in systems},
        "durability": {system.name: system.durability for system in systems},
    }


def cpu_model(cpuinfo: str) -> str:
    """Return the processor's name from the text of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def commit() -> str:
    """Return the commit of the working tree, marked if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "?"
