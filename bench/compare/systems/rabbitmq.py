"""RabbitMQ with quorum queues."""

import os
import subprocess
from pathlib import Path

from compare.children import Children, free_ports
from compare.systems.base import Need, Server, System, needs_library, needs_program, python_client

PACKAGED = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's program in PATH changes to the user rabbitmq, who cannot write to our folder; this one is what it calls."""


def start(children: Children) -> str:
    """Everything that RabbitMQ keeps elsewhere by default (data, logs, cookie, names of nodes) is in the folder of this run."""
    folder = children.folder
    port, dist_port, epmd_port = free_ports(3)
    config, plugins = folder / "rabbitmq.conf", folder / "enabled_plugins"
    config.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.console = true\nlog.console.level = info\nlog.file = false\n")
    plugins.write_text("[].\n")
    environment = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "compare@localhost",
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        # Its script then replaces itself by the server, which so ends with this process, even if that is killed.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
    # Erlang would start this one as a daemon that outlives the server.
    children.start("epmd", ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"], environment)
    program = str(PACKAGED) if os.access(PACKAGED, os.X_OK) else "rabbitmq-server"
    children.start("rabbitmq-server", [program], environment, ready="Server startup complete")
    return f"127.0.0.1:{port}"


def needs() -> list[Need]:
    command = "apt-get install rabbitmq-server"
    return [*needs_program("rabbitmq-server", command), *needs_program("epmd", command)]


def version() -> str:
    for folder in Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"):
        return folder.name.rpartition("-")[2]
    done = subprocess.run(["rabbitmqctl", "version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().rpartition("\n")[2] or "?"


SERVER = Server("RabbitMQ", needs, start, version)
RABBITMQ = System(
    name="rabbitmq",
    label="RabbitMQ",
    server=SERVER,
    library="aio-pika",
    durability="a quorum queue on one node: written to its log and synced in groups before it is confirmed",
    counts={"one": 1_500, "tasks": 15_000, "pipeline": 15_000, "consume_batch": 20_000, "consume_one": 15_000, "e2e": 2_000},
    client=python_client("rabbitmq"),
    needs=needs_library("aio_pika"),
    removes=True,
)
