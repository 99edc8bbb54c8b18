"""lockstep.client.sync: threads, forks and Ctrl-C with a real broker."""

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.client import LocalProtocolError, Message, SendResult, SendStatus, TopicNotExistError
from lockstep.client.sync import Producer
from support.processes import LIMIT_S, Program, clean_environment, program, run_program
from support.secure_servers import secure_servers

pytestmark = pytest.mark.e2e

CLI = "lockstep.cli.main"


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Program]:
    with program(CLI, "up", "--port", "0", "--store", str(tmp_path / "store"), event="up.started") as laptop:
        where = str(laptop.started["nameserver"])
        assert run_program(CLI, "topic", "create", "orders", "--nameserver", where).returncode == 0
        yield laptop


def place(result: SendResult) -> tuple[int, int]:
    return result.queue.queue_id, result.queue_offset


def check_dense(places: Iterable[tuple[int, int]]) -> None:
    """Check that the places are the whole topic: nothing is missing, nothing else was stored."""
    queues = defaultdict(list)
    for queue_id, offset in places:
        queues[queue_id].append(offset)
    for offsets in queues.values():
        assert sorted(offsets) == list(range(len(offsets)))


def send_some(producer: Producer, count: int, threads: int = 4) -> list[tuple[int, int]]:
    """Send from several threads concurrently."""
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(lambda n: producer.send(Message("orders", b"%d" % n, sharding_key=str(n % 5))), range(count)))
    assert all(result.status is SendStatus.SEND_OK for result in results)
    return [place(result) for result in results]


def test_threads_share_a_producer_and_get_their_own_results_and_errors(laptop: Program) -> None:
    where = laptop.started["nameserver"]
    with Producer("shop", nameserver=where, auto_create_topics=False) as producer:
        places = send_some(producer, 400, threads=8)
        places += [place(result) for result in producer.send_batch([Message("orders", b"b")] * 50)]
        with pytest.raises(TopicNotExistError):
            producer.send(Message("elsewhere", b"x"))
        with pytest.raises(LocalProtocolError):
            producer.send(Message("orders", b"x", sharding_key="k"), selector=lambda queues, _: queues[0])
        check_dense(places)
        producer.send_oneway(Message("orders", b"lost or not"))
    shown = json.loads(run_program(CLI, "topic", "show", "orders", "--json", "--nameserver", where).stdout)
    assert sum(queue["max_offset"] - queue["min_offset"] for queue in shown["queues"]) == 451, "the one-way send was written before the end"


@pytest.mark.parametrize("started", [False, True])
def test_forked_children_send_with_their_own_producer(laptop: Program, started: bool) -> None:
    """As gunicorn's workers do when the application was loaded before they were made."""
    check_forked_children(str(laptop.started["nameserver"]), started)


def test_forked_children_send_with_connections_of_their_own_by_tls(tmp_path: Path) -> None:
    with secure_servers(tmp_path) as nameserver:
        check_forked_children(nameserver, started=True)


def check_forked_children(nameserver: str, started: bool) -> None:
    producer = Producer("shop", nameserver=nameserver)
    places = send_some(producer, 20) if started else []
    pipes, children = [], []
    for _ in range(2):
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.write(into, json.dumps(send_some(producer, 50)).encode())
                producer.close()
                code = 0
            finally:
                os._exit(code)
        os.close(into)
        pipes.append(out)
        children.append(child)
    places += send_some(producer, 50)
    for out in pipes:
        with os.fdopen(out, "rb") as reported:
            places += [tuple(each) for each in json.loads(reported.read())]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    places += send_some(producer, 20)
    producer.close()
    check_dense(places)


WAITING = """
import signal, sys, threading
from lockstep.client import Message
from lockstep.client.sync import Producer

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with SIGINT ignored
producer = Producer("shop", nameserver=sys.argv[1])
producer.send(Message("orders", b"x", sharding_key="k"))
print("sent", flush=True)
sys.stdin.readline()

def tell():
    while not producer.in_flight_count:
        pass
    print("waiting", flush=True)

threading.Thread(target=tell, daemon=True).start()
producer.send(Message("orders", b"x", sharding_key="k"), timeout_ms=3_600_000)
"""


def test_ctrl_c_ends_a_program_whose_broker_does_not_respond(laptop: Program) -> None:
    command = [sys.executable, "-c", WAITING, laptop.started["nameserver"]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        laptop.process.send_signal(signal.SIGSTOP)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            laptop.process.send_signal(signal.SIGCONT)
    assert "KeyboardInterrupt" in said
    assert process.returncode == -signal.SIGINT
