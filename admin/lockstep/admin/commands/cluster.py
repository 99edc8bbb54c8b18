"""lockstep cluster: the brokers, their addresses, and whether this machine reaches them."""

from lockstep.admin.client import AdminClient, gather
from lockstep.admin.options import JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, print_table
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.runtime.host import Host


def cluster_command(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """Brokers known to the nameserver; "reached" says whether they answer at that address from here."""
    run(_cluster(nameserver, as_json))


async def _cluster(nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    brokers = await admin.brokers()
    answers = await gather({broker.name: admin.group_status(broker, None) for broker in brokers})
    if as_json:
        lines = [
            {
                "name": broker.name,
                "cluster": broker.cluster,
                "address": broker.address,
                "registered": broker.registered,
                "term": broker.term,
                "reached": broker.name in answers.given,
                "failure": answers.failed.get(broker.name),
            }
            for broker in brokers
        ]
        print_json({"brokers": lines})
        return
    rows = [
        (broker.cluster, broker.name, broker.address, broker.registered, answers.failed.get(broker.name, "yes"), broker.term)
        for broker in brokers
    ]
    print_table(["cluster", "broker", "address", "registered", "reached", ">term"], rows, empty="no broker has registered")
