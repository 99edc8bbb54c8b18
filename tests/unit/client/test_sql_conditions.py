"""The errors of `sql`, which declares a condition on properties as a subscription."""

import pytest

from lockstep.client import SqlError, sql


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (f"a = '{'x' * 8_192}'", "the condition has 8198 characters: at most 8192"),
        # A comma in a list is followed by a space in the canonical form.
        (
            "a IN (" + ",".join(f"'{number:05}'" for number in range(255)) + f",'{'y' * 6_100}')",
            "the condition has 8404 characters in its canonical form: at most 8192",
        ),
    ],
)
def test_condition_that_is_too_long_for_a_subscription_is_an_sql_error(condition: str, words: str) -> None:
    with pytest.raises(SqlError) as refused:
        sql(condition)
    assert (refused.value.reason, refused.value.at) == (words, 8_192)
