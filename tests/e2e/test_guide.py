"""docs/guide.md: every block is run as by a reader and prints what the page shows; its tables are compared with the code."""

import inspect
import json
import re
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from enum import Enum
from pathlib import Path

import pytest

import lockstep.client
from lockstep.broker.config import BrokerConfig
from lockstep.client import OrderedRetry, Producer, PullConsumer, PushConsumer
from support.page_commands import LIMIT_S, Newcomer, blocks
from support.ports import is_free

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
HEALTH_PORT = 8080

Process = subprocess.Popen[str]


def lines(process: Process, count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def rest(process: Process) -> list[str]:
    """Return the rest of the output of a program that ends."""
    assert process.stdout is not None
    found = process.stdout.read().splitlines()
    assert process.wait(LIMIT_S) == 0
    return found


def sent(_: Newcomer, process: Process) -> None:
    printed = [line.split() for line in rest(process)]
    assert [status for status, _, _ in printed] == ["SEND_OK"] * 6
    assert len({queue for _, queue, _ in printed[:3]}) == len({queue for _, queue, _ in printed[3:]}) == 1, "each key has one queue"


def reminded(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["SEND_OK", "recalled"]


def sold(reader: Newcomer, process: Process) -> None:
    assert rest(process) == ["COMMIT 0"]
    with closing(sqlite3.connect(reader.folder / "shop.db")) as db:
        assert db.execute("SELECT item FROM sales").fetchall() == [("a book",)]


def shipped(_: Newcomer, process: Process) -> None:
    printed = lines(process, 4)
    for order in ("1001", "1002"):
        assert [line for line in printed if line.startswith(order)] == [f"{order} {step} {order} {step}" for step in ("paid", "shipped")]


def charged(_: Newcomer, process: Process) -> None:
    printed = Counter(lines(process, 6))
    assert printed == Counter(f"{order} attempt {attempt}" for order in ("1001", "1002") for attempt in range(3))


def billed(_: Newcomer, process: Process) -> None:
    printed = lines(process, 6)
    for order in ("1001", "1002"):
        mine = [line for line in printed if f" {order} " in line]
        assert mine == [f"billed {order} {step}" for step in ("created", "paid", "shipped")]


def invoiced(_: Newcomer, process: Process) -> None:
    parked = "parked 1002 after 3 attempts: ValueError: customer 1002 has no address"
    assert sorted(lines(process, 4)) == ["invoiced 1001 created", "invoiced 1001 paid", "invoiced 1001 shipped", parked]


def mailed(_: Newcomer, process: Process) -> None:
    printed = [
        f"{order} {step} after retries: {int(step == 'paid')}" for order in ("1001", "1002") for step in ("created", "paid", "shipped")
    ]
    assert sorted(lines(process, 6)) == printed


def forgotten(reader: Newcomer, process: Process) -> None:
    assert sorted(lines(process, 2)) == ["forget 1001", "forget 1002"]
    assert (reader.folder / "offsets" / "caches" / "cache-1" / "offsets.json").exists()


def reported(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["shipped: 1001, 1002", "audited: 6"]


def archived(_: Newcomer, process: Process) -> None:
    assert sorted(lines(process, 2)) == [f"written: {order} created, {order} paid, {order} shipped" for order in ("1001", "1002")]


def booked(reader: Newcomer, process: Process) -> None:
    printed = lines(process, 6)
    assert sorted(printed) == [f"booked {order} {step}" for order in ("1001", "1002") for step in ("created", "paid", "shipped")]
    with closing(sqlite3.connect(reader.folder / "orders.db", timeout=LIMIT_S)) as db:
        db.execute("BEGIN IMMEDIATE")  # waits for the transaction that has just reported
        orders = db.execute("SELECT * FROM orders ORDER BY id").fetchall()
        db.execute("UPDATE lockstep_inbox SET epoch = epoch + 1")
        db.commit()
        assert orders == [("1001", "shipped"), ("1002", "shipped")]
        reader.types("lockstep send orders late --tag created --sharding-key 1001")
        while "has been written under a later epoch" not in reader.types("lockstep group show booking --json"):
            assert process.poll() is None
        assert db.execute("SELECT * FROM orders ORDER BY id").fetchall() == orders
        db.execute("UPDATE lockstep_inbox SET epoch = epoch - 1, next_offset = next_offset + 1")
        db.commit()
    while json.loads(reader.types("lockstep group show booking --json"))["lag"]:
        pass
    with closing(sqlite3.connect(reader.folder / "orders.db")) as db:
        assert db.execute("SELECT * FROM orders ORDER BY id").fetchall() == orders, "what has taken effect is passed over"


def checked_out(reader: Newcomer, process: Process) -> None:
    assert rest(process) == ["stored 1"]
    with closing(sqlite3.connect(reader.folder / "shop.db")) as db:
        assert db.execute("SELECT number FROM placed").fetchall() == [("1003",)]


def watched(reader: Newcomer, process: Process) -> None:
    printed = [line.split() for line in lines(process, 4)]
    assert sorted((queue, offset) for _, queue, _, offset in printed) == [(f"orders@broker-a:{number}", "0") for number in range(4)]
    port = int(re.findall(r'"127.0.0.1", (\d+)\)', (reader.folder / "watched.py").read_text())[0])
    assert status_of(port, "livez") == 200
    while status_of(port, "readyz") != 200:  # its start is not quite over when the queues are assigned
        assert process.poll() is None


def status_of(port: int, page: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=LIMIT_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def counted(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["shipped: 1001, 1002"]


def quoted(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["187.3 USD"]


def placed(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["1003 SEND_OK"]


def priced(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["sent 4"]


def filtered(_: Newcomer, process: Process) -> None:
    assert lines(process, 2) == ["150 eu", "200.5 uk"]


def traced(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["sent 1 error None", "trace t-1", "succeeded True"]


def observed(_: Newcomer, process: Process) -> None:
    assert rest(process) == ["['process traces', 'request', 'send traces']"]


PROGRAMS: dict[str, Callable[[Newcomer, Process], None]] = {
    "send.py": sent,
    "remind.py": reminded,
    "transactions.py": sold,
    "shipping.py": shipped,
    "priced.py": priced,
    "expensive.py": filtered,
    "charge.py": charged,
    "bill.py": billed,
    "invoice.py": invoiced,
    "mail.py": mailed,
    "caches.py": forgotten,
    "report.py": reported,
    "manual.py": archived,
    "book.py": booked,
    "checkout.py": checked_out,
    "watched.py": watched,
    "job.py": counted,
    "quotes.py": quoted,
    "web.py": placed,
    "traced.py": traced,
    "observed.py": observed,
}


@pytest.mark.e2e
def test_every_block_of_the_guide_runs_as_described(tmp_path: Path) -> None:
    reader = Newcomer(tmp_path)
    reader.use_this_environment()
    reader.environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{reader.environment['PATH']}"
    health_port = next(port for port in range(HEALTH_PORT, 60_000, 7) if is_free(port))
    ran = []
    with ExitStack() as stack:
        for block in blocks(GUIDE):
            if block.language == "python":
                name = re.findall(r"[Aa]s `(\w+\.py)`", block.before)[-1]
                (tmp_path / name).write_text(reader.here(block.text).replace(str(HEALTH_PORT), str(health_port)))
                continue
            assert block.language == "console"
            for command in block.commands:
                program, what, *_ = command.split()
                if program == "python":
                    with reader.terminal(command) as process:
                        PROGRAMS[what](reader, process)
                    assert process.returncode == 0, "Ctrl-C is an ordered end"
                    ran.append(what)
                elif what == "up":
                    laptop = stack.enter_context(reader.terminal(command))
                    assert laptop.stdout is not None
                    assert next(line for line in laptop.stdout if '"up.started"' in line)
                else:
                    reader.types(command)
        for command in re.findall(r"`(lockstep (?:group|cluster)[\w ]*)`", GUIDE):
            reader.types(command)
    assert ran == list(PROGRAMS)


def rows(after: str) -> list[list[str]]:
    """Return the cells of the first table after this text."""
    table = re.search(r"\|[-|]+\|\n((?:\|.*\n)+)", GUIDE.split(after, 1)[1])
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()]


@pytest.mark.parametrize("user", [PushConsumer, PullConsumer, Producer])
def test_documented_settings_have_the_documented_defaults(user: type) -> None:
    known = inspect.signature(user).parameters
    for name, default, _ in rows(f"Keywords of `{user.__name__}`"):
        value = known[name.strip("` ")].default
        printed = value.name if isinstance(value, Enum) else "OrderedRetry()" if value == OrderedRetry() else str(value)
        assert default == f"`{printed}`", name


def test_documented_broker_options_have_the_documented_defaults() -> None:
    for name, default, _ in rows("Options of `lockstep broker`"):
        assert default == f"`{getattr(BrokerConfig(), name.strip('`-').replace('-', '_'))}`", name


def test_documented_errors_and_events_exist() -> None:
    for errors, *_ in rows("## Errors"):
        for name in re.findall(r"`(\w+)`", errors):
            assert name in lockstep.client.__all__
    source = "".join(path.read_text() for path in (ROOT / "client").rglob("*.py"))
    events = re.findall(r"`([a-z]+\.[a-z_]+)`", GUIDE.split("Log events of a running consumer", 1)[1])
    assert len(events) > 5
    for event in events:
        assert f'("{event}"' in source, event
