"""Worlds whose brokers have replicas."""

from collections.abc import Mapping

from sweep.settings import World

_SETTINGS: Mapping[str, tuple[object, ...]] = {
    **{"brokers": (1, 1, 2), "replicas": (1, 1, 2), "consumers": (2, 3), "producers": (2,), "queues": (1, 3), "exile": (False,)},
    **{"concurrent": (False, True), "written_share": (0.0, 0.0, 0.1), "send_every_s": (0.08, 0.15, 0.3), "creators": (1,)},
    **{"segment_bytes": (16 << 10, 32 << 10, 256 << 10), "snapshot_interval_ms": (2_000, 10_000), "late_chance": (0.0, 0.001)},
    **{"fault_every_s": (0.7, 1.5, 3.0), "storm_s": (25.0, 40.0), "tail_bytes": (2_000, 16_000)},
    **{"timer_share": (0.0, 0.0, 0.2), "recall_share": (0.3,)},
}

_ELECTED: Mapping[str, tuple[object, ...]] = {
    **{"register": ("etcd", "witness"), "replicas": (1, 2, 2), "drift": (0.0,), "fault_every_s": (0.7, 1.5, 3.0), "brokers": (1, 1, 2)},
}
REPLICAS: Mapping[str, World] = {
    "replica": World(
        {
            **{"kill_replica": 3, "replica_at_operation": 4, "stop_replica": 2, "power_replica": 2, "pause_replica": 3, "cut_replica": 4},
            **{"slow_replica": 3, "reset_replica": 2, "full_replica": 2, "slow_replica_disk": 2, "new_replica": 3, "rot_replica": 1},
            **{"kill_broker": 3, "stop_broker": 1, "pause_broker": 1, "kill_at_write": 2, "kill_consumer": 1, "stop_consumer": 1},
        },
        _SETTINGS,
    ),
    "replica_retention": World(
        {
            **{"kill_replica": 3, "new_replica": 4, "cut_replica": 3, "pause_replica": 2, "slow_replica": 2, "replica_at_operation": 2},
            **{"kill_broker": 2, "pause_broker": 1, "stop_consumer": 1},
        },
        {
            **_SETTINGS,
            **{"segment_bytes": (8 << 10, 16 << 10), "log_bytes_max": (32 << 10, 64 << 10), "snapshot_interval_ms": (2_000,)},
            **{"concurrent": (False,), "send_every_s": (0.03, 0.06)},
        },
    ),
    "failover": World(
        {
            **{"kill_broker": 4, "stop_broker": 2, "stall_master": 4, "master_at_operation": 3, "cut_replica": 4, "cut_register": 3},
            **{"cut_nameserver": 1, "partition": 2, "one_way": 1, "kill_replica": 2, "pause_replica": 2, "slow_replica": 1},
            **{"replica_at_operation": 2, "slow_disk": 1, "enospc": 1, "full_replica": 1, "slow_replica_disk": 1, "new_replica": 1},
            **{"hand_over": 2, "kill_consumer": 1, "stop_consumer": 1, "stop_replica": 1, "reset_replica": 1, "at_election": 4},
            **{"wall_jump": 2, "rot_replica": 1},
        },
        {**_SETTINGS, **_ELECTED, "flush": ("async", "async", "sync"), "storm_s": (40.0, 60.0), "written_share": (0.0, 0.1, 0.5)},
    ),
    "register": World(
        {
            **{"register_down": 5, "register_unclear": 6, "slow_register": 4, "cut_register": 3, "kill_broker": 4, "stall_master": 3},
            **{"at_election": 2, "kill_replica": 3},
            **{"cut_replica": 3, "stop_broker": 1, "pause_replica": 2, "hand_over": 1, "kill_consumer": 1},
        },
        {**_SETTINGS, **_ELECTED, "register": ("etcd", "etcd", "witness"), "storm_s": (40.0, 60.0)},
    ),
    "power_all": World(
        {
            **{"power_copies": 10, "power_broker": 2, "power_replica": 2, "kill_broker": 2, "stall_master": 1, "power_twice": 1},
            **{"at_election": 3},
            **{"cut_replica": 1, "stop_consumer": 1, "kill_consumer": 1},
        },
        {**_SETTINGS, **_ELECTED, "flush": ("async", "async", "sync"), "fault_every_s": (3.0, 5.0), "storm_s": (40.0, 60.0)},
    ),
    "promote": World(
        {
            **{"lose_master": 8, "kill_replica": 2, "power_replica": 1, "pause_replica": 1, "cut_replica": 2, "slow_replica": 1},
            **{"replica_at_operation": 1, "new_replica": 1, "kill_broker": 1, "kill_consumer": 1, "stop_consumer": 1, "partition": 1},
        },
        {**_SETTINGS, "operated": (True,), "drift": (0.0,), "fault_every_s": (1.5, 3.0), "storm_s": (40.0, 60.0)},
    ),
}

ELECTION_KINDS = (
    *("stall_master", "master_at_operation", "cut_register", "cut_nameserver", "hand_over", "register_down", "register_unclear"),
    *("power_copies", "slow_register", "at_election"),
)
"""The kinds of faults that need a register."""
