"""What GET_BROKER_RUNTIME_INFO returns to RocketMQ's tools. RocketMQ: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.

rocketmq-exporter reads 43 of the names and shows none of them if one is missing.
"""

from lockstep.broker.classic.statistics import APPEND_RANGES, Statistics
from lockstep.broker.config import BrokerConfig
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.bodies import BrokerStatus
from lockstep.protocol.command import NATIVE_VERSION
from lockstep.protocol.delays import delay_queue_id
from lockstep.protocol.names import SCHEDULE_TOPIC

GIB = 1 << 30
NEVER_WAITS = (
    "dispatchBehindBytes",
    "dispatchMaxBuffer",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "remainTransientStoreBufferNumbs",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
)
"""What tools expect of RocketMQ's thread pools, buffers and dispatcher, which this broker does not have."""
NOT_MEASURED = ("getMessageEntireTimeMax",)


async def runtime_info(
    status: BrokerStatus, statistics: Statistics, state: BrokerState, store: Store, config: BrokerConfig
) -> dict[str, str]:
    """Return the runtime information: RocketMQ's names of what this broker has, every value as text."""
    rates, put_bytes = statistics.rates, statistics.put_bytes
    put, transferred, found, missed = rates.per_s()
    now, today, yesterday = rates.newest, rates.this_morning, rates.yesterday_morning
    began_ms = status.wall_ms - status.up_ms
    used = 1 - status.disk_free_bytes / status.disk_total_bytes if status.disk_total_bytes else 0.0
    log_start, log_end = store.log_bounds
    appended = {name: statistics.append_times.read(name) for name in APPEND_RANGES}
    table = {
        "bootTimestamp": str(began_ms),
        "brokerActive": "true",
        "brokerVersion": str(NATIVE_VERSION),
        "brokerVersionDesc": "V4_9_8",
        "commitLogDirCapacity": f"Total : {status.disk_total_bytes / GIB:.1f} GiB, Free : {status.disk_free_bytes / GIB:.1f} GiB.",
        "commitLogDiskRatio": f"{used:.4f}",
        "commitLogMaxOffset": str(log_end),
        "commitLogMinOffset": str(log_start),
        "consumeQueueDiskRatio": f"{used:.4f}",
        "earliestMessageTimeStamp": str(await store.oldest_ms()),
        "getFoundTps": _rates(found),
        "getMissTps": _rates(missed),
        "getTotalTps": _rates([sum(pair) for pair in zip(found, missed, strict=True)]),
        "getTransferedTps": _rates(transferred),
        "getTransferredTps": _rates(transferred),
        "msgGetTotalTodayMorning": str(today.transferred),
        "msgGetTotalTodayNow": str(now.transferred),
        "msgGetTotalYesterdayMorning": str(yesterday.transferred),
        "msgPutTotalTodayMorning": str(today.put),
        "msgPutTotalTodayNow": str(now.put),
        "msgPutTotalYesterdayMorning": str(yesterday.put),
        "putMessageAverageSize": f"{put_bytes / now.put if now.put else 0.0:.3f}",
        "putMessageDistributeTime": " ".join(
            f"{name}:{counts['statsMinute'].sum if counts is not None else 0}" for name, counts in appended.items()
        ),
        "putMessageEntireTimeMax": str(store.writer.append_latency.max_us // 1_000),
        "putMessageSizeTotal": str(put_bytes),
        "putMessageTimesTotal": str(now.put),
        "putTps": _rates(put),
        "remainHowManyDataToFlush": f"{store.writer.unsynced_bytes} B",
        "runtime": _duration(status.up_ms),
        "startAcceptSendRequestTimeStamp": str(began_ms),
    }
    for level, delay_ms in enumerate(config.delay_levels_ms(), 1):
        queue_id = delay_queue_id(delay_ms)
        delivered, end = state.delays.next_offset(queue_id), store.bounds(SCHEDULE_TOPIC, queue_id)[1]
        if end:
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
    # A request is handled when it is read, and a queue's entry is made with its message: there is nothing that waits in front of them.
    table |= dict.fromkeys((*NEVER_WAITS, *NOT_MEASURED), "0")
    return dict(sorted(table.items()))


def _rates(per_s: "tuple[float, ...] | list[float]") -> str:
    """Return the rates of the three periods. Tools read three numbers."""
    return " ".join(f"{rate:.3f}" for rate in per_s)


def _duration(ms: int) -> str:
    seconds = ms // 1000
    parts = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60, seconds % 60
    return "[ {} days, {} hours, {} minutes, {} seconds ]".format(*parts)
