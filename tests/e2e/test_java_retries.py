"""Failed messages that RocketMQ's clients send to `%RETRY%group` themselves."""

import pytest

from support.cluster import Cluster
from support.java_requests import heartbeat, java_broker, pull, send
from support.java_wire import BINARY, JSON, batch, java_wire, records

pytestmark = pytest.mark.e2e

RETRY = "%RETRY%cg"
MARKS = "RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x0100\x02UNIQ_KEY\x01AA"


def own(properties: str = "", **changes: object) -> dict[str, object]:
    """Return a retry as Java 4.9 sends it: the counts are in the header and in the properties."""
    counts = f"RECONSUME_TIME\x01{changes.get('j', '1')}\x02MAX_RECONSUME_TIMES\x01{changes.get('l', '16')}"
    return send(RETRY, f"{MARKS}\x02{counts}{properties}", **{"j": "1", "l": "16", **changes})


@pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
async def test_clients_own_retry_is_delivered_to_its_group(cluster: Cluster, kind: int) -> None:
    async with java_broker(cluster, kind=kind) as broker:
        await broker.call(34, None, heartbeat())
        at_once = await broker.call(310, own(), b"at once")
        assert (at_once.code, at_once.fields["queueId"], at_once.fields["queueOffset"]) == (0, "0", "0")
        delayed = await broker.call(
            310, own("\x02DELAY\x011\x02__LS_SEQ\x01x\x02CLUSTER\x01other\x02MSG_REGION\x01r\x02TRACE_ON\x01true"), b"after a second"
        )
        assert delayed.code == 0, delayed.remark
        first = await broker.call(11, pull(0, topic=RETRY, suspend=True))
        second = await broker.call(11, pull(1, topic=RETRY, suspend=True))
        for data, body in ((first.body, b"at once"), (second.body, b"after a second")):
            ((_, found, properties),) = records(data)
            assert found == body
            expected = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "00", "UNIQ_KEY": "AA", "CLUSTER": "DefaultCluster"}
            assert properties == expected
            assert int.from_bytes(data[72:76], "big") == 1, "reconsume times"


async def test_retry_at_the_limit_is_a_dead_letter(cluster: Cluster) -> None:
    async with java_broker(cluster) as broker:
        await broker.call(34, None, heartbeat())
        assert (await broker.call(310, own("\x02DELAY\x0118", j="3", l="3"), b"dead")).code == 0
        assert (await broker.call(310, own(j="2", l="3"), b"alive")).code == 0
        dead = await broker.call(11, pull(0, topic="%DLQ%cg"))
        ((_, body, properties),) = records(dead.body)
        assert (body, properties["RETRY_TOPIC"], properties["__LS_REASON"]) == (b"dead", "orders", "failed 3 times")
        assert "DELAY" not in properties
        assert [body for _, body, _ in records((await broker.call(11, pull(0, topic=RETRY))).body)] == [b"alive"]


async def test_group_without_a_heartbeat_here_gets_its_topic(cluster: Cluster) -> None:
    """A client repeats a send at another broker."""
    async with java_broker(cluster) as broker:
        assert (await broker.call(310, own(), b"x")).code == 0
        assert (await broker.call(11, pull(0, topic=RETRY))).code == 0
        async with java_wire(cluster.addresses["nameserver"], JSON) as names:
            assert (await names.call(105, {"topic": RETRY})).code == 0


async def test_marks_of_a_retry_are_refused_elsewhere_and_in_batches(cluster: Cluster) -> None:
    async with java_broker(cluster) as broker:
        for fields, body, code, words in (
            (send(properties=MARKS), b"x", 13, "are for topics %RETRY%GROUP"),
            (send(properties=MARKS + "\x02DELAY\x011"), b"x", 13, "are for topics %RETRY%GROUP"),
            (send(j="1"), b"x", 13, "are for topics %RETRY%GROUP"),
            (send("%DLQ%cg", MARKS), b"x", 13, "are for topics %RETRY%GROUP"),
            (send("%RETRY%", MARKS), b"x", 1, "group"),
            (own(m="true"), batch((b"x", "")), 1, "one by one"),
            (own(j="-1"), b"x", 13, "RECONSUME_TIME"),
            (own(), b"", 13, "empty"),
        ):
            refused = await broker.call(310, fields, body)
            assert (refused.code, words in (refused.remark or "")) == (code, True), (fields, refused)
        assert (await broker.call(11, pull(0))).code == 19
