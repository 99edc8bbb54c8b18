"""Convert a page of stored records to the columns of a read. Only the parts that a column needs are decoded."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import KEYS, RESERVED
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.spark.options import SourceOptions
from lockstep.spark.pages import (
    BORN_MS,
    INT32,
    INT64,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    STORE_MS,
    TEXT_TAGS,
    Ints,
    RangePage,
    has,
    keys,
    texts,
)

STORE_TIME = 1
"""timestampType, as Kafka's LogAppendTime."""
_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestampType": pa.int32(),
    "bornTimestamp": _TIME,
    "tags": pa.string(),
    "keys": pa.string(),
    "messageId": pa.string(),
    "queueId": pa.int32(),
    "brokerName": pa.string(),
    "reconsumeTimes": pa.int32(),
    "headers": _HEADERS,
}


_KEYS = f"{KEYS}\x01".encode()


def _times(ms: Ints) -> pa.Array:
    return pa.array(ms * 1_000).cast(_TIME)


def _texts(properties: pa.Array, head: bytes) -> pa.Array:
    return pa.array(texts(properties, head)) if has(properties, head) else pa.nulls(len(properties), pa.string())


def _headers(message: MessageExt) -> list[dict[str, object]]:
    """Return the user's properties."""
    return [{"key": name, "value": value.encode()} for name, value in message.properties.items() if name not in RESERVED]


class Columns:
    """Makes the columns that the options specify from one queue's pages. `number`: the queue's position in the layout."""

    def __init__(self, options: SourceOptions, queue: MessageQueue, number: int) -> None:
        self.schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in options.all_columns])
        self._queue = queue
        constant: dict[str, Any] = {
            "topic": queue.topic,
            "partition": number,
            "timestampType": STORE_TIME,
            "queueId": queue.queue_id,
            "brokerName": queue.broker_name,
        }
        self._constants = {name: pa.scalar(constant[name], ARROW_TYPES[name]) for name in options.all_columns if name in constant}
        self._whole = {"messageId", "headers"} & set(options.all_columns)
        self._of_properties = {"key", "tags", "keys"} & set(options.all_columns)

    def batches(self, page: RangePage) -> Iterator[pa.RecordBatch]:
        """Yield the page as Arrow batches, usually one, with exactly the types of the schema, which Spark requires."""
        messages = page.messages(self._queue.broker_name) if self._whole else []
        properties = page.properties() if self._of_properties else pa.nulls(page.count, pa.binary())
        made: dict[str, Callable[[], Any]] = {
            "key": lambda: keys(properties),
            "offset": lambda: page.numbers(QUEUE_OFFSET, INT64),
            "timestamp": lambda: _times(page.numbers(STORE_MS, INT64)),
            "bornTimestamp": lambda: _times(page.numbers(BORN_MS, INT64)),
            "reconsumeTimes": lambda: page.numbers(RECONSUME_TIMES, INT32),
            "tags": lambda: _texts(properties, TEXT_TAGS),
            "keys": lambda: _texts(properties, _KEYS),
            "messageId": lambda: [message.message_id for message in messages],
            "headers": lambda: [_headers(message) for message in messages],
        }
        arrays = {
            field.name: pa.repeat(self._constants[field.name], page.count)
            if field.name in self._constants
            else pa.array(made[field.name](), type=field.type)
            for field in self.schema
            if field.name != "value"
        }
        for part, bodies in page.bodies() if "value" in self.schema.names else [(slice(0, page.count), None)]:
            columns = [bodies if field.name == "value" else arrays[field.name][part] for field in self.schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
