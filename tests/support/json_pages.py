"""What pages and commands give as JSON, made comparable."""

import json
import re
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
import typer

from support.asgi import Got

DURATION = re.compile(r"\d[\d,.]*(?= (?:ms|s|min|h|d)\b)")


def ageless(value: Any) -> Any:
    """Return a document without how long ago or for how long something was: the command asked a moment earlier."""
    if isinstance(value, dict):
        return {name: None if name.endswith("_ms") else ageless(each) for name, each in value.items()}
    if isinstance(value, list):
        return [ageless(each) for each in value]
    return DURATION.sub("N", value) if isinstance(value, str) else value


async def printed(capsys: pytest.CaptureFixture[str], command: Coroutine[Any, Any, None]) -> Any:
    """Return the JSON that a command prints. That it found a problem is no matter here."""
    capsys.readouterr()
    with suppress(typer.Exit):
        await command
    return json.loads(capsys.readouterr().out)


def parsed(got: Got, status: int = 200) -> Any:
    """Return the document of a response, which has this status."""
    assert (got.status, got.headers["content-type"], got.headers["cache-control"]) == (status, "application/json", "no-store")
    return json.loads(got.text)
