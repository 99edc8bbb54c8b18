"""Print the Grafana dashboard of brokers and groups, lockstep.json, from the table of its panels.

python deploy/grafana/make_dashboard.py > deploy/grafana/lockstep.json
"""

import json
from dataclasses import dataclass
from typing import Any

JOB = 'job="lockstep"'
GROUP = 'job="lockstep", consumer_group=~"$group"'
TOPIC = 'job="lockstep", topic=~"$topic"'
FLOW = 'job="lockstep", topic=~"$topic", consumer_group=~"$group"'
RATE = "$__rate_interval"
"""Grafana's variable: four scrapes at least."""
WIDTH, HEIGHT = 8, 8
"""The size of a panel in Grafana's grid, which is 24 wide."""


@dataclass(frozen=True)
class Panel:
    """A chart. `expressions` maps PromQL to the legend of its series."""

    title: str
    text: str
    unit: str
    expressions: dict[str, str]


def p(quantile: float, metric: str = "lockstep_append_latency_seconds") -> str:
    """Return a quantile of a histogram, by broker."""
    bucket = f"rate({metric}_bucket{{{JOB}}}[{RATE}])"
    return f"histogram_quantile({quantile}, sum by (node_id, le) ({bucket}))"


ROWS = {
    "Groups": (
        Panel(
            "Behind, in time",
            "Time since the oldest uncommitted message was stored. Alert on this one.",
            "s",
            {f"max by (consumer_group, topic) (rocketmq_consumer_lag_latency{{{FLOW}}}) / 1000": "{{consumer_group}} {{topic}}"},
        ),
        Panel(
            "Behind",
            "Messages stored and not committed.",
            "short",
            {f"sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{{{FLOW}}})": "{{consumer_group}} {{topic}}"},
        ),
        Panel(
            "Consumed",
            "Messages given to consumers per second.",
            "cps",
            {f"sum by (consumer_group) (rate(rocketmq_messages_out_total{{{FLOW}}}[{RATE}]))": "{{consumer_group}}"},
        ),
        Panel(
            "Members",
            "The number at the broker that lists most.",
            "short",
            {f"max by (consumer_group) (rocketmq_consumer_connections{{{GROUP}}})": "{{consumer_group}}"},
        ),
        Panel(
            "Queues held",
            "Queues of ordered groups whose lock a member holds.",
            "short",
            {f"sum by (consumer_group) (lockstep_queues_held{{{GROUP}}})": "{{consumer_group}}"},
        ),
        Panel(
            "Moves of queues",
            "Locks granted per minute. A group that moves queues all the time does not settle.",
            "cpm",
            {f"sum by (consumer_group) (rate(lockstep_queue_grants_total{{{GROUP}}}[{RATE}])) * 60": "{{consumer_group}}"},
        ),
        Panel(
            "Dead letters",
            "New dead letters per minute.",
            "cpm",
            {f"sum by (consumer_group) (rate(rocketmq_send_to_dlq_messages_total{{{GROUP}}}[{RATE}])) * 60": "{{consumer_group}}"},
        ),
        Panel(
            "Parked keys",
            "Keys that were set aside and wait for a replay.",
            "short",
            {f"sum by (consumer_group) (lockstep_parked_keys{{{GROUP}}})": "{{consumer_group}}"},
        ),
        Panel(
            "Passed over",
            "Messages per second that the subscription does not match.",
            "cps",
            {f"sum by (consumer_group, topic) (rate(lockstep_filtered_messages_total{{{FLOW}}}[{RATE}]))": "{{consumer_group}} {{topic}}"},
        ),
    ),
    "Topics": (
        Panel(
            "Stored",
            "Messages stored per second.",
            "cps",
            {f"sum by (topic) (rate(rocketmq_messages_in_total{{{TOPIC}}}[{RATE}]))": "{{topic}}"},
        ),
        Panel(
            "Stored bytes",
            "Bytes stored per second.",
            "Bps",
            {f"sum by (topic) (rate(rocketmq_throughput_in_total{{{TOPIC}}}[{RATE}]))": "{{topic}}"},
        ),
        Panel(
            "Returned bytes",
            "Bytes given to consumers per second.",
            "Bps",
            {f"sum by (topic) (rate(rocketmq_throughput_out_total{{{TOPIC}}}[{RATE}]))": "{{topic}}"},
        ),
    ),
    "Brokers": (
        Panel(
            "Append latency",
            "From the first append of a loop turn until its messages were confirmed: the cost of a send, without the network.",
            "s",
            {p(0.5): "{{node_id}} median", p(0.99): "{{node_id}} 99 %"},
        ),
        Panel(
            "Hand-overs",
            "From the last sign of a queue's owner to the grant to another member: the grace and more after a loss.",
            "s",
            {
                p(0.5, "lockstep_handover_seconds"): "{{node_id}} median",
                p(0.99, "lockstep_handover_seconds"): "{{node_id}} 99 %",
            },
        ),
        Panel(
            "Free space",
            "Sends are refused below the reserve.",
            "bytes",
            {
                f"lockstep_disk_free_bytes{{{JOB}}}": "{{node_id}} free",
                f"lockstep_disk_reserve_bytes{{{JOB}}}": "{{node_id}} reserve",
                f"rocketmq_storage_size{{{JOB}}}": "{{node_id}} log",
            },
        ),
        Panel(
            "Not synced",
            "Bytes of the log that are written and not synced.",
            "bytes",
            {f"rocketmq_storage_flush_behind_bytes{{{JOB}}}": "{{node_id}}"},
        ),
        Panel(
            "Transactions",
            "Messages of transactions that are not decided, and those of them that are too old to be asked about.",
            "short",
            {
                f"rocketmq_half_messages{{{JOB}}}": "{{node_id}} open",
                f"lockstep_transactions_expired{{{JOB}}}": "{{node_id}} too old",
            },
        ),
        Panel(
            "Connections and held pulls",
            "Open connections, and pulls that wait for messages.",
            "short",
            {
                f"lockstep_connections{{{JOB}}}": "{{node_id}} connections",
                f"lockstep_held_pulls{{{JOB}}}": "{{node_id}} held pulls",
            },
        ),
        Panel(
            "Accepts sends",
            "6: readable and writable; 4: sends are refused for lack of room. Below it: accepted by so many nameservers.",
            "short",
            {
                f"rocketmq_broker_permission{{{JOB}}}": "{{node_id}} permission",
                f"sum by (node_id) (lockstep_registered{{{JOB}}})": "{{node_id}} registered",
            },
        ),
        Panel(
            "Replicas",
            "Replicas that what is acknowledged waits for. Alert when one is missing.",
            "short",
            {
                f"lockstep_replicas_in_sync{{{JOB}}}": "{{node_id}} in the set",
                f"sum by (node_id) (lockstep_replica_connected{{{JOB}}})": "{{node_id}} connected",
            },
        ),
        Panel(
            "Missing at replicas",
            "Bytes of a broker's log that its replica lacks.",
            "bytes",
            {f"lockstep_replica_behind_bytes{{{JOB}}}": "{{node_id}} {{replica}}"},
        ),
        Panel(
            "CPU",
            "Of one core.",
            "percentunit",
            {f"rate(process_cpu_seconds_total{{{JOB}}}[{RATE}])": "{{instance}}"},
        ),
    ),
}


def chart(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
        for index, (expression, legend) in enumerate(panel.expressions.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}},
        "targets": targets,
    }


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a variable with the values of a label, all of them at first."""
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": f"label_values({query}, {label})",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, charts in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        y += 1
        for index, panel in enumerate(charts):
            panels.append(chart(len(panels) + 1, panel, index % 3 * WIDTH, y + index // 3 * HEIGHT))
        y += -(-len(charts) // 3) * HEIGHT
    return {
        "title": "lockstep",
        "uid": "lockstep",
        "tags": ["lockstep", "rocketmq"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "15s",
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                variable("group", "consumer_group", f"rocketmq_consumer_connections{{{JOB}}}"),
                variable("topic", "topic", f"rocketmq_messages_in_total{{{JOB}}}"),
            ]
        },
        "panels": panels,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
