"""What a pull told its consumer."""

from lockstep.protocol.codes import ResponseCode
from sweep.events import PullReceived


def went_back(pull: PullReceived) -> bool:
    """The queue ends before the offset that was asked for: its broker has lost messages."""
    return pull.code == ResponseCode.PULL_OFFSET_MOVED and pull.next_offset is not None and pull.next_offset <= pull.offset
