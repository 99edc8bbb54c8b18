"""Fetch what is missing of the systems: `./scripts/compare --install`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from compare.systems import kafka, nats, rabbitmq, redis, rocketmq
from compare.systems.base import JAVA_PACKAGES, ROOT, System

POMS = ROOT / "bench" / "compare" / "java"


def install(systems: Iterable[System]) -> None:
    """Install what the systems need. What cannot be installed is reported, and the system is skipped later."""
    for server in dict.fromkeys(system.server for system in systems):
        if server.needs():
            INSTALL[server.name]()


def install_packages(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install packages of Debian, unless the programs are there. RUNLEVEL 1 asks apt not to start their services."""
    if all(map(shutil.which, programs)):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        say(f"{' or '.join(programs)} is not installed: run `apt-get install {' '.join(packages)}` as root")
        return
    call(["apt-get", "update", "-qq"])
    call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"})


def install_nats() -> None:
    """Build the server with Go, or install Debian's package, which is older."""
    if shutil.which("go"):
        call(["go", "install", f"{nats.MODULE}@{nats.VERSION}"], {"GOBIN": str(nats.BUILT.parent)})
    else:
        install_packages(["nats-server"], ["nats-server"])


def fetch_jars(name: str, jars: Path) -> None:
    """Let Maven copy a server's jars."""
    install_packages(["java", "javac", "mvn"], JAVA_PACKAGES)
    if shutil.which("mvn"):
        command = ["mvn", "-q", "-B", "-f", str(POMS / name / "pom.xml"), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        call([*command, f"-DoutputDirectory={jars}"])


INSTALL: Mapping[str, Callable[[], None]] = {
    redis.SERVER.name: lambda: install_packages(["redis-server"], ["redis-server"]),
    rabbitmq.SERVER.name: lambda: install_packages(["rabbitmq-server"], ["rabbitmq-server"]),
    nats.SERVER.name: install_nats,
    kafka.SERVER.name: lambda: fetch_jars("kafka", kafka.JARS),
    rocketmq.SERVER.name: lambda: fetch_jars("rocketmq", rocketmq.JARS),
}


def call(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    say(" ".join(command))
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, stdout=sys.stderr, check=False)
    if done.returncode:
        say(f"{command[0]} ended with exit code {done.returncode}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
