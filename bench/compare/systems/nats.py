"""NATS JetStream."""

import os
import shutil
import subprocess

from compare.children import Children, free_ports
from compare.systems.base import CACHE, Need, Server, System, needs_library, python_client

MODULE = "github.com/nats-io/nats-server/v2"
VERSION = "v2.12.2"
BUILT = CACHE / "bin" / "nats-server"


def program() -> str | None:
    return shutil.which("nats-server") or (str(BUILT) if os.access(BUILT, os.X_OK) else None)


def start(children: Children) -> str:
    (port,) = free_ports(1)
    command = [program() or "", "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", str(children.folder / "store")]
    children.start("nats-server", command, ready="Server is ready")
    return f"127.0.0.1:{port}"


def needs() -> list[Need]:
    return [] if program() else [Need("nats-server in PATH", f"go install {MODULE}@{VERSION}, or ./scripts/compare --install")]


def version() -> str:
    printed = subprocess.run([program() or "", "--version"], capture_output=True, text=True, check=True).stdout
    return printed.strip().rpartition("v")[2]


SERVER = Server("NATS", needs, start, version)
NATS = System(
    name="nats",
    label="NATS JetStream",
    server=SERVER,
    library="nats-py",
    durability="file storage: written to the operating system's cache before it is confirmed, synced every 2 min by default",
    counts={"one": 5_000, "tasks": 40_000, "pipeline": 60_000, "consume_batch": 80_000, "consume_one": 60_000, "e2e": 2_000},
    client=python_client("nats"),
    needs=needs_library("nats"),
)
