"""How often the cyclic garbage collector runs in the processes of lockstep (docs/adr/0026-levers-of-speed.md)."""

import gc

YOUNG_OBJECTS_MAX = 50_000
"""The collector runs when this number of container objects more were allocated than freed since its last run. CPython's default, 700 or
2,000, is reached several times for each frame of a few thousand messages, although messages form no cycles."""


def collect_less_often() -> None:
    """Raise the collector's first threshold of this process to YOUNG_OBJECTS_MAX. Keep a higher one, and a collector that is disabled
    (threshold 0)."""
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS_MAX:
        gc.set_threshold(YOUNG_OBJECTS_MAX, *older)
