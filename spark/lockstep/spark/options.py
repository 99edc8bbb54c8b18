"""Parse the options of reads and writes. Names are those of Spark's Kafka source if it has the option; case does not matter.

An unknown name is an error with a suggestion: an option that is silently ignored costs a run.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.names import check_group, check_topic
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.tls import Tls
from lockstep.runtime.security.users import check_user_name

OptionsT = TypeVar("OptionsT", bound="SourceOptions | SinkOptions")

DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "bornTimestamp": "timestamp",
    "tags": "string",
    "keys": "string",
    "messageId": "string",
    "queueId": "int",
    "brokerName": "string",
    "reconsumeTimes": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Every column of the source, with its DDL type."""
NO_CLUSTER = ClusterAddress(())
"""The option is required."""
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark that it also passes to a sink."""
LATEST, EARLIEST = -1, -2
"""Special values in offset JSON, as in Kafka's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a batch or streaming read."""

    nameserver: ClusterAddress = NO_CLUSTER
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    """Topic → queue numbers in layout order."""
    starting_offsets: "str | Mapping[str, Mapping[str, int]] | None" = None
    """`earliest`, `latest` (stream), `group`, or offsets by topic and queue. None means earliest for a batch and latest for a stream."""
    ending_offsets: "str | Mapping[str, Mapping[str, int]]" = "latest"
    starting_timestamp: int | None = None
    """Store time in ms since 1970."""
    ending_timestamp: int | None = None
    starting_offsets_by_timestamp: "Mapping[str, Mapping[str, int]] | None" = None
    ending_offsets_by_timestamp: "Mapping[str, Mapping[str, int]] | None" = None
    starting_offsets_by_timestamp_strategy: str = "error"
    """What to do if a queue has no message at or after the time: `error` or `latest`."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: int = 900_000
    """Maximum wait of a batch for min_offsets_per_trigger, in ms."""
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_partitions: int | None = None
    include_headers: bool = False
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    sub_expression: str = "*"
    group: str | None = None
    """The consumer group under which offsets are published. None: a stream has one of its own."""
    commit_offsets: bool = True
    fetch_max_messages: int = 1_000
    fetch_max_bytes: int = 1 << 20
    fetch_timeout_ms: int = 30_000
    offset_poll_ms: int = 100
    pushdown: bool = False
    request_timeout_ms: int = 10_000

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "SourceOptions":
        """Parse the options. Raise ConfigError for unknown, missing, invalid or contradictory ones."""
        options = _parse(cls, given, SOURCE)
        selections = [options.subscribe, options.subscribe_pattern, options.assign]
        if sum(selection not in ((), None) for selection in selections) != 1:
            raise ConfigError('a read needs one of "subscribe" (topics), "subscribePattern" (a regular expression) and "assign" (JSON)')
        if options.starting_offsets == "group" and options.group is None:
            raise ConfigError('startingOffsets=group reads the progress of a group: name it by the option "group"')
        if options.max_offsets_per_trigger is not None and options.max_bytes_per_trigger is not None:
            raise ConfigError("maxOffsetsPerTrigger and maxBytesPerTrigger both limit a batch: use one of them")
        low, high = options.min_partitions, options.max_partitions
        if low is not None and high is not None and low > high:
            raise ConfigError(f"minPartitions is {low}, above maxPartitions, {high}")
        return options

    @property
    def all_columns(self) -> tuple[str, ...]:
        """Return the columns of the schema, in order."""
        more = ("headers",) if self.include_headers and "headers" not in self.columns else ()
        return self.columns + more

    @property
    def ddl(self) -> str:
        return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in self.all_columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a batch or streaming write."""

    nameserver: ClusterAddress = NO_CLUSTER
    topic: str | None = None
    frame_records: int = 1_000
    frame_bytes: int = 256 * 1024
    """A frame ends at either limit. A broker parses as much of one connection in one loop turn."""
    max_rows_per_second: int | None = None
    """The limit of the whole job, which `parallelism` concurrent tasks share."""
    parallelism: int = 1
    not_before: bool = False
    """True to send each row no earlier than its `bornTimestamp` (an open-loop schedule)."""
    idempotence: str = "sequence"
    producer_id: str | None = None
    request_timeout_ms: int = 60_000
    """A frame that is not acknowledged within this time fails its task. Longer than a broker's restart."""
    report_file: str | None = None
    """The file on the driver's machine to which the commit writes its totals as JSON."""
    fail_task: tuple[int, int] | None = None
    """(task, rows): the first attempt of this task fails after this number of acknowledged rows. For tests of retries."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "SinkOptions":
        """Parse the options. Raise ConfigError for unknown, missing, invalid or contradictory ones."""
        options = _parse(cls, given, SINK)
        if options.producer_id is not None and options.idempotence == "none":
            raise ConfigError("producerId is only used by idempotent sends: remove it, or remove idempotence=none")
        return options


# --------------------------------------------------------------------------------------------------------------------- parsers


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < low or (high is not None and number > high):
            raise ValueError(f"expected {low} or more" if high is None else f"expected {low} to {high}")
        return number

    return parse


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return text.lower()

    return parse


def _nameserver(text: str) -> ClusterAddress:
    return ClusterAddress.parse(text)


def _topic(text: str) -> str:
    check_topic(text)
    return text


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("expected topics, separated by commas")
    return tuple(_topic(name) for name in names)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _assign(text: str) -> Mapping[str, tuple[int, ...]]:
    plain = _object(text)
    if not plain or not all(
        isinstance(queues, list) and all(type(queue) is int and queue >= 0 for queue in queues) for queues in plain.values()
    ):
        raise ValueError('expected queue numbers by topic, as {"orders":[0,1]}')
    return {_topic(topic): tuple(sorted(set(queues))) for topic, queues in plain.items()}


def _numbers(text: str) -> Mapping[str, Mapping[str, int]]:
    """{"topic": {"broker:queue": number}}."""
    plain = _object(text)
    for topic, queues in plain.items():
        check_topic(topic)
        if not isinstance(queues, dict) or not all(type(number) is int and number >= EARLIEST for number in queues.values()):
            raise ValueError('expected {"orders":{"broker-a:0":1042}}; -2 means earliest, -1 latest')
    return plain


def _times(text: str) -> Mapping[str, Mapping[str, int]]:
    """{"topic": {"broker:queue": ms}}."""
    plain = _numbers(text)
    if any(ms < 0 for queues in plain.values() for ms in queues.values()):
        raise ValueError("expected ms since 1970, 0 or more")
    return plain


def _offsets(*words: str) -> Callable[[str], "str | Mapping[str, Mapping[str, int]]"]:
    def parse(text: str) -> "str | Mapping[str, Mapping[str, int]]":
        if text.lower() in words:
            return text.lower()
        if not text.lstrip().startswith("{"):
            raise ValueError(f"expected {', '.join(words)} or offsets as JSON")
        return _numbers(text)

    return parse


def _object(text: str) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise ValueError("expected a JSON object")
    return plain


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    known = {name.lower(): name for name in COLUMN_TYPES}
    for name in names:
        if name.lower() not in known:
            raise ValueError(f"unknown column {name!r}{_suggestion(name, list(COLUMN_TYPES))}")
    if not names:
        raise ValueError("expected column names, separated by commas")
    return tuple(known[name.lower()] for name in names)


def _expression(text: str) -> str:
    TagFilter.parse(text)
    return text


def _group(text: str) -> str:
    check_group(text)
    return text


_DELAY = re.compile(r"(\d+)\s*(ms|s|m|h)?")
_DELAY_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, None: 1}


def _delay(text: str) -> int:
    found = _DELAY.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError("expected a duration such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _DELAY_MS[found[2]]


def _producer_id(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise ValueError("expected 32 lower-case hex digits, such as uuid4().hex")
    return text


def _task_and_rows(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        raise ValueError("expected TASK:ROWS")
    return int(found[1]), int(found[2])


def _text(text: str) -> str:
    return text


OptionTable = Mapping[str, tuple[str, Callable[[str], Any]]]

SOURCE: OptionTable = {
    "nameserver": ("nameserver", _nameserver),
    "subscribe": ("subscribe", _topics),
    "subscribePattern": ("subscribe_pattern", _pattern),
    "assign": ("assign", _assign),
    "startingOffsets": ("starting_offsets", _offsets("earliest", "latest", "group")),
    "endingOffsets": ("ending_offsets", _offsets("latest")),
    "startingTimestamp": ("starting_timestamp", _whole(0)),
    "endingTimestamp": ("ending_timestamp", _whole(0)),
    "startingOffsetsByTimestamp": ("starting_offsets_by_timestamp", _times),
    "endingOffsetsByTimestamp": ("ending_offsets_by_timestamp", _times),
    "startingOffsetsByTimestampStrategy": ("starting_offsets_by_timestamp_strategy", _one_of("error", "latest")),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _whole(1)),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", _whole(1)),
    "maxTriggerDelay": ("max_trigger_delay", _delay),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _whole(1)),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "minPartitions": ("min_partitions", _whole(1)),
    "maxPartitions": ("max_partitions", _whole(1)),
    "includeHeaders": ("include_headers", _flag),
    "columns": ("columns", _columns),
    "subExpression": ("sub_expression", _expression),
    "group": ("group", _group),
    "commitOffsets": ("commit_offsets", _flag),
    "fetchMaxMessages": ("fetch_max_messages", _whole(1, 1_000)),
    "fetchMaxBytes": ("fetch_max_bytes", _whole(1, 1 << 20)),
    "fetchTimeoutMs": ("fetch_timeout_ms", _whole(1)),
    "offsetPollMs": ("offset_poll_ms", _whole(0)),
    "pushdown": ("pushdown", _flag),
    "requestTimeoutMs": ("request_timeout_ms", _whole(1)),
}
SINK: OptionTable = {
    "nameserver": ("nameserver", _nameserver),
    "topic": ("topic", _topic),
    "frameRecords": ("frame_records", _whole(1, 10_000)),
    "frameBytes": ("frame_bytes", _whole(1, 8 << 20)),
    "maxRowsPerSecond": ("max_rows_per_second", _whole(1)),
    "parallelism": ("parallelism", _whole(1)),
    "notBefore": ("not_before", _flag),
    "idempotence": ("idempotence", _one_of("sequence", "none")),
    "producerId": ("producer_id", _producer_id),
    "requestTimeoutMs": ("request_timeout_ms", _whole(1)),
    "reportFile": ("report_file", _text),
    "failTask": ("fail_task", _task_and_rows),
}
TLS = {"lockstep.tls.ca": "ca", "lockstep.tls.cert": "cert", "lockstep.tls.key": "key", "lockstep.tls.serverName": "server_name"}
"""Option → field of Tls."""
USER, PASSWORD_FILE = "lockstep.user", "lockstep.passwordFile"
CONNECTION = (USER, PASSWORD_FILE, *TLS)
"""Options of reads and writes that add to the address in `nameserver`. They name files, which each executor reads."""
ALIASES = {
    "lockstep.nameservers": "nameserver",
    "nameservers": "nameserver",
    "consumergroup": "group",
    "kafka.group.id": "group",
}
"""Other names of options, in lower case → option."""


INSTEAD = {
    'use "nameserver"': ("bootstrap.servers", "metadata.broker.list"),
    'use "fetchMaxMessages"': ("max.poll.records",),
    'use "fetchMaxBytes"': ("fetch.max.bytes", "max.partition.fetch.bytes"),
    'use "fetchTimeoutMs"': ("kafkaconsumer.polltimeoutms", "fetch.max.wait.ms"),
    'use "requestTimeoutMs"': (
        *("request.timeout.ms", "delivery.timeout.ms", "default.api.timeout.ms", "max.block.ms", "retries"),
        *("fetchoffset.numretries", "fetchoffset.retryintervalms"),
    ),
    'use "group", or nothing: a stream has a group of its own': ("groupidprefix",),
    'use "startingOffsets"': ("auto.offset.reset",),
    'use "commitOffsets"': ("enable.auto.commit",),
    'use "idempotence"': ("enable.idempotence",),
    'use "frameBytes"': ("batch.size", "max.request.size"),
    "remove it: a task fills its frames from its rows, and does not wait for more": ("linger.ms",),
    "remove it: `lockstep broker --flush` decides when a row is acknowledged": ("acks",),
    "remove it: there are no transactions": ("isolation.level", "transactional.id"),
    "remove it: a write does not compress": ("compression.type",),
    "remove it: key and value are binary columns, which the query casts": (
        *("key.deserializer", "value.deserializer", "key.serializer", "value.serializer"),
    ),
    'use "lockstep.tls.ca", or name the authority in the nameserver option, as in lockstep://HOST:PORT/?tls_ca=FILE': (
        *("security.protocol", "ssl."),
    ),
    'use "lockstep.user" and "lockstep.passwordFile", or the nameserver option, as in lockstep://USER@HOST:PORT/?password_file=FILE': (
        *("sasl.",),
    ),
}
"""What to do about an option of Kafka's source, by its name in lower case without `kafka.`; one that ends with a dot is a prefix."""


