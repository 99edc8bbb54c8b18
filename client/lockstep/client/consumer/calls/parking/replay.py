"""One key that is replayed, or whose messages are dead-lettered, and the stages of a replay. Pure."""

from dataclasses import dataclass
from enum import Enum


class ReplayStage(Enum):
    """What a replay waits for."""

    WAITING = "its first run, or until it may go on"
    PAUSING = "the end of a pause, after which it goes on"
    PULLING = "a page of the key's messages"
    CALLING = "the listener, which has the messages of a page"
    COMMITTING = "the response to a commit of its progress, while the listener has messages of the page"
    ENDING = "the response to its end, or the end of a pause, after which the end is requested again"


@dataclass(slots=True, eq=False)
class Replay:
    """A key that is replayed, or whose messages are dead-lettered. ParkMachine alone changes it."""

    key: str
    position: int
    """The offset from which the key's messages are read next. Everything of the key below it is with the listener, or accepted."""
    drop: bool
    next: int
    """The offset up to which all is accepted."""
    committed: int
    """The offset up to which the broker knows it."""
    stage: ReplayStage = ReplayStage.WAITING
    due: bool = False
    """Whether it runs in the next turn."""
    page_end: int = 0
    """The end of the page that the listener has."""
    unfinished: int = 0
    """Messages that were passed to the lane and are not accepted."""
    asked: int = 0
    """The `next` of the request that has no response."""
    least: int = 0
    """The offset that the broker named: the replay does not end below it."""
    refused: int = 0
    """The number of refused ends."""
