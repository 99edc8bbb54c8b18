"""Worlds whose brokers have replicas."""

from collections.abc import Mapping

from sweep.settings import World

_SETTINGS: Mapping[str, tuple[object, ...]] = {
    **{"brokers": (1, 1, 2), "replicas": (1, 1, 2), "consumers": (2, 3), "producers": (2,), "queues": (1, 3), "exile": (False,)},
    **{"concurrent": (False, True), "written_share": (0.0, 0.0, 0.1), "send_every_s": (0.08, 0.15, 0.3), "creators": (1,)},
    **{"segment_bytes": (16 << 10, 32 << 10, 256 << 10), "snapshot_interval_ms": (2_000, 10_000), "late_chance": (0.0, 0.001)},
    **{"fault_every_s": (0.7, 1.5, 3.0), "storm_s": (25.0, 40.0), "tail_bytes": (2_000, 16_000)},
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
    "promote": World(
        {
            **{"lose_master": 8, "kill_replica": 2, "power_replica": 1, "pause_replica": 1, "cut_replica": 2, "slow_replica": 1},
            **{"replica_at_operation": 1, "new_replica": 1, "kill_broker": 1, "kill_consumer": 1, "stop_consumer": 1, "partition": 1},
        },
        {**_SETTINGS, "operated": (True,), "drift": (0.0,), "fault_every_s": (1.5, 3.0), "storm_s": (40.0, 60.0)},
    ),
}
