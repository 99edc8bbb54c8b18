"""`lockstep up`, and the commands against the cluster that it starts."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from lockstep.admin.standalone import StandaloneCluster, next_steps
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.host import Host
from support.processes import clean_environment, program, run_program

CLI = "lockstep.admin.cli"


@pytest.mark.e2e
def test_cluster_of_two_brokers_stores_and_keeps_messages(tmp_path: Path) -> None:
    up = (CLI, "up", "--port", "0", "--brokers", "2", "--store", str(tmp_path))
    with program(*up, event="up.started") as running:
        environment = clean_environment(LOCKSTEP_NAMESERVER=running.started["nameserver"])

        def lockstep(*arguments: str) -> Any:
            ended = run_program(CLI, *arguments, "--json", environment=environment)
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)

        assert [(b["name"], b["registered"], b["reached"]) for b in lockstep("cluster")["brokers"]] == [
            ("broker-a", True, True),
            ("broker-b", True, True),
        ]
        assert lockstep("topic", "create", "orders", "--queues", "2")["created"]
        first = lockstep("send", "orders", "one", "--sharding-key", "k", "--key", "key-1", "--tag", "t", "--property", "tenant=a")
        second = lockstep("send", "orders", "two", "--sharding-key", "k")
        assert (second["broker"], second["queue_id"], second["queue_offset"]) == (first["broker"], first["queue_id"], 1)
        found = lockstep("message", "show", first["offset_message_id"])
        assert (found["body"], found["keys"], found["tags"], found["sharding_key"]) == ("one", ["key-1"], "t", "k")
        assert found["properties"]["tenant"] == "a"
        tailed = run_program(CLI, "tail", "orders", "--from-start", "--count", "2", "--json", environment=environment)
        assert [json.loads(line)["body"] for line in tailed.stdout.splitlines()] == ["one", "two"]
        assert sum(queue["max_offset"] for queue in lockstep("topic", "show", "orders")["queues"]) == 2
        assert lockstep("group", "list")["groups"] == []
        unknown = run_program(CLI, "group", "show", "nobody", environment=environment)
        assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
        assert running.stop(signal.SIGINT) == 0
    with program(*up, event="up.started") as again:
        environment = clean_environment(LOCKSTEP_NAMESERVER=again.started["nameserver"])
        tailed = run_program(CLI, "tail", "orders", "--from-start", "--count", "2", "--json", environment=environment)
        assert [json.loads(line)["body"] for line in tailed.stdout.splitlines()] == ["one", "two"]
        assert again.stop() == 0


def test_brokers_have_their_own_ports_and_directories() -> None:
    laptop = StandaloneCluster(Host.real(), store="dir", port=9876, broker_count=2)
    configs = [laptop.broker_config(index, "127.0.0.1:9876") for index in range(2)]
    assert [(c.name, c.listen, c.store) for c in configs] == [
        ("broker-a", ("127.0.0.1:10911",), "dir/broker-a"),
        ("broker-b", ("127.0.0.1:10921",), "dir/broker-b"),
    ]
    assert all(config.auto_create_topics for config in configs)


def test_port_0_gives_each_broker_a_free_port() -> None:
    assert StandaloneCluster(Host.real(), store="dir", port=0, broker_count=1).broker_config(0, "127.0.0.1:1").listen == ("127.0.0.1:0",)


def test_broker_port_above_65535_is_rejected() -> None:
    assert StandaloneCluster(Host.real(), store="d", port=64_500, broker_count=1).broker_config(0, "127.0.0.1:64500").listen == (
        "127.0.0.1:65535",
    )
    with pytest.raises(ConfigError, match="broker-a would listen on port 65536"):
        StandaloneCluster(Host.real(), store="dir", port=64_501, broker_count=1).broker_config(0, "127.0.0.1:64501")


def test_next_steps_name_the_nameserver_only_if_it_is_not_the_default() -> None:
    brokers = {"broker-a": "127.0.0.1:10911"}
    assert "export" not in next_steps("127.0.0.1:9876", brokers, "dir")
    assert "export LOCKSTEP_NAMESERVER=127.0.0.1:1234" in next_steps("127.0.0.1:1234", brokers, "dir")
