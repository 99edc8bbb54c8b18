"""Options of reads and writes: each one is known, checked, and named if it is invalid."""

import pickle
import re
from pathlib import Path
from socket import gethostname

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.spark.cluster import CachedCluster
from lockstep.spark.options import COLUMN_TYPES, CONNECTION, DEFAULT_COLUMNS, SINK, SOURCE, SinkOptions, SourceOptions

READ = {"nameserver": "h:1", "subscribe": "orders"}
WRITE = {"nameserver": "h:1", "topic": "orders"}


def test_option_names_are_case_insensitive() -> None:
    options = SourceOptions.parse({"NAMESERVER": "h:1;i:2", "subscribe": "a, b,a", "maxoffsetspertrigger": "7", "FailOnDataLoss": "False"})
    assert (options.nameserver.nameservers, options.subscribe) == (("h:1", "i:2"), ("a", "b"))
    assert (options.max_offsets_per_trigger, options.fail_on_data_loss) == (7, False)


@pytest.mark.parametrize("alias", ["consumerGroup", "kafka.group.id", "group"])
def test_group_has_three_option_names(alias: str) -> None:
    assert SourceOptions.parse({**READ, alias: "billing"}).group == "billing"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("maxOffsetPerTrigger", 'did you mean "maxOffsetsPerTrigger"?'),
        ("kafka.maxOffsetsPerTriger", 'did you mean "maxOffsetsPerTrigger"?'),
        ("kafka.bootstrap.servers", 'use "nameserver"'),
        ("bootstrap.servers", 'use "nameserver"'),
        ("kafka.max.poll.records", 'use "fetchMaxMessages"'),
        ("kafkaConsumer.pollTimeoutMs", 'use "fetchTimeoutMs"'),
        ("fetchOffset.numRetries", 'use "requestTimeoutMs"'),
        ("groupIdPrefix", 'use "group", or nothing'),
        ("kafka.auto.offset.reset", 'use "startingOffsets"'),
        ("kafka.sasl.jaas.config", "lockstep://USER@HOST:PORT/"),
        ("kafka.security.protocol", "lockstep://HOST:PORT/?tls_ca=FILE"),
        ("kafka.ssl.truststore.location", "lockstep://HOST:PORT/?tls_ca=FILE"),
        ("kafka.key.deserializer", "which the query casts"),
        ("path", 'use option "topic" to write and "subscribe" to read'),
        ("zzzzzz", "the known ones are nameserver, subscribe,"),
        ("frameRecords", "it is for writes"),
        ("lockstep.tls.caa", 'did you mean "lockstep.tls.ca"?'),
        ("passwordFiles", 'did you mean "lockstep.passwordFile"?'),
    ],
)
def test_unknown_option_is_rejected_with_a_suggestion(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SourceOptions.parse({**READ, name: "1"})
    assert f'no option "{name}"' in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "t"}, '"nameserver" is missing'),
        ({"nameserver": "h"}, 'option "nameserver" is "h": nameserver address "h": expected HOST:PORT'),
        ({"nameserver": "h:1"}, 'needs one of "subscribe"'),
        ({**READ, "assign": '{"t":[0]}'}, 'needs one of "subscribe"'),
        ({**READ, "lockstep.nameservers": "h:2"}, '"nameserver" is specified twice'),
        ({**READ, "startingOffsets": "newest"}, "expected earliest, latest, group or offsets as JSON"),
        ({**READ, "startingOffsets": '{"t":{"a:0":-3}}'}, "-2 means earliest"),
        ({**READ, "startingOffsets": "{"}, "not JSON"),
        ({**READ, "endingOffsets": "earliest"}, "expected latest or offsets as JSON"),
        ({**READ, "failOnDataLoss": "yes"}, "expected true or false"),
        ({**READ, "fetchMaxMessages": "1001"}, "expected 1 to 1000"),
        ({**READ, "maxOffsetsPerTrigger": "0"}, "expected 1 or more"),
        ({**READ, "maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "use one of them"),
        ({**READ, "minPartitions": "5", "maxPartitions": "4"}, "above maxPartitions"),
        ({**READ, "startingOffsets": "group"}, 'name it by the option "group"'),
        ({**READ, "endingOffsetsByTimestamp": '{"t":{"a:0":-1}}'}, "expected ms since 1970"),
        ({**READ, "maxTriggerDelay": "soon"}, "expected a duration such as"),
        ({**READ, "columns": "vlaue"}, 'did you mean "value"?'),
        ({**READ, "subscribe": "a b"}, 'option "subscribe"'),
        ({"nameserver": "h:1", "subscribePattern": "("}, "not a regular expression"),
        ({"nameserver": "h:1", "assign": '{"t":[-1]}'}, "expected queue numbers by topic"),
        ({**READ, "subExpression": " || "}, 'option "subExpression"'),
        ({**READ, "startingOffsetsByTimestamp": '{"t":{"a:0":-1}}'}, "expected ms since 1970, 0 or more"),
    ],
)
def test_invalid_read_option_is_reported(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SourceOptions.parse(given)
    assert said in str(refused.value)


def test_durations_have_units() -> None:
    parsed = [SourceOptions.parse({**READ, "maxTriggerDelay": text}).max_trigger_delay for text in ("90", "90ms", "3 s", "15m", "1h")]
    assert parsed == [90, 90, 3_000, 900_000, 3_600_000]


def test_schema_has_the_chosen_columns_and_optional_headers() -> None:
    assert SourceOptions.parse(READ).all_columns == DEFAULT_COLUMNS
    options = SourceOptions.parse({**READ, "columns": "VALUE,offset", "includeHeaders": "true"})
    assert options.ddl == f"value binary, offset bigint, headers {COLUMN_TYPES['headers']}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"producerId": "run-1"}, "expected 32 lower-case hex digits"),
        ({"producerId": "0" * 32, "idempotence": "none"}, "remove it"),
        ({"idempotence": "exactly"}, "expected sequence or none"),
        ({"failTask": "3"}, "expected TASK:ROWS"),
        ({"frameBytes": str(9 << 20)}, "expected 1 to"),
        ({"frameRecord": "5"}, 'did you mean "frameRecords"?'),
        ({"includeHeaders": "true"}, 'no option "includeHeaders": it is for reads; a write sends the column "headers" if there is one'),
    ],
)
def test_invalid_write_option_is_reported(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SinkOptions.parse({**WRITE, **given})
    assert said in str(refused.value)


def test_options_passed_by_spark_are_ignored() -> None:
    assert SinkOptions.parse({**WRITE, "checkpointLocation": "/tmp/c", "failTask": "2:100"}).fail_task == (2, 100)


def test_every_option_is_documented() -> None:
    reported = set(re.findall(r"`([\w.]+)`", (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text()))
    assert SOURCE.keys() | SINK.keys() | COLUMN_TYPES.keys() | set(CONNECTION) <= reported


@pytest.mark.parametrize(("kind", "given"), [(SourceOptions, READ), (SinkOptions, WRITE)], ids=["read", "write"])
def test_connection_is_secured_by_options_or_by_the_url(kind: type[SourceOptions] | type[SinkOptions], given: dict[str, str]) -> None:
    files = {"Lockstep.TLS.ca": "/ca", "lockstep.tls.cert": "/c", "lockstep.tls.key": "/k", "lockstep.tls.servername": "n"}
    options = kind.parse({**given, "lockstep.user": "billing", "lockstep.passwordFile": "/p", **files})
    url = "lockstep://billing@h:1/?tls_ca=/ca&tls_cert=/c&tls_key=/k&tls_server_name=n&password_file=/p"
    assert options == kind.parse({**given, "nameserver": url})
    assert kind.parse({**given, "lockstep.tls.ca": "/ca"}).nameserver == ClusterAddress.parse("lockstep://h:1/?tls_ca=/ca")
    assert kind.parse({**given, "nameserver": "lockstep://a@h:1", "lockstep.passwordFile": "/p"}).nameserver.password_file == "/p"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nameserver": "lockstep://a@h:1", "lockstep.user": "b"}, 'option "lockstep.user": the URL in option "nameserver" has one too'),
        (
            {"nameserver": "lockstep://h:1/?tls=on", "lockstep.tls.ca": "c"},
            '"lockstep.tls.ca": the URL in option "nameserver" has settings',
        ),
        ({"lockstep.user": "a", "LOCKSTEP.USER": "b"}, '"lockstep.user" is specified twice'),
        ({"lockstep.user": "a b"}, "'a b' is not the name of a user"),
        (
            {"lockstep.passwordFile": "p"},
            'option "lockstep.passwordFile": expected the path of a file, and a user (option "lockstep.user")',
        ),
        ({"lockstep.tls.cert": "c"}, 'options "lockstep.tls.cert": Tls('),
        ({"nameserver": "lockstep://a:secret@h:1"}, 'option "nameserver": nameserver URL: others may see a password'),
        ({"nameserver": "a:secret@h:1"}, 'option "nameserver": nameserver address with @'),
    ],
)
def test_invalid_option_of_the_connection_is_reported(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SourceOptions.parse({**READ, **given})
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("option", ["lockstep.passwordFile", "lockstep.tls.ca", "lockstep.tls.cert", "lockstep.tls.key"])
def test_file_that_an_executor_does_not_have_is_named_with_host_and_option(tmp_path: Path, option: str) -> None:
    files = {name: str(tmp_path / name) for name in CONNECTION if name not in ("lockstep.user", "lockstep.tls.serverName")}
    for name, path in files.items():
        Path(path).write_text(f"content of {name}")
    pickled = pickle.dumps(SourceOptions.parse({**READ, "lockstep.user": "billing", **files}))
    assert b"content of" not in pickled
    Path(files[option]).unlink()
    cached = CachedCluster(pickle.loads(pickled).nameserver, 1_000)
    with pytest.raises(ConfigError, match=f'host {gethostname()}: option "{option}", or its .*: {files[option]}: no such file'):
        cached.run(lambda cluster: cluster.topics())
    cached.close()


READ_SAYS: dict[str, tuple[str, object]] = {
    "nameserver": ("i:2", ClusterAddress(("i:2",))),
    "subscribe": ("a,b", ("a", "b")),
    "subscribePattern": ("a.*", "a.*"),
    "assign": ('{"a":[1,0]}', {"a": (0, 1)}),
    "startingOffsets": ('{"a":{"0":5}}', {"a": {"0": 5}}),
    "endingOffsets": ('{"a":{"0":5}}', {"a": {"0": 5}}),
    "startingTimestamp": ("5", 5),
    "endingTimestamp": ("5", 5),
    "startingOffsetsByTimestamp": ('{"a":{"0":5}}', {"a": {"0": 5}}),
    "endingOffsetsByTimestamp": ('{"t":{"a:0":5}}', {"t": {"a:0": 5}}),
    "startingOffsetsByTimestampStrategy": ("Latest", "latest"),
    "maxOffsetsPerTrigger": ("5", 5),
    "minOffsetsPerTrigger": ("5", 5),
    "maxTriggerDelay": ("5 s", 5_000),
    "maxBytesPerTrigger": ("5", 5),
    "failOnDataLoss": ("false", False),
    "minPartitions": ("5", 5),
    "maxPartitions": ("5", 5),
    "includeHeaders": ("true", True),
    "columns": ("VALUE", ("value",)),
    "subExpression": ("a || b", "a || b"),
    "group": ("g", "g"),
    "commitOffsets": ("false", False),
    "fetchMaxMessages": ("5", 5),
    "fetchMaxBytes": ("5", 5),
    "fetchTimeoutMs": ("5", 5),
    "offsetPollMs": ("5", 5),
    "pushdown": ("true", True),
    "requestTimeoutMs": ("5", 5),
}
WRITE_SAYS: dict[str, tuple[str, object]] = {
    "nameserver": ("i:2", ClusterAddress(("i:2",))),
    "topic": ("a", "a"),
    "frameRecords": ("5", 5),
    "frameBytes": ("5", 5),
    "maxRowsPerSecond": ("5", 5),
    "parallelism": ("5", 5),
    "notBefore": ("true", True),
    "idempotence": ("None", "none"),
    "producerId": ("0123456789abcdef" * 2, "0123456789abcdef" * 2),
    "requestTimeoutMs": ("5", 5),
    "reportFile": ("f", "f"),
    "failTask": ("5:6", (5, 6)),
}


@pytest.mark.parametrize(
    ("kind", "table", "says"), [(SourceOptions, SOURCE, READ_SAYS), (SinkOptions, SINK, WRITE_SAYS)], ids=["read", "write"]
)
def test_every_option_is_parsed_into_its_own_field(
    kind: type[SourceOptions] | type[SinkOptions], table: dict[str, tuple[str, object]], says: dict[str, tuple[str, object]]
) -> None:
    assert says.keys() == table.keys()
    for name, (text, value) in says.items():
        given = {"nameserver": "h:1", name: text}
        if kind is SourceOptions and name not in ("subscribe", "subscribePattern", "assign"):
            given["subscribe"] = "orders"
        options, field = kind.parse(given), table[name][0]
        assert getattr(options, field) == value
        assert getattr(kind(), field) != value, "a field that keeps its default would not be noticed"
