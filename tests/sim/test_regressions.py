"""Runs that once showed a bug, by its description. Changes of the cluster or the workload change them, so each bug has a unit test too."""

import pytest

from sweep.seeds import run_one

FOUND = {
    "an unkeyed send that failed over from one broker ended as not stored": ("send", 2),
    "a heartbeat in flight while a consumer left kept it in the member list": ("disk", 92),
    "a heartbeat in flight while a consumer left kept it in the member list, with another group in its process": ("dual", 156),
    "a layout registered by one broker was unknown to the others until they registered again": ("swarm", 20206),
    "a broker that missed a deletion kept the messages of the topic": ("delete", 10),
    "a reset granted the queue to another member before its holder was notified": ("reset", 1),
    "a failed call with a pending send back exceeded its timeout, and its message was never called again": ("concurrent", 35),
    "a consumer locked a queue while a call of an older consumer of its process was running": ("stubborn", 16),
    "a full disk while a layout from the nameserver was stored raised in the socket's read callback": ("swarm", 70033),
    "a commit() after a backward seek was rejected as stale": ("readers", 2),
    "a response for a draining queue of an unassigned topic ended its consumer": ("readers", 18),
    "a gap in the response to an earlier grant was not reported": ("retention", 126),
    "a commit() returned although it was refused while another queue was seeking backward": ("swarm", 930122),
    "group reset-offset ended with a traceback if a broker did not know a queue yet": ("swarm", 500672),
    "a delayed message that could not be read from disk ended its broker": ("swarm", 963053),
    "a restart after a reset granted the queue to another member before its holder was notified": ("reset_restart", 1),
    "a member that rebalanced by another broker's list kept using it after its own broker returned": ("long", 960232),
    "the drain limit passed while a dead letter waited for its response, and the queue was never locked again": ("swarm", 940494),
    "a queue granted when it was not wanted, and wanted again before its release was confirmed, was never consumed": (
        "park",
        20571,
    ),
    "a checker did not let a broadcasting member handle new messages at offsets that it had reported as lost": ("swarm", 831830727),
    "a checker judged a place by the message that it got after a power cut, as no response had named the one before": (
        "swarm",
        523319745,
    ),
    "a checker expected a broadcasting member to heed a response that arrived after its grant had ended": ("broadcast", 339034094),
    "the done ranges of a commit were dropped because a dead letter had moved the progress past its offset": ("lanes", 25),
    "a client id that another user had tried to take was refused to its owner": ("access", 1),
    "a member without rights lost its queues before it knew": ("access", 3),
    "a former master that one of two nameservers had refused was accepted at its next start": ("promote", 5003),
    "a copy that was killed before it was refused counted as accepted": ("promote", 637621711),
    "a promoted copy continued the clock of the master before its last one": ("promote", 864790215),
    "a broker read its users an interval after a long recovery": ("swarm", 777425894),
    "a copy of a file of the log was left by a killed replica": ("replica", 637621445),
    "a replica that had begun anew kept its member id over a power cut": ("replica_retention", 13),
    "a replica removed a file that its first sync covered": ("replica_retention", 2),
    "a copy that was complete when its master stopped, and then served again, could not be promoted": ("promote", 213),
    "a replica that followed its master again still counted as complete after a power cut": ("promote", 26),
    "a replica that restarted forgot that its master had stopped in order": ("promote", 355),
    "a loss that was assumed by a term that never began was forgotten by the next election": ("register", 204),
    "a checker expected a master to renew grants that a loss had ended which its predecessor had assumed": ("power_all", 77000024),
    "a copy that had followed two masters was elected with the clock of the first": ("failover", 70002),
    "a replica that had not applied the loss of its master's term assumed it once more": ("power_all", 301),
}
"""Bug → (world, seed)."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", FOUND)
def test_former_bug_does_not_recur(bug: str) -> None:
    world, seed = FOUND[bug]
    assert [str(violation) for violation in run_one(seed, world).violations] == []
