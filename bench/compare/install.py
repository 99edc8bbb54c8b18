"""Fetch what is missing of the systems: `./scripts/compare --install`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compare.systems import kafka, nats, rocketmq
from compare.systems.base import JAVA_COMMAND, ROOT, System

PACKAGES: Mapping[str, tuple[str, ...]] = {"redis-server": ("redis-server",), "rabbitmq-server": ("rabbitmq-server",)}
"""Debian's packages by the program that is missing."""
POMS = ROOT / "bench" / "compare" / "java"


def install(systems: Iterable[System]) -> None:
    """Install what the systems need. What cannot be installed is reported, and the system is skipped later."""
    servers = {system.server.name for system in systems}
    if "Redis" in servers:
        install_packages("redis-server", ["redis-server"])
    if "RabbitMQ" in servers:
        install_packages("rabbitmq-server", ["rabbitmq-server"])
    if "NATS" in servers and nats.program() is None:
        build_nats()
    for name, jars in (("kafka", kafka.JARS), ("rocketmq", rocketmq.JARS)):
        if {"kafka": "Apache Kafka", "rocketmq": "Apache RocketMQ"}[name] in servers and not any(jars.glob("*.jar")):
            fetch_jars(name, jars)


def install_packages(program: str, packages: Sequence[str]) -> None:
    """Install packages of Debian. Their services are not started: the comparison runs servers of its own."""
    if shutil.which(program):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        say(f"{program} is not installed: run `apt-get install {' '.join(packages)}` as root")
        return
    call(["apt-get", "update", "-qq"])
    call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"})


def build_nats() -> None:
    if not shutil.which("go"):
        say("go is not in PATH: install Go, or the package nats-server")
        return
    call(["go", "install", f"{nats.MODULE}@{nats.VERSION}"], {"GOBIN": str(nats.BUILT.parent)})


def fetch_jars(name: str, jars: Path) -> None:
    if not shutil.which("mvn"):
        say(f"mvn is not in PATH: run `{JAVA_COMMAND}` as root")
        return
    command = ["mvn", "-q", "-B", "-f", str(POMS / name / "pom.xml"), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    call([*command, f"-DoutputDirectory={jars}"])


def call(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    say(" ".join(command))
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, stdout=sys.stderr, check=False)
    if done.returncode:
        say(f"{command[0]} ended with exit code {done.returncode}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
