"""Universes that once showed a bug, by its name. A change of the cluster or of the workload re-rolls them: each bug has a unit test too."""

import pytest

from sweep.seeds import run_one

FOUND = {
    "an unkeyed send that was given up at one broker ended as not stored": ("send", 2),
    "a heartbeat on its way when a consumer left kept it on the list": ("disk", 92),
    "the same, with another group of the process": ("dual", 156),
    "a layout that one broker brought was unknown to the others until they registered again": ("swarm", 20206),
    "a broker that missed a deletion kept what the topic had had": ("delete", 10),
    "a reset gave the queue to another while its holder could not know": ("reset", 1),
    "a failed call whose send back waited ran too long, and what could not be sent back was never called again": ("concurrent", 35),
    "a consumer locked a queue beside the call that an older one of its process had left running": ("stubborn", 16),
    "a full disk at a layout that the nameserver told of was an error in the reading of a socket": ("swarm", 70033),
    "a commit() that had taken the group back was told that it came too late": ("readers", 2),
    "an answer for a queue that drained, of a topic that was assigned no more, ended its consumer": ("readers", 18),
    "a gap that an answer to a grant of before had told, when nobody listened any more, was told to nobody": ("retention", 126),
    "a commit() returned although what it offered was refused, while it waited for another queue to go back": ("swarm", 930122),
    "group reset-offset ended with a traceback where a broker had not heard of a queue yet": ("swarm", 500672),
    "a delayed message that the disk did not read ended its broker": ("swarm", 963053),
    "a restart after a reset gave the queue to another while its holder could not know": ("reset_restart", 1),
    "who had dealt by another broker's list while its own was away kept to it when it was back": ("long", 960232),
    "the drain limit passed while a dead letter waited for its answer, and the queue was never locked again": ("swarm", 940494),
}
"""Bug → (world, seed)."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", FOUND)
def test_never_again(bug: str) -> None:
    world, seed = FOUND[bug]
    assert [str(violation) for violation in run_one(seed, world).violations] == []
