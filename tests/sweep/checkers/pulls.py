"""Facts about the response to a pull."""

from lockstep.protocol.codes import ResponseCode
from sweep.events.progress import PullReceived


def went_back(pull: PullReceived) -> bool:
    """Return whether the queue ends before the requested offset: its broker has lost messages."""
    return pull.code == ResponseCode.PULL_OFFSET_MOVED and pull.next_offset is not None and pull.next_offset <= pull.offset
