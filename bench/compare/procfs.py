"""Read the CPU time and the memory of processes from /proc (Linux)."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
US_PER_TICK = 1_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of some processes, in bytes."""

    resident: int
    anonymous: int
    """The part that is not mapped from a file."""


def cpu_us(pids: Iterable[int]) -> int:
    """Return the user and system CPU time that the processes have used, in µs. A process that has ended counts as 0."""
    return sum(_ticks(pid) for pid in pids) * US_PER_TICK


def memory(pids: Iterable[int]) -> Memory:
    """Return the resident memory of the processes."""
    resident = anonymous = 0
    for pid in pids:
        for line in _read(pid, "status").splitlines():
            name, _, value = line.partition(":")
            if name == "VmRSS":
                resident += int(value.split()[0]) * 1024
            elif name == "RssAnon":
                anonymous += int(value.split()[0]) * 1024
    return Memory(resident, anonymous)


def tree(roots: Iterable[int]) -> list[int]:
    """Return the processes and all their descendants, roots first."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop(0)
        if pid not in found:
            found.append(pid)
            waiting += children.get(pid, [])
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended. One that has ended exists until its parent has waited for it."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def _ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name of the program: state, parent, …"""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
