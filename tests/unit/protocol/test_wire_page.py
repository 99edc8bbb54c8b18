"""docs/wire.md matches the code."""

from support.wire_page import PAGE, rewritten


def test_tables_of_the_wire_page_match_the_code() -> None:
    text = PAGE.read_text()
    assert rewritten(text) == text, "run: PYTHONPATH=tests python tests/support/wire_page.py"
