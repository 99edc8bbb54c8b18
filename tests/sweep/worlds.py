"""Draws the settings of a universe from its seed and its world.

A world is a bias: it defines the faults and the likely settings. "swarm" draws its own mix of all faults for each seed; the others
aim at one family. The same seed in the same world is the same universe.
"""

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from sweep.recovery_worlds import RECOVERY
from sweep.replica_worlds import ELECTION_KINDS, REPLICAS
from sweep.settings import (
    AUDIT,
    BROADCAST,
    BROADCAST_SHARE,
    CLASSIC,
    COMMON,
    CONCURRENT,
    CONCURRENT_SHARE,
    GROUP,
    READERS,
    READERS_SHARE,
    READING,
    RETURNS,
    TIMERS,
    TIMERS_SHARE,
    TOPIC,
    TRANSACTIONS_SHARE,
    USERS,
    USERS_SHARE,
    Setting,
    World,
)

WORLDS: Mapping[str, World] = {
    "swarm": World({}),
    "net": World(
        {"partition": 4, "one_way": 4, "reset": 4, "slow_link": 2, "isolate": 2, "silence": 2, "pause_consumer": 1},
        {"grace_ms": (1_000, 3_000), "late_chance": (0.001, 0.02)},
    ),
    "late": World(
        {"slow_link": 6, "cut_at_response": 4, "reset": 1, "stop_consumer": 1},
        {"grace_ms": (1_000,), "late_chance": (0.01, 0.03), "fault_every_s": (1.0,), "exile": (False,)},
    ),
    "churn": World({"stop_consumer": 4, "kill_consumer": 3, "reset": 2, "duplicate": 1, "kill_in_call": 1}, {"consumers": (3, 5)}),
    "pause": World({"pause_consumer": 4, "long_pause": 2, "pause_in_call": 4, "pause_broker": 3, "reset": 1, "wall_jump": 1}),
    "broker": World({"kill_broker": 4, "stop_broker": 1, "reset": 2, "stop_consumer": 2, "slow_disk": 1, "kill_at_write": 2}),
    "power": World(
        {"power_broker": 3, "power_at_write": 3, "power_twice": 3, "kill_broker": 1, "stop_consumer": 1, "slow_disk": 1, "everything": 1}
    ),
    "fsync": World(
        {"slow_disk": 4, "power_broker": 3, "power_at_write": 2, "power_twice": 2, "reset": 2, "cut_at_response": 2},
        {"flush": ("sync",), "exile": (False,), "segment_bytes": (32 << 10,), "fault_every_s": (0.7, 1.5)},
    ),
    "disk": World(
        {
            "eio": 3,
            "enospc": 2,
            "slow_disk": 3,
            "snapshot_rot": 1,
            "kill_at_write": 2,
            "power_at_write": 2,
            "kill_broker": 1,
            "stop_consumer": 1,
        },
        {"reserve_bytes": (0, 20_000), "segment_bytes": (32 << 10, 64 << 10)},
    ),
    "machines": World({"power_consumer": 3, "power_broker": 2, "everything": 1, "nameserver": 2, "reset": 1, "stop_consumer": 1}),
    "alter": World(
        {"alter": 3, "kill_broker": 2, "stop_consumer": 2, "nameserver": 2, "partition": 1, "reset": 1, "kill_consumer": 1},
        {"creators": (2,), "queues": (1, 3), "nameservers": (1, 2)},
    ),
    "first": World(
        {"first_sends": 6, "strange_layouts": 2, "kill_broker": 2, "nameserver": 1, "partition": 2, "alter": 1, "reset": 1},
        {"auto_create": (True,), "nameservers": (1, 2), "brokers": (2, 3), "fault_every_s": (0.7, 2.0), "storm_s": (40.0,)},
    ),
    "few_topics": World(
        {"first_sends": 6, "strange_layouts": 1, "kill_broker": 1, "reset": 1},
        {
            **{"auto_create": (True,), "topics_max": (3, 6), "brokers": (1,), "nameservers": (1,)},
            **{"fault_every_s": (0.7, 2.0), "storm_s": (40.0,), "exile": (False,)},
        },
    ),
    "copies": World(
        {"copy_store": 4, "kill_consumer": 2, "stop_consumer": 2},
        {"fault_every_s": (2.0, 5.0), "storm_s": (40.0,), "exile": (False,), "late_chance": (0.0,)},
    ),
    "names": World(
        {"take_name": 4, "kill_consumer": 2, "kill_broker": 1},
        {"fault_every_s": (3.0, 6.0), "storm_s": (40.0,), "exile": (False,), "late_chance": (0.0,), "nameservers": (1, 2)},
    ),
    "regrace": World({"regrace": 4, "kill_consumer": 2, "pause_consumer": 2, "isolate": 2, "partition": 1, "stop_consumer": 1}),
    "recontract": World(
        {"recontract": 4, "kill_broker": 1, "partition": 1, "kill_consumer": 2, "pause_consumer": 1},
        {"tag_b_share": (0.3,), "exile": (False,)},
    ),
    "rolling": World(
        {"roll": 4, "kill_broker": 1, "partition": 1, "kill_consumer": 2, "pause_consumer": 1, "reset": 1},
        {"tag_b_share": (0.3,), "exile": (False,), "threaded": (False,), "fault_every_s": (2.0, 5.0)},
    ),
    "lanes": World(
        {
            **{"kill_consumer": 3, "kill_in_call": 2, "stop_consumer": 3, "pause_consumer": 2, "pause_in_call": 2, "long_pause": 1},
            **{"kill_broker": 2, "power_broker": 1, "reset": 2, "partition": 1, "cut_at_response": 1, "reset_progress": 1},
        },
        {
            "order_by": ("sharding_key",),
            "commit": ("interval",),
            "manual": (False,),
            "concurrency": (2, 5, 20),
            "batch_count": (1, 1, 3),
            "queues": (1, 1, 3),
            "keys": (3, 10, 40),
            "fail_share": (0.0, 0.05, 0.2),
            "slow_share": (0.04, 0.2),
            "attempts_max": (None, None, 2),
            "stubborn_share": (0.0, 0.0, 0.3),
            "exile": (False,),
        },
    ),
    "park": World(
        {
            **{"kill_consumer": 3, "kill_in_call": 1, "stop_consumer": 3, "pause_consumer": 2, "pause_in_call": 1, "long_pause": 1},
            **{"power_consumer": 1, "kill_broker": 3, "stop_broker": 1, "pause_broker": 1, "power_broker": 2, "power_twice": 1},
            **{"kill_at_write": 2, "power_at_write": 1, "everything": 1, "slow_disk": 1},
            **{"reset": 2, "partition": 2, "one_way": 1, "isolate": 1, "slow_link": 2, "cut_at_response": 1, "cut_at_park": 6},
        },
        {
            "exhausted": ("park",),
            "attempts_max": (1, 2, 3),
            "order_by": ("queue", "sharding_key"),
            "commit": ("interval",),
            "manual": (False,),
            "storm_s": (40.0, 60.0, 90.0),
            "failing_keys": (0.3, 0.6),
            "control_every_s": (1.0, 3.0),
            "drop_share": (0.0, 0.1, 0.3),
            "concurrency": (2, 5, 20),
            "batch_count": (1, 1, 3, 16),
            "queues": (1, 1, 3),
            "pull_bytes": (400, 1 << 20),
            "send_every_s": (0.08, 0.15, 0.3),
            "latency_s": (0.0005, 0.02, 0.02),
            "jitter_s": (0.02, 0.04),
            "keys": (3, 10, 40),
            "unkeyed_share": (0.0, 0.0, 0.05),
            "fail_share": (0.0, 0.02, 0.1),
            "slow_share": (0.0, 0.04, 0.2),
            "stubborn_share": (0.0, 0.0, 0.3),
            "exile": (False,),
        },
    ),
    "dual": World(
        {"toggle": 5, "kill_consumer": 2, "partition": 1, "reset": 2, "stop_consumer": 1, "kill_broker": 1, "pause_consumer": 1},
        {"groups": ((GROUP, AUDIT),), "threaded": (False,)},
    ),
    "alone": World(
        {"only_leave": 1, "only_crash": 2, "only_power": 1, "only_silence": 1, "only_broker": 2, "only_everything": 1},
        {
            "late_chance": (0.0,),
            "faults_max": (1,),
            "fault_every_s": (5.0,),
            "storm_s": (45.0,),
            "exile": (False,),
            "queues": (2, 4),
            "long_share": (0.0,),
            "fail_share": (0.0,),
            "manual": (False,),
            "send_every_s": (0.05, 0.1),
            "threaded": (False, True),
        },
    ),
    "rot": World(
        {
            "log_rot": 3,
            "file_rot": 1,
            "entry_rot": 2,
            "kill_broker": 1,
            "stop_broker": 1,
            "power_broker": 1,
            "slow_disk": 1,
            "stop_consumer": 1,
        },
        {"exile": (False,), "snapshot_interval_ms": (5_000, 20_000), "segment_bytes": (32 << 10, 256 << 10), "storm_s": (60.0,)},
    ),
    "classic": World(
        {
            **{"kill_consumer": 3, "stop_consumer": 2, "pause_consumer": 2, "long_pause": 1, "oversleep": 3},
            **{"kill_broker": 2, "reset": 2, "partition": 1},
        },
        {
            "classic": (2, 3),
            "groups": ((GROUP,), (GROUP, CLASSIC)),
            "consumers": (2,),
            "allocate": ("by_broker", "average"),
            "queues": (1, 3),
            "exile": (False,),
            "manual": (False,),
            "tag_b_share": (0.0,),
            "fault_every_s": (5.0, 15.0),
            "storm_s": (300.0,),
            "threaded": (False,),
        },
    ),
    "classic_power": World(
        {"power_broker": 4, "kill_broker": 1, "kill_consumer": 2, "stop_consumer": 2, "reset": 1},
        {
            **{"classic": (2, 3), "groups": ((GROUP,), (GROUP, CLASSIC)), "consumers": (2,), "allocate": ("by_broker", "average")},
            **{"queues": (1, 3), "exile": (False,), "manual": (False,), "tag_b_share": (0.0,), "threaded": (False,)},
            **{"flush": ("async",), "fault_every_s": (5.0, 10.0), "storm_s": (180.0,)},
            "settle_s": (8.0,),  # until the first commits of classic clients are synced
        },
    ),
    "early_groups": World(
        {"kill_broker": 2, "power_broker": 1, "alter": 1, "kill_consumer": 2, "stop_consumer": 1, "partition": 1, "nameserver": 1},
        {
            **{"early": (True,), "groups": ((GROUP, AUDIT),), "readers": (False, True), "flush": ("async", "sync"), "storm_s": (30.0,)},
            **{"nameservers": (1, 2), "consumers": (2, 3), "manual": (False,), "exile": (False,), "fault_every_s": (1.0, 2.0)},
        },
    ),
    "access": World(
        {
            **{"lose_sub": 5, "lose_pub": 2, "remove_user": 2, "rotate_password": 3, "intrude": 6, "take_place": 2},
            **{
                "kill_broker": 1,
                "power_broker": 1,
                "kill_consumer": 1,
                "stop_consumer": 1,
                "pause_consumer": 1,
                "pause_broker": 1,
                "reset": 1,
            },
        },
        {
            **{"users": (True,), "groups": ((GROUP,), (GROUP, AUDIT)), "concurrent": (True, True, False), "readers": (False, False, True)},
            **{"consumers": (2, 3), "fault_every_s": (0.7, 1.5, 3.0), "storm_s": (60.0, 90.0), "manual": (False,), "exile": (False,)},
            **{"threaded": (False,), "late_chance": (0.0,)},
        },
    ),
    "access_classic": World(
        {
            **{"lose_sub": 3, "lose_pub": 1, "remove_user": 1, "rotate_password": 2, "intrude": 6},
            **{"kill_broker": 1, "kill_consumer": 1, "stop_consumer": 1, "pause_consumer": 1, "reset": 1},
        },
        {
            **{"users": (True,), "classic": (2,), "groups": ((GROUP, CLASSIC),), "consumers": (2,), "allocate": ("by_broker", "average")},
            **{"queues": (1, 3), "exile": (False,), "manual": (False,), "tag_b_share": (0.0,), "threaded": (False,)},
            **{"fault_every_s": (3.0, 8.0), "storm_s": (150.0,), "late_chance": (0.0,)},
        },
    ),
    "stubborn": World(
        {"toggle": 4, "stop_consumer": 2, "reset_progress": 1, "pause_consumer": 2, "partition": 1, "kill_broker": 1, "kill_consumer": 1},
        {
            "groups": ((GROUP, AUDIT), (GROUP,)),
            "stubborn_share": (0.5, 1.0),
            "long_share": (0.05, 0.15),
            "drain_ms": (500, 2_000),
            "stop_ms": (500, 2_000),
            "threaded": (False,),
            "storm_s": (60.0,),
        },
    ),
    "blackout": World(
        {"blackout": 3, "slow_disk": 3},
        {
            "flush": ("sync",),
            "exile": (False,),
            "send_every_s": (0.03, 0.08),
            "producers": (3,),
            "fault_every_s": (1.5,),
            "storm_s": (40.0,),
            "long_share": (0.0,),
            "manual": (False,),
        },
    ),
    "delete": World(
        {
            "delete_topic": 4,
            "kill_broker": 2,
            "stop_broker": 1,
            "partition": 2,
            "pause_broker": 1,
            "kill_consumer": 1,
            "stop_consumer": 1,
            "kill_producer": 1,
            "power_broker": 1,
            "nameserver": 1,
        },
        {"topics": ((TOPIC, RETURNS),), "storm_s": (90.0,), "creators": (1,), "exile": (False,)},
    ),
    "begin": World(
        {
            "begin_group": 3,
            "kill_broker": 3,
            "power_broker": 1,
            "kill_at_write": 2,
            "alter": 1,
            "kill_consumer": 1,
            "stop_consumer": 1,
            "partition": 1,
            "cut_at_response": 1,
        },
        {
            "groups": (("ledger", "mail", "stats", "search"),),
            "readers": (False, False, True),
            "late_groups": (("ledger", "mail", "stats", "search"),),
            "flush": ("async", "sync"),
            "storm_s": (60.0,),
            "consumers": (2, 3),
            "manual": (False,),
            "fault_every_s": (1.0, 2.0),
        },
    ),
    "reset": World(
        {"reset_progress": 6, "kill_broker": 1, "power_broker": 1, "stop_consumer": 1, "kill_consumer": 1, "reset": 1, "pause_consumer": 1}
    ),
    "reset_restart": World(
        {"reset_at_a_restart": 4, "kill_broker": 1},
        {
            "groups": ((GROUP,),),
            "consumers": (2, 3),
            "queues": (2, 4),
            "grace_ms": (3_000,),
            "long_share": (0.1, 0.3),
            "drain_ms": (8_000,),
            "stop_ms": (2_000,),
            "fault_every_s": (10.0,),
            "storm_s": (90.0,),
            "exile": (False,),
            "threaded": (False,),
        },
    ),
    "clocks": World(
        {"wall_glitch": 6, "wall_set": 1, "kill_broker": 3, "stop_broker": 1, "reset": 1, "kill_consumer": 1},
        {
            "concurrent": (True,),
            "delayed_share": (0.3,),
            "send_every_s": (0.15, 0.3),
            "fault_every_s": (2.0, 5.0),
            "storm_s": (60.0,),
            "exile": (False,),
        },
    ),
    "timers": World(
        {
            **{"kill_broker": 3, "power_broker": 3, "stop_broker": 1, "kill_at_write": 2, "power_at_write": 2, "power_twice": 1},
            **{"wall_step": 5, "wall_jump": 1, "drift": 1, "slow_disk": 1, "pause_broker": 1, "delete_topic": 2},
            **{"cut_at_timer": 5, "reset": 1, "partition": 1, "kill_producer": 1, "kill_consumer": 1, "stop_consumer": 1},
        },
        {
            **{"timer_share": (0.2, 0.5), "recall_share": (0.2, 0.6), "concurrent": (True,), "topics": ((TOPIC, RETURNS),)},
            **{"consumers": (2, 3), "queues": (1, 3), "creators": (1,), "send_every_s": (0.1, 0.2, 0.4), "unkeyed_share": (0.1, 0.3)},
            **{"segment_bytes": (16 << 10, 64 << 10, 1 << 20), "snapshot_interval_ms": (2_000, 10_000, 60_000)},
            **{"exile": (False,), "fault_every_s": (1.0, 2.0, 5.0), "storm_s": (60.0, 60.0, 90.0)},
        },
    ),
    "transactions": World(
        {
            **{"kill_broker": 3, "power_broker": 3, "stop_broker": 2, "kill_at_write": 2, "power_at_write": 2, "power_twice": 1},
            **{"kill_producer": 8, "wall_step": 1, "slow_disk": 1, "pause_broker": 1, "delete_topic": 1},
            **{"cut_at_response": 4, "reset": 3, "partition": 2, "kill_consumer": 1},
        },
        {
            **{"transaction_share": (0.3, 0.6), "concurrent": (True,), "topics": ((TOPIC, RETURNS),)},
            **{"consumers": (2, 3), "queues": (1, 3), "creators": (1,), "send_every_s": (0.2, 0.4), "unkeyed_share": (0.1, 0.3)},
            **{"segment_bytes": (16 << 10, 64 << 10, 1 << 20), "snapshot_interval_ms": (2_000, 10_000, 60_000)},
            **{"exile": (False,), "fault_every_s": (1.0, 2.0, 5.0), "storm_s": (60.0, 60.0, 90.0)},
        },
    ),
    "retention": World(
        {"kill_broker": 2, "stop_consumer": 2, "pause_consumer": 2, "wall_jump": 1, "power_broker": 1, "slow_disk": 1, "snapshot_rot": 1},
        {
            "segment_bytes": (8 << 10, 16 << 10),
            "readers": (False, False, True),
            "log_bytes_max": (32 << 10, 64 << 10),
            "snapshot_interval_ms": (2_000,),
            "long_share": (0.03, 0.1),
            "send_every_s": (0.03, 0.06),
            "queues": (1, 2),
            **{"timer_share": (0.0, 0.1), "recall_share": (0.3,)},
        },
    ),
    "purge": World(
        {
            "purge_topic": 4,
            "kill_broker": 1,
            "power_broker": 1,
            "stop_consumer": 2,
            "kill_consumer": 1,
            "pause_consumer": 1,
            "partition": 1,
        },
        {
            "segment_bytes": (16 << 10,),
            "readers": (False, False, True),
            "log_bytes_max": (64 << 10, 256 << 10),
            "snapshot_interval_ms": (2_000, 10_000),
            "long_share": (0.03, 0.1),
            "send_every_s": (0.03, 0.06),
            "queues": (1, 2),
        },
    ),
    "concurrent": World(
        {
            "kill_consumer": 3,
            "stop_consumer": 3,
            "kill_broker": 3,
            "power_broker": 2,
            "cut_at_copy": 4,
            "reset": 2,
            "partition": 1,
            "pause_consumer": 1,
            "wall_jump": 1,
            "slow_disk": 1,
            "kill_at_write": 1,
            "power_at_write": 1,
        },
        {"concurrent": (True,), "send_every_s": (0.15, 0.3), "exile": (False,)},
    ),
    "broadcast": World(
        {
            **{"kill_consumer": 4, "power_consumer": 3, "stop_consumer": 3, "pause_consumer": 2, "toggle": 3},
            **{"cut_at_offsets": 3, "spoil_offsets": 3, "kill_in_call": 1},
            **{"kill_broker": 2, "power_broker": 3, "reset": 2, "partition": 2, "slow_disk": 1, "alter": 1},
        },
        {
            "broadcast": (True,),
            "commit": ("interval", "each"),
            "send_every_s": (0.15, 0.3, 1.0),
            "consumers": (2, 3),
            "fault_every_s": (0.7, 2.0, 5.0),
            "storm_s": (60.0,),
            "exile": (False,),
            "threaded": (False,),
        },
    ),
    "handover": World(
        {"stop_consumer": 1},
        {
            "late_chance": (0.0,),
            "fault_every_s": (12.0,),
            "storm_s": (60.0,),
            "exile": (False,),
            "fail_share": (0.0,),
            "long_share": (0.0,),
            "slow_share": (0.6,),
            "batch_count": (3, 16),
            "stop_ms": (8_000,),
            "queues": (2, 3),
            "threaded": (False,),
        },
    ),
    "single": World(
        {"kill_consumer": 2, "pause_consumer": 1, "power_consumer": 1, "kill_broker": 2, "power_broker": 1, "stop_broker": 1, "reset": 1},
        {"late_chance": (0.0,), "faults_max": (1,), "fault_every_s": (5.0,), "storm_s": (60.0,), "exile": (False,), "queues": (3, 4)},
    ),
    "long": World(
        {
            **{"kill_consumer": 3, "stop_consumer": 3, "pause_consumer": 2, "long_pause": 1, "kill_broker": 3, "stop_broker": 2},
            **{
                "power_broker": 1,
                "nameserver": 2,
                "partition": 2,
                "reset": 2,
                "slow_disk": 1,
                "wall_jump": 1,
                "drift": 1,
                "kill_producer": 1,
            },
        },
        {"fault_every_s": (30.0, 60.0), "storm_s": (1_800.0,), "send_every_s": (1.0, 3.0), "grace_ms": (3_000, 8_000)},
    ),
    "wipe": World(
        {"wipe": 2, "kill_consumer": 1, "pause_consumer": 1},
        {"fault_every_s": (8.0,), "exile": (False,), "checked": (("ownership",),)},
    ),
    "send": World(
        {
            "kill_broker": 3,
            "reset": 4,
            "partition": 2,
            "pause_broker": 2,
            "slow_link": 1,
            "nameserver": 1,
            "kill_producer": 2,
            "slow_disk": 1,
        },
        {
            "producers": (3, 4),
            "consumers": (2,),
            "batch_share": (0.1, 0.4),
            "unkeyed_share": (0.1, 0.4),
            "keys": (3, 10),
            "in_flight_max": (10_000, 3),
        },
    ),
    "readers": World(
        {
            **{"kill_consumer": 3, "stop_consumer": 2, "pause_consumer": 2, "reset_progress": 2, "reset": 2, "partition": 2},
            **{"kill_broker": 2, "power_broker": 2, "stop_broker": 1, "cut_at_response": 2, "cut_at_copy": 1},
        },
        {
            "readers": (True,),
            "tag_b_share": (0.2, 0.7),
            "large_share": (0.0, 0.1),
            "send_every_s": (0.1, 0.3),
            "storm_s": (60.0, 90.0),
            "exile": (False,),
            "manual": (False,),
        },
    ),
    **RECOVERY,
    **REPLICAS,
}

