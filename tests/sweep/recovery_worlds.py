"""Worlds whose faults meet at the start of a broker, or at one read or write of its disk."""

from collections.abc import Mapping

from sweep.settings import World

LATE = ("ledger", "mail", "stats", "search")

RECOVERY: Mapping[str, World] = {
    "loss": World(
        {"loss_beside_a_holder": 4, "power_after_open": 3, "stop_consumer": 1},
        {
            "flush": ("async",),
            "consumers": (3, 4),
            "grace_ms": (3_000, 8_000),
            "allocate": ("by_broker",),
            "exile": (False,),
            "fault_every_s": (4.0, 8.0),
            "storm_s": (90.0,),
        },
    ),
    "late_ports": World(
        {"late_port": 4, "stop_consumer": 1},
        {
            "grace_ms": (1_000, 3_000),
            "consumers": (2, 3),
            "allocate": ("by_broker",),
            "exile": (False,),
            "fault_every_s": (8.0,),
            "storm_s": (90.0,),
        },
    ),
    "forgotten_commits": World(
        {"power_at_commit": 3, "stop_consumer": 1},
        {"flush": ("sync",), "exile": (False,), "manual": (False,), "fault_every_s": (3.0,), "storm_s": (60.0,)},
    ),
    "split_records": World(
        {"reset_twice": 4, "kill_broker": 1, "stop_consumer": 1},
        {
            "state_bytes": (60, 120),
            "consumers": (2, 3),
            "exile": (False,),
            "send_every_s": (0.03, 0.08),
            "fault_every_s": (4.0,),
            "storm_s": (60.0,),
        },
    ),
    "unwatched_queues": World(
        {"begin_group": 2, "alter_unwatched": 2},
        {
            "brokers": (1,),
            "creators": (1,),
            "groups": (LATE,),
            "late_groups": (LATE,),
            "snapshot_interval_ms": (500, 2_000),
            "send_every_s": (0.08, 0.15),
            "consumers": (2,),
            "exile": (False,),
            "manual": (False,),
            "fault_every_s": (6.0,),
            "storm_s": (60.0,),
        },
    ),
    "cold_reads": World(
        {"slow_reads": 4, "stop_consumer": 2, "kill_consumer": 2, "pause_consumer": 2, "reset_progress": 1, "kill_broker": 1, "reset": 1},
        {
            "cached_reads": (False,),
            "tail_bytes": (300, 2_000),
            "queue_tail_bytes": (200, 1_000),
            "pull_bytes": (400, 2_000, 1 << 20),
            "segment_bytes": (16 << 10, 32 << 10),
            "fault_every_s": (1.0, 2.0),
            "storm_s": (60.0,),
        },
    ),
    "files": World(
        {"power_at_file": 6, "kill_broker": 2, "power_broker": 1},
        {
            "segment_bytes": (8 << 10,),
            "log_bytes_max": (8 << 10, 24 << 10),
            "snapshot_interval_ms": (1_000, 15_000, 25_000),
            **{"timer_share": (0.0, 0.0, 0.1), "recall_share": (0.3,)},
            "send_every_s": (0.03, 0.06),
            "exile": (False,),
            "fault_every_s": (3.0, 6.0),
            "storm_s": (90.0,),
        },
    ),
    "rebuilt": World(
        {"lose_consume_queues": 4, "power_broker": 1, "stop_consumer": 1},
        {"snapshot_interval_ms": (1_000, 5_000), "exile": (False,), "fault_every_s": (4.0,), "storm_s": (60.0,)},
    ),
    "repeats": World(
        {"repeat_after_snapshot": 3, "kill_broker": 1},
        {
            "snapshot_interval_ms": (500,),
            "producers": (2, 3),
            "exile": (False,),
            "fault_every_s": (5.0,),
            "storm_s": (60.0,),
        },
    ),
}
