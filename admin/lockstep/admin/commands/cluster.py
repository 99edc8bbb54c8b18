"""lockstep cluster."""

from lockstep.admin.client import AdminClient, gather_results
from lockstep.admin.options import JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, print_table
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.runtime.host import Host


def cluster_command(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """List the brokers that the nameserver knows, and whether each can be reached from this machine at its advertised address."""
    run(_cluster(nameserver, as_json))


async def _cluster(nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    brokers = await admin.brokers()
    results = await gather_results({broker.name: admin.group_status(broker, None) for broker in brokers})
    if as_json:
        lines = [
            {
                "name": broker.name,
                "cluster": broker.cluster,
                "address": broker.address,
                "registered": broker.registered,
                "term": broker.term,
                "reached": broker.name in results.values,
                "failure": results.failed.get(broker.name),
            }
            for broker in brokers
        ]
        print_json({"brokers": lines})
        return
    rows = [
        (broker.cluster, broker.name, broker.address, broker.registered, results.failed.get(broker.name, "yes"), broker.term)
        for broker in brokers
    ]
    print_table(["cluster", "broker", "address", "registered", "reached", ">term"], rows, empty="no broker has registered")
