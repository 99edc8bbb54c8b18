"""The amount of work: part of it in the usual run, all with LOCKSTEP_TEST_SLOW=1, by LOCKSTEP_TEST_SHARE=K/N a share of slow tests."""

import os
import zlib
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

SLOW = os.environ.get("LOCKSTEP_TEST_SLOW") == "1"
SHARE, SHARES = map(int, os.environ.get("LOCKSTEP_TEST_SHARE", "0/1").split("/"))
"""CI, whose time is limited, runs this part of the slow tests. N commits run all of them."""
USUAL_SHARE = 8
"""The usual run tries this fraction (1/n) of the examples of a costly property."""
EXAMPLES = 100 if SLOW else 40
"""The number of examples of a property that names none."""


def in_share(name: str) -> bool:
    """Return whether `name` is in the part of this run."""
    return zlib.crc32(name.encode()) % SHARES == SHARE


def seeds(usual: int, slow: int) -> list[Any]:
    """Return parameters 0 … slow - 1, of which the usual run takes the first `usual`."""
    return usually(range(usual), range(slow))


def seed_count(usual: int, slow: int) -> int:
    """Return the number of seeds for the mark `lockstep`, which makes its parameters itself."""
    return slow if SLOW else usual


def usually(usual: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return `cases` (a tuple is one of several values) as parameters; those outside of `usual` are marked slow."""
    values = [(case, case if isinstance(case, tuple) else (case,)) for case in cases]
    return [pytest.param(*each, marks=() if case in usual else pytest.mark.slow) for case, each in values]


def examples(count: int) -> settings:
    """Return settings that try `count` examples in the slow run, and a part of them in the usual one."""
    return settings(max_examples=count if SLOW else max(8, count // USUAL_SHARE))