NOT_IN_A_SWARM = (
    "spoil_offsets",
    "cut_at_offsets",
    "cut_at_park",
    "wipe",
    "begin_group",
    "delete_topic",
    "purge_topic",
    "reset_at_a_restart",
    "first_sends",
    "wall_glitch",
    "wall_set",
    "wall_step",
    "cut_at_timer",
    "copy_store",
    "strange_layouts",
    "take_name",
    "log_rot",
    "file_rot",
    "entry_rot",
    "only_leave",
    "only_crash",
    "only_power",
    "only_silence",
    "only_broker",
    "only_everything",
    "loss_beside_a_holder",
    "power_after_open",
    "power_at_commit",
    "alter_unwatched",
    "slow_reads",
    "reset_twice",
    "late_port",
    "power_at_file",
    "lose_consume_queues",
    "repeat_after_snapshot",
    "lose_sub",
    "lose_pub",
    "remove_user",
    "rotate_password",
    "intrude",
    "take_place",
    *(kind for kind in REPLICAS["replica"].faults if "replica" in kind),
    "lose_master",
    *ELECTION_KINDS,
)
"""Faults after which not every law holds, or that need a world of their own."""
SHARES = {"swarm": 0.5, "long": 0.1}
"""The share of the seeds of a sweep over all worlds that are in these worlds; the others share the rest."""


