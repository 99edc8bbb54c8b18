"""A real browser, and what it shows: the pages of a simulated cluster, at one moment."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from browser.scene import Scene, record
from browser.tab import Load, serving
from support.processes import Program, program

if TYPE_CHECKING:
    from playwright.sync_api import Browser  # type: ignore[import-not-found, unused-ignore]


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=os.environ["LOCKSTEP_TEST_BROWSER"], args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="session")
def scene() -> Scene:
    return record()


@pytest.fixture(scope="session")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    store = tmp_path_factory.mktemp("browser")
    with program("lockstep.cli.main", "up", "--port", "0", "--brokers", "2", "--store", str(store), event="up.started") as up:
        nameserver = up.started["nameserver"]
        load = Load(nameserver)
        try:
            with serving(nameserver, "127.0.0.1:0", "--allow-changes") as made:
                yield made
        finally:
            load.close()
