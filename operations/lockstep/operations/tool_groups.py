"""The groups under which the tools themselves read and record. No consumer is a member of them, so they are not watched as groups."""

READER_GROUP = "LOCKSTEP_TAIL"
"""The group that pulls name. It commits nothing, so it has no progress."""
REPLAY_GROUP = "LOCKSTEP_REPLAY"
"""The group whose progress in a dead-letter topic is what was replayed of it."""


def is_tool_group(name: str) -> bool:
    """Return whether the group is one of the tools' own."""
    return name in (READER_GROUP, REPLAY_GROUP)