def _parse(cls: type[OptionsT], given: Mapping[str, str], table: OptionTable) -> OptionsT:
    assert {field for field, _ in table.values()} == {field.name for field in fields(cls)}
    known = {name.lower(): name for name in (*table, *CONNECTION)}
    found: dict[str, Any] = {}
    for key, text in given.items():
        lower = key.lower()
        name = known.get(ALIASES.get(lower, lower))
        if name is None:
            if lower in SPARK_OPTIONS:
                continue
            raise ConfigError(f'lockstep has no option "{key}"{_hint(lower, table)}')
        field, parse = table.get(name, (name, _text))
        if field in found:
            raise ConfigError(f'option "{name}" is specified twice (also as "{key}"): remove one')
        try:
            found[field] = parse(text)
        except (ValueError, LocalProtocolError, ConfigError) as error:
            shown = "" if "@" in text else f' is "{text}"'  # an address may have a password by mistake
            raise ConfigError(f'option "{name}"{shown}: {error}') from None
    if "nameserver" not in found:
        raise ConfigError('option "nameserver" is missing: set it to "HOST:PORT" (several are separated by ";")')
    connection = {name: found.pop(name) for name in CONNECTION if name in found}
    found["nameserver"] = connected_as(found["nameserver"], connection)
    return cls(**found)


