"""What a system of the comparison consists of."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from compare.children import Children
from compare.plan import Subject

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".compare"
"""What `scripts/compare --install` fetches or builds besides packages of the operating system."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that is missing, and the command that installs it."""

    what: str
    command: str


@dataclass(frozen=True, slots=True)
class Server:
    """A server that one or more systems use."""

    name: str
    needs: Callable[[], list[Need]]
    start: Callable[[Children], str]
    """Starts the processes, waits until they are ready, and returns the address for clients."""
    version: Callable[[], str]


@dataclass(frozen=True, slots=True)
class System:
    """A client library with its server."""

    name: str
    label: str
    """The name in tables and in the picture."""
    server: Server
    library: str
    """The client library as its package is named."""
    durability: str
    counts: Mapping[str, int]
    client: Callable[[], list[str]]
    """The command of the client program."""
    needs: Callable[[], list[Need]] = list
    """What the client program needs."""
    same: Mapping[str, str] = field(default_factory=dict)
    removes: bool = False
    """Consuming removes the messages: every measurement that consumes fills a topic of its own."""
    warmup: float = 0.2
    """Messages before the measured ones, as a part of them."""
    e2e_warmup: int = 500
    """The same before the end-to-end latency is measured, in messages."""
    language: str = "Python"
    """What the client library is mainly written in."""
    library_version: Callable[[], str] | None = None

    @property
    def subject(self) -> Subject:
        return Subject(self.name, self.counts, self.same, self.name == "lockstep")

    @property
    def missing(self) -> list[Need]:
        return list(dict.fromkeys([*self.server.needs(), *self.needs()]))

    @property
    def versions(self) -> str:
        library = self.library_version() if self.library_version else version(self.library)
        return f"{self.server.name} {self.server.version()}, {self.library} {library}"


def python_client(name: str) -> Callable[[], list[str]]:
    """Return the command of a client program in Python."""
    return lambda: [sys.executable, "-m", f"compare.clients.{name}"]


def needs_library(module: str) -> Callable[[], list[Need]]:
    """Return the check that a Python library is installed."""

    def needs() -> list[Need]:
        if importlib.util.find_spec(module):
            return []
        return [Need(f"the Python library {module}", "./scripts/compare (without it no library is installed)")]

    return needs


def needs_program(program: str, command: str) -> list[Need]:
    return [] if shutil.which(program) else [Need(f"{program} in PATH", command)]


def class_path(jars: Path, *before: Path) -> str:
    """Return Java's class path of a folder of jars."""
    return ":".join(map(str, [*before, jars / "*"]))


def jar_version(jars: Path, artifact: str) -> str:
    """Return the version in the name of an artifact's jar."""
    found = sorted(jars.glob(f"{artifact}-[0-9]*.jar"))
    return found[0].stem.removeprefix(f"{artifact}-") if found else "?"


JAVA_PACKAGES = ("default-jdk-headless", "maven")
JAVA_COMMAND = f"apt-get install {' '.join(JAVA_PACKAGES)}"


def needs_java(jars: Path, *programs: str) -> list[Need]:
    """Return what is missing of Java and of a server's jars."""
    needed = [Need(f"{program} in PATH", JAVA_COMMAND) for program in programs if not shutil.which(program)]
    if not any(jars.glob("*.jar")):
        needed.append(Need(f"the jars in {jars.relative_to(ROOT)}", "./scripts/compare --install"))
    return needed


def names(systems: Sequence[System]) -> tuple[str, ...]:
    return tuple(system.name for system in systems)