def world_of(seed: int) -> str:
    """Return the world of a seed in a sweep over all worlds."""
    random = Random(f"{seed}/world")
    rest = (1 - sum(SHARES.values())) / (len(WORLDS) - len(SHARES))
    (name,) = random.choices(list(WORLDS), [SHARES.get(world, rest) for world in WORLDS])
    return name


def draw(seed: int, world: str | None, kinds: tuple[str, ...], *, storm_s: float | None = None) -> Setting:
    """Return the settings of a seed's universe. `kinds`: every kind of fault. Raise KeyError if the world is not known."""
    name = world_of(seed) if world is None else world
    own = WORLDS[name]

    def die(what: str) -> Random:
        """Return the random numbers of one choice: another choice does not change them."""
        return Random(f"{seed}/{name}/{what}")

    drawn = {key: die(key).choice(own.settings.get(key, choices)) for key, choices in COMMON.items()}
    drawn |= {key: die(key).choice(choices) for key, choices in own.settings.items() if key not in COMMON}
    faults = dict(own.faults)
    if not faults:
        common = [kind for kind in kinds if kind not in NOT_IN_A_SWARM]
        faults = {kind: die(f"weight of {kind}").randint(1, 4) for kind in common if die(kind).random() < 0.4}
        faults = faults or {die("only fault").choice(common): 1}
        drawn["groups"] = (GROUP, AUDIT) if "toggle" in faults else (GROUP,)
        drawn["tag_b_share"] = 0.3 if "recontract" in faults else die("tag_b_share").choice((0.0, 0.0, 0.2))
        drawn["concurrent"] = die("concurrent").random() < CONCURRENT_SHARE
        drawn["broadcast"] = die("broadcast").random() < BROADCAST_SHARE
        drawn["readers"] = die("readers").random() < READERS_SHARE
        if die("timers").random() < TIMERS_SHARE:
            drawn |= {key: die(key).choice(choices) for key, choices in TIMERS.items()}
        if die("transactions").random() < TRANSACTIONS_SHARE:
            drawn["transaction_share"] = die("transaction_share").choice((0.05, 0.15))
        if die("users").random() < USERS_SHARE:
            drawn["users"] = True
            faults |= USERS
    if drawn.get("concurrent"):
        drawn |= {key: die(key).choice(choices) for key, choices in CONCURRENT.items()}
    if drawn.get("broadcast"):
        drawn |= {key: die(key).choice(own.settings.get(key, choices)) for key, choices in BROADCAST.items()}
    if drawn.get("readers"):
        drawn |= {key: die(key).choice(choices) for key, choices in READING.items()}
        late = drawn.get("late_groups")
        if isinstance(late, tuple):
            at = die("readers begin").randint(0, len(late))
            drawn["late_groups"] = (*late[:at], READERS, *late[at:])
    drawn.setdefault("fault_every_s", die("fault_every_s").choice((0.7, 2.0, 2.0, 5.0, 15.0)))
    drawn.setdefault("storm_s", die("storm_s").choice((40.0, 90.0, 90.0, 300.0)))
    if storm_s is not None:
        drawn["storm_s"] = storm_s
    if len(drawn.get("groups", ())) > 1 or "recontract" in faults:  # type: ignore[arg-type]
        drawn["threaded"] = False
    return Setting(seed=seed, world=name, faults=MappingProxyType(faults), **drawn)  # type: ignore[arg-type]
