"""A system of which something is missing is skipped by name, and what /proc says is read as it is meant."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compare import facts, procfs
from compare.__main__ import is_present, main
from compare.plan import ROWS
from compare.systems.all import SYSTEMS
from compare.systems.base import Need, jar_version, needs_java, needs_library


def test_every_system_has_a_row_for_each_of_its_works() -> None:
    for system in SYSTEMS.values():
        works = {system.subject.measured_as(row) for row in ROWS}
        assert set(system.counts) == works - {None}, system.name


def test_missing_system_is_named_with_the_command_that_installs_it(capsys: pytest.CaptureFixture[str]) -> None:
    system = replace(SYSTEMS["redis"], needs=lambda: [Need("the thing", "get the thing")])
    assert not is_present(system)
    assert "redis is skipped: there is no the thing; install it with: get the thing" in capsys.readouterr().err


def test_missing_library_jars_and_programs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert needs_library("json")() == []
    assert [need.what for need in needs_library("no_such_library")()] == ["the Python library no_such_library"]
    monkeypatch.setattr("compare.systems.base.ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    jars = tmp_path / "jars"
    assert [need.what for need in needs_java(jars, "java")] == ["java in PATH", "the jars in jars"]
    jars.mkdir()
    (jars / "kafka_2.13-4.1.1.jar").touch()
    (tmp_path / "java").touch(mode=0o755)
    assert needs_java(jars, "java") == []
    assert jar_version(jars, "kafka_2.13") == "4.1.1"


def test_run_without_any_system_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--systems", "redis,rabbitmq"]) == 1
    said = capsys.readouterr().err
    assert "redis is skipped: there is no redis-server in PATH; install it with: apt-get install redis-server" in said
    assert "rabbitmq is skipped: there is no rabbitmq-server in PATH" in said


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--systems", "activemq"]) == 2
    assert "--systems activemq: unknown; the names are lockstep, redis" in capsys.readouterr().err


def test_processes_of_a_server_are_found_and_measured() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert procfs.tree([os.getpid()])[0] == os.getpid()
        assert child.pid in procfs.tree([os.getpid()])
        assert procfs.tree([child.pid]) == [child.pid]
        found = procfs.memory([child.pid])
        assert 0 < found.anonymous < found.resident
        assert child.stdin is not None
        child.stdin.close()
    assert procfs.cpu_us([child.pid]) == 0, "it has ended"
    assert procfs.memory([child.pid]) == procfs.Memory(0, 0)
    assert procfs.cpu_us([os.getpid()]) > 0


def test_processor_is_named() -> None:
    assert facts.cpu_model("processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n") == "A: B"
