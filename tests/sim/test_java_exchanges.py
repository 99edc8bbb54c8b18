"""What RocketMQ's clients and tools send to servers, with both types of headers, and what they get: the texts in tests/sim/java."""

from pathlib import Path

import pytest

from support.java_exchange import Law, laws, play
from support.java_wire import BINARY, JSON

pytestmark = pytest.mark.simulated

FILES = sorted((Path(__file__).parent / "java").glob("*.txt"))


@pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("law", [pytest.param(law, id=f"{path.stem}: {law.title}") for path in FILES for law in laws(path)])
async def test_exchange(law: Law, kind: int, caplog: pytest.LogCaptureFixture) -> None:
    await play(law, kind)
    assert "request.failed" not in caplog.text, "no error that was not foreseen"
