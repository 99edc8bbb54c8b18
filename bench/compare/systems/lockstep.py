"""lockstep: a nameserver and a broker."""

import sys
from importlib.metadata import version

from compare.children import Children, free_ports
from compare.systems.base import Server, System, python_client


def start(children: Children) -> str:
    nameserver, broker = (f"127.0.0.1:{port}" for port in free_ports(2))
    python = [sys.executable, "-m"]
    children.start("nameserver", [*python, "lockstep.nameserver", "--listen", nameserver], ready="nameserver.started")
    store = str(children.folder / "store")
    options = ["--listen", broker, "--nameserver", nameserver, "--store", store, "--auto-create-topics"]
    children.start("broker", [*python, "lockstep.broker", *options], ready="broker.started")
    return nameserver


SERVER = Server("lockstep", list, start, lambda: version("lockstep-mq"))
LOCKSTEP = System(
    name="lockstep",
    label="lockstep",
    server=SERVER,
    library="lockstep-mq",
    durability="written to the operating system's cache before it is confirmed, synced within 500 ms",
    counts={
        "one": 4_000,
        "tasks": 150_000,
        "tasks_keyed": 120_000,
        "pipeline": 150_000,
        "batch": 300_000,
        "consume_batch_ordered": 500_000,
        "consume_batch_concurrent": 400_000,
        "consume_batch_poll": 400_000,
        "consume_one_concurrent": 150_000,
        "consume_one_iterate": 150_000,
        "ordered_one": 200_000,
        "e2e": 2_000,
    },
    client=python_client("lockstep"),
)