def connected_as(address: ClusterAddress, given: Mapping[str, str]) -> ClusterAddress:
    """Return an address with the options of CONNECTION. Raise ConfigError if one is invalid, or if the address has that setting already."""
    present = {USER: address.user, PASSWORD_FILE: address.password_file} | dict.fromkeys(TLS, address.tls)
    for name in given:
        if present[name] is not None:
            raise ConfigError(
                f'option "{name}": the URL in option "nameserver" has {"settings of TLS" if name in TLS else "one"} too: remove one'
            )
    try:
        user = check_user_name(given[USER]) if USER in given else address.user
        tls = {TLS[name]: path for name, path in given.items() if name in TLS}
        address = replace(address, user=user, tls=Tls(**tls) if tls else address.tls)
    except ConfigError as error:
        raise ConfigError(f'options "{", ".join(given)}": {error}') from None
    if PASSWORD_FILE in given:
        if user is None or not given[PASSWORD_FILE]:
            raise ConfigError(f'option "{PASSWORD_FILE}": expected the path of a file, and a user (option "{USER}")')
        address = replace(address, password_file=given[PASSWORD_FILE])
    return address


def files_of(address: ClusterAddress) -> dict[str, str]:
    """Return option → the file that it names, or that the URL in `nameserver` names instead."""
    paths = {PASSWORD_FILE: address.password_file} | {name: getattr(address.tls, field, None) for name, field in TLS.items()}
    return {name: str(path) for name, path in paths.items() if path is not None and TLS.get(name) != "server_name"}


def _hint(lower: str, table: OptionTable) -> str:
    if lower == "path":
        return ': use option "topic" to write and "subscribe" to read'
    plain = lower.removeprefix("kafka.")
    for step, names in INSTEAD.items():
        if any(plain == name or (name.endswith(".") and plain.startswith(name)) for name in names):
            return f": {step}"
    other, kind = (SOURCE, "reads") if table is SINK else (SINK, "writes")
    if lower in {name.lower() for name in other}:
        more = '; a write sends the column "headers" if there is one' if lower == "includeheaders" else ""
        return f": it is for {kind}{more}"
    return _suggestion(lower.removeprefix("kafka.").removeprefix("lockstep."), [*table, *CONNECTION])


def _suggestion(name: str, known: list[str]) -> str:
    by_lower = {each.lower().removeprefix("lockstep."): each for each in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f': did you mean "{by_lower[close[0]]}"?' if close else f"; the known ones are {', '.join(known)}"
