"""lockstep cluster."""

from collections import Counter

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import gather_results
from lockstep.operations.brokers.replica_query import find_unserved
from lockstep.protocol.bodies import BrokerAddress
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(add_completion=False)


@app.command("cluster")
def cluster_command(nameserver: NameserverOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """List the brokers that the nameserver knows, whether each can be reached from this machine at its advertised address, and how many of
    its replicas are in its set: `lockstep replica ls` shows them."""
    run(_cluster(nameserver, as_json))


async def _cluster(nameserver: ClusterAddress, as_json: bool) -> None:
    admin = admin_client(nameserver)
    brokers = await admin.brokers()
    results = await gather_results({broker.name: admin.group_status(broker, None) for broker in brokers})
    unserved = {name: finding.problem for name, finding in (await find_unserved(admin, brokers, results.failed)).items()}
    failed = {**results.failed, **unserved}
    copies = (await gather_results({broker.name: admin.copy_status(broker.address) for broker in brokers if broker.registered})).values
    in_set = {name: sum(each.in_set for each in copy.replicas) for name, copy in copies.items()}
    named = Counter(name for layout in (await admin.layouts()).values() for name in layout.brokers)
    states = {broker.name: "not serving" if broker.name in unserved else broker_state(broker, named[broker.name]) for broker in brokers}
    unknown = {name: lost(count) for name, count in sorted(named.items()) if name not in states}
    if as_json:
        lines = [
            {
                "name": broker.name,
                "cluster": broker.cluster,
                "address": broker.address,
                "registered": broker.registered,
                "state": states[broker.name],
                "term": broker.term,
                "reached": broker.name in results.values,
                "failure": failed.get(broker.name),
                "replicas": len(copies[broker.name].replicas) if broker.name in copies else None,
                "replicas_in_set": in_set.get(broker.name),
            }
            for broker in brokers
        ]
        lines += [{"name": name, "address": None, "registered": False, "state": state, "reached": False} for name, state in unknown.items()]
        print_json({"brokers": lines})
        return
    replicas = {name: f"{in_set[name]} of {len(copy.replicas)}" for name, copy in copies.items() if copy.replicas}
    rows: list[tuple[object, ...]] = [
        (broker.cluster, name, broker.address, states[name], failed.get(name, "yes"), broker.term, replicas.get(name))
        for broker in brokers
        for name in (broker.name,)
    ]
    rows += [(None, name, None, state, "no address is known", None, None) for name, state in unknown.items()]
    print_table(["cluster", "broker", "address", "state", "reached", ">term", "replicas in set"], rows, empty="no broker has registered")


def broker_state(broker: BrokerAddress, topic_count: int) -> str:
    """Return "registered", "lost: …" for a broker that has queues of so many topics, or "gone" for one that has none any more."""
    return "registered" if broker.registered else lost(topic_count) if topic_count else "gone"


def lost(topic_count: int) -> str:
    return f"lost: queues of {topic_count} topics"
