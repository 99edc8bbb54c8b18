"""What the demo says of its faults is what happened."""

from lockstep.admin.demo.load import sent_again


def test_frames_that_were_sent_again_are_told_and_none_where_there_was_none() -> None:
    assert sent_again(1_234) == "1,234 frames of the failed task were sent again and stored once"
    assert sent_again(0) == "no frame is known to have been sent again (a queue's last one can't be told)"
