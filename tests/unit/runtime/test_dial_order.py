"""Which of a peer's addresses is dialed when, and which connection is kept: histories as rows."""

from typing import NamedTuple

import pytest

from lockstep.runtime.connections.dial_order import DialOrder


class Row(NamedTuple):
    addresses: str
    """One letter for each address."""
    events: str
    """What happens, each as MS ADDRESS WHAT: `x` it fails, a digit: it answers with this rank, `!` it is named, `!!` it may be again."""
    dialed: str
    """Which addresses are dialed when."""
    end: str
    """Which connection is kept when, or `-` and when all have failed."""


ROWS = {
    "one address that answers": Row("a", "7a1", "0a", "7a"),
    "one address that fails": Row("a", "7ax", "0a", "7-"),
    "one address that does not answer is waited for": Row("a", "2900ax", "0a", "2900-"),
    "the first is refused": Row("abc", "1ax 9b2", "0a 1b", "9b"),
    "the others are 100 ms apart": Row("abc", "1ax 9bx 150c2", "0a 1b 101c", "150c"),
    "all are refused": Row("abc", "1ax 9bx 102cx", "0a 1b 101c", "102-"),
    "an answer within 300 ms leaves the others alone": Row("abc", "299a1", "0a", "299a"),
    "the first is silent": Row("abc", "310b2", "0a 300b", "410b"),
    "the first is only slow": Row("abc", "301bx 399a1", "0a 300b", "399a"),
    "the first is slow, and the higher rank counts": Row("abc", "320b2 350a1", "0a 300b", "350b"),
    "a deposed one answers first, and the next one has 100 ms": Row("abc", "310a1 411b2", "0a 300b", "410a"),
    "a deposed one answers first, and then the next one": Row("abc", "310a1 350b2", "0a 300b", "350b"),
    "what has failed is tried again while the first is silent": Row("ab", "310bx 815bx 1320b2 2000ax", "0a 300b 810b 1315b", "1420b"),
    "who is named is dialed at once": Row("abc", "5c! 5ax 20c2", "0a 5c", "20c"),
    "who is named may be unknown": Row("ab", "5z! 5ax 20z2", "0a 5z", "20z"),
    "the others follow the one who is named": Row("abc", "5c! 5ax 20cx 120b2", "0a 5c 105b", "120b"),
    "two who name each other are dialed once": Row("ab", "5b! 5ax 9a! 9bx", "0a 5b", "9-"),
    "a new address is dialed also if it was before": Row("abc", "5ax 9bx 50b!! 60b2", "0a 5b 50b", "60b"),
    "an address under way is not dialed twice": Row("ab", "5a!! 9a1", "0a", "9a"),
    "nothing is dialed after an answer": Row("abc", "310b2 315c!", "0a 300b", "410b"),
}


def parse(event: str) -> tuple[int, str, str]:
    digits = len(event) - len(event.lstrip("0123456789"))
    return int(event[:digits]), event[digits], event[digits + 1 :]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_order_of_dials(row: Row) -> None:
    order, events, dialed, now = DialOrder(row.addresses, 0), [parse(each) for each in row.events.split()], [], 0
    while True:
        while events and events[0][0] == now:
            _, address, what = events.pop(0)
            if what == "x":
                order.failed(address, now)
            elif what.startswith("!"):
                order.name(address, now, again=what == "!!")
            else:
                order.answered(address, (int(what),), now)
        while (next_address := order.next(now)) is not None:
            dialed.append(f"{now}{next_address}")
        if order.is_over or (kept := order.kept(now)) is not None:
            break
        times = [each[0] for each in events[:1]] + ([] if order.wake_ms is None else [order.wake_ms])
        assert times, "nothing would happen any more"
        assert min(times) > now
        now = min(times)
    assert " ".join(dialed) == row.dialed
    assert f"{now}{'-' if order.is_over else kept}" == row.end
