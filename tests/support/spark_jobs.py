"""The load generator and the verifying pipeline for tests."""

import json
from pathlib import Path
from typing import Any

from lockstep.spark.load import load_job, verify_job
from lockstep.spark.load.load_rows import Manifest
from support.spark_table import Table

CLEAN = {"repeatedElsewhere": 0, "lost": 0, "repeated": 0, "unexpected": 0, "outOfOrder": 0, "misplaced": 0, "corrupt": 0, "foreign": 0}

MANIFEST = Manifest("0" * 16, "t", ("a:0",), {}, 10, 1, 0.0, 1, (100, 100), 0, "key", (), 0, 1, "sequence")
"""A manifest of ten rows of one key."""


def load(table: Table, folder: Path, *more: str) -> int:
    given = [
        "--nameserver",
        table.cluster.nameserver,
        "--topic",
        table.topic,
        "--out",
        str(folder),
        "--no-warmup",
        "--no-progress",
        "--json",
    ]
    return load_job.main([*given, *more], table.spark)


def verify(table: Table, folder: Path, *more: str) -> int:
    given = ["--nameserver", table.cluster.nameserver, "--manifest", str(folder / "manifest.json"), "--json"]
    return verify_job.main([*given, *more], table.spark)


def verdict(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return found
