"""Redis Streams."""

import shutil
import subprocess

from compare.children import Children, free_ports
from compare.systems.base import Need, Server, System, needs_library, needs_program, python_client


def start(children: Children) -> str:
    """No snapshots, and no rewrite of the append-only file: both would run while other systems are measured."""
    (port,) = free_ports(1)
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(children.folder),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "auto-aof-rewrite-percentage": "0",
        "daemonize": "no",
    }
    command = ["redis-server", *(part for name, value in options.items() for part in (f"--{name}", value))]
    children.start("redis-server", command, ready="Ready to accept connections")
    return f"127.0.0.1:{port}"


def needs() -> list[Need]:
    return needs_program("redis-server", "apt-get install redis-server")


def version() -> str:
    printed = subprocess.run([shutil.which("redis-server") or "", "--version"], capture_output=True, text=True, check=True).stdout
    return printed.partition("v=")[2].partition(" ")[0]


SERVER = Server("Redis", needs, start, version)
REDIS = System(
    name="redis",
    label="Redis Streams",
    server=SERVER,
    library="redis",
    durability="appendonly, everysec: written to the operating system's cache before it is confirmed, synced every second",
    counts={"one": 5_000, "tasks": 20_000, "pipeline": 100_000, "consume_batch": 200_000, "consume_one": 80_000, "e2e": 2_000},
    client=python_client("redis"),
    needs=needs_library("redis"),
    same={"batch": "pipeline"},
)
