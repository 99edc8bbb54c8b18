"""How long the work of a producer may take in one turn of the event loop."""

SHARE_US_MIN = 10_000
"""If nothing else keeps the loop busy: reads, timers and heartbeats wait no longer than this."""
SHARE_US_MAX = 100_000
"""However long the application takes."""


def share_us(others_us: int) -> int:
    """Return how long the work may take in this turn (µs), if everything else took `others_us` since its last turn: as long.

    A fixed share would be too small in a loop that an application keeps busy for long in each turn: sends would end many turns late.
    """
    return min(max(others_us, SHARE_US_MIN), SHARE_US_MAX)
