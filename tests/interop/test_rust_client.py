"""The Rust client `rocketmq-client-rust`, unchanged, against our servers. It comes from crates.io, with what it depends on."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.interop import PROGRAMS, require, run, servers, trial

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

USES = (
    *("sync", "async", "oneway", "batch", "compressed", "push", "tags", "retry", "delay", "ordered", "resume", "pull", "broadcast"),
    *("transaction", "sql"),
)
BUILD_S = 2_400
"""There are 300 crates to compile: three minutes of a processor. With CARGO_TARGET_DIR they are compiled once."""
RUST_MIN = (1, 95)
"""The oldest compiler that the crate accepts."""


@pytest.fixture
def program(tmp_path: Path) -> str:
    require("cargo", "rustc", of="the Rust client")
    told = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
    if (version := re.match(r"rustc (\d+)\.(\d+)", told)) is None or tuple(map(int, version.groups())) < RUST_MIN:
        pytest.skip(f"{told.strip()}: the Rust client needs {'.'.join(map(str, RUST_MIN))}")
    manifest = str(PROGRAMS / "rust" / "Cargo.toml")
    fetched = subprocess.run(["cargo", "fetch", "--locked", "--manifest-path", manifest], capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"the crates of the Rust client can't be fetched here: {fetched.stderr[-300:]}")
    target = os.environ.get("CARGO_TARGET_DIR", str(tmp_path))
    run("cargo", "build", "--locked", "--manifest-path", manifest, "--target-dir", target, cwd=tmp_path, limit_s=BUILD_S)
    return str(Path(target) / "debug" / "trial")


async def test_rust_client_runs_unchanged_in_every_use(program: str, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster:
        results, output = await trial([program, cluster.nameservers, *USES], tmp_path)
    assert results == [f"ok {use}" for use in USES], output
