"""A small run of the demo: its processes, its faults and its proof."""

import re

import pytest

from support.cluster import Report
from support.processes import clean_environment, run_program

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("options", "scenes"),
    [
        ((), ("kill -9 broker-b, started again",)),
        (
            ("--replica",),
            ("its replica is promoted", "the new master has a replica", "nothing that broker-b had acknowledged was lost"),
        ),
        (
            ("--ha",),
            ("its replica is elected by itself", "the new master has a replica", "nothing that broker-b had acknowledged was lost"),
        ),
    ],
)
def test_demo_proves_its_result(options: tuple[str, ...], scenes: tuple[str, ...], report: Report) -> None:
    arguments = "--orders", "100", "--seconds", "4", *options
    demo = run_program("lockstep.cli.demo", *arguments, environment=clean_environment(COLUMNS="140"), limit_s=120)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for scene in ("kill -9 consumer-2", "consumer-4 joins", *scenes):
        assert scene in demo.stdout
    assert "proved: 1,000 events, every order's in order, none lost" in demo.stdout
    gaps = sorted(float(found.replace(",", "")) for found in re.findall(r"│ ([\d,]+\.\d) +│", demo.stdout))
    assert gaps, "hand-overs are shown"
    report(f"{len(gaps)} hand-overs: {', '.join(f'{gap:.0f}' for gap in gaps)} ms")
