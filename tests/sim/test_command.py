"""scripts/sweep: output and exit code."""

import asyncio
import json
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.loops import until
from sweep.__main__ import main
from sweep.mutants import switched_off

SHORT = ["--storm", "4"]


def test_replay_of_a_seed_prints_figures_and_digest_and_with_v_its_events(capsys: pytest.CaptureFixture[str]) -> None:
    reported = []
    for more in ([], ["-v"]):
        assert main(["--seed", "1", "--world", "net", *SHORT, *more]) == 0
        reported.append(capsys.readouterr().out.splitlines())
    plain, verbose = reported
    assert plain[-1].startswith("digest ")
    assert plain[-1] == verbose[-1], "output changes nothing"
    assert any(line.startswith("violations   0") for line in plain)
    assert verbose[0].startswith("seed 1, world net: ")
    assert len(verbose) > 10 * len(plain)


def test_violation_is_reported_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    with switched_off("every_start_has_the_same_term"):
        assert main(["--seed", "1", "--world", "broker", *SHORT, "-v"]) == 1
    reported = capsys.readouterr().out
    assert "violations   1 seeds" in reported
    assert "replay: scripts/sweep --world broker --seed 1 -v" in reported
    assert "!!! O1 at" in reported, "the output marks where"


def test_figures_of_many_seeds_are_summed_and_written_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--seeds", "1-2", "--world", "single", *SHORT, "--workers", "1", "--json", str(tmp_path / "figures")]) == 0
    figures = json.loads((tmp_path / "figures").read_text())
    assert (figures["seeds"], figures["worlds"], figures["violations"]) == (2, {"single": 2}, [])
    assert figures["simulated_s"] > 2 * 4
    assert "seeds        2 (single 2)" in capsys.readouterr().out


def test_error_of_a_universe_counts_as_a_violation_of_its_seed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.seeds.ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))
    monkeypatch.setattr("sweep.seeds.run_one", lambda seed, world: {}[seed])
    assert main(["--seeds", "7", "--world", "single", "--workers", "1"]) == 1
    reported = capsys.readouterr().out
    assert "seed 7 in single; replay: scripts/sweep --world single --seed 7 -v" in reported
    assert "KeyError(7)" in reported


def test_no_universe_begins_after_the_given_hours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hours", "0", "--first", "7", "--world", "single", "--workers", "1"]) == 0
    assert "seeds        0" in capsys.readouterr().out


@pytest.mark.slow
def test_universes_begin_until_the_given_hours_have_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hours", "0.0001", "--first", "7", "--world", "single", *SHORT, "--workers", "1"]) == 0
    assert re.search(r"seeds        [1-9]", capsys.readouterr().out)


def test_mutants_are_selected_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    aimed = "no_grace"
    assert main(["--mutants", "every_start_has_the_same_term", aimed, "--workers", "1"]) == 0
    reported = capsys.readouterr().out
    assert "broker 1: O1 at" in reported
    assert f"{aimed:44} aimed  tests/" in reported
    assert "\n1 of 1 detected\n1 more are detected by a unit test" in reported


def test_undetected_mutant_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutants", "boot_id_is_ignored", "--seeds-max", "0", "--workers", "1"]) == 1
    reported = capsys.readouterr().out
    assert "NOT DETECTED" in reported
    assert "0 of 1 detected" in reported


def test_unknown_world_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--world", "atlantis"])
    assert ended.value.code == 2
    assert "invalid choice: 'atlantis'" in capsys.readouterr().err


async def test_sigterm_ends_the_workers() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "sweep", "--seeds", "1-1000", "--workers", "2"]
    sweep = await asyncio.create_subprocess_exec(*command, env=environment)

    def workers() -> list[int]:
        children = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
        return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]

    await until(lambda: len(workers()) == 2, "two workers", timeout_s=60)
    those = workers()
    sweep.terminate()
    assert await sweep.wait() == 128 + signal.SIGTERM
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in those), "no worker is left", timeout_s=60)
