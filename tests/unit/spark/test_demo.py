"""The demo's report of its faults matches the faults."""

from lockstep.cli.demo.load import describe_repeated_frames


def test_repeated_frames_are_reported_and_their_absence_too() -> None:
    assert describe_repeated_frames(1_234) == "1,234 frames of the failed task were sent again and stored once"
    assert describe_repeated_frames(0) == "no frame is known to have been sent again (a queue's last one is not counted)"
