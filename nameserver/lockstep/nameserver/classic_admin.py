"""Requests of RocketMQ's tools to the nameserver. RocketMQ: DefaultRequestProcessor.

Settings are never changed this way: UPDATE_NAMESRV_CONFIG was the way in of CVE-2023-37582, because a setting was a path.
"""

from typing import NoReturn

from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.kv_config import KvConfig
from lockstep.nameserver.route_table import RouteTable
from lockstep.protocol.bodies import TopicList
from lockstep.protocol.codec.java import write_json
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerSystemError, NoPermissionError
from lockstep.protocol.headers.admin import ClusterHeader, KvConfigHeader, KvConfigReply, NamespaceHeader, PutKvConfigHeader
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.runtime.metrics import Slices
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.lanes import LaneLimits
from lockstep.runtime.requests.needs import ANY_USER, DELETE, GET, UPDATE, inside, on_cluster, on_topic
from lockstep.runtime.requests.request import AuditedChange, Request
from lockstep.runtime.security.rights import Kind

LIST_LANE = "lists"
"""The lane of lists that look at every topic."""
LANES = {LIST_LANE: LaneLimits(concurrency=1, queue_max=64)}


class ClassicAdminProcessor:
    """Handles requests of RocketMQ's tools."""

    def __init__(self, table: RouteTable, config: NameserverConfig) -> None:
        self._table = table
        self._config = config
        self._values = KvConfig()

    @handles(RequestCode.PUT_KV_CONFIG, PutKvConfigHeader, needs=[on_cluster(UPDATE)], native=False, classic=True)
    def put_value(self, request: Request) -> Command:
        header: PutKvConfigHeader = request.header
        request.change = self._change(header, header.value)
        self._values.put(header.namespace, header.key, header.value)
        return request.reply()

    @handles(RequestCode.GET_KV_CONFIG, KvConfigHeader, needs=[on_cluster(GET)], native=False, classic=True)
    def get_value(self, request: Request) -> Command:
        header: KvConfigHeader = request.header
        return request.reply(KvConfigReply(self._values.get(header.namespace, header.key)))

    @handles(RequestCode.DELETE_KV_CONFIG, KvConfigHeader, needs=[on_cluster(UPDATE)], native=False, classic=True)
    def delete_value(self, request: Request) -> Command:
        header: KvConfigHeader = request.header
        request.change = self._change(header)
        self._values.delete(header.namespace, header.key)
        return request.reply()

    def _change(self, header: PutKvConfigHeader | KvConfigHeader, after: str | None = None) -> AuditedChange:
        before = self._values.find(header.namespace, header.key)
        return AuditedChange(f"{Kind.CLUSTER}, {header.namespace}/{header.key}", before, after)

    @handles(RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceHeader, needs=[on_cluster(GET)], native=False, classic=True)
    def values(self, request: Request) -> Command:
        header: NamespaceHeader = request.header
        return request.reply(body=write_json({"table": self._values.table(header.namespace)}))

    @handles(RequestCode.REGISTER_BROKER, needs=ANY_USER, native=False, classic=True)
    @handles(RequestCode.UNREGISTER_BROKER, needs=ANY_USER, native=False, classic=True)
    def refuse_broker(self, request: Request) -> NoReturn:
        raise BrokerSystemError(
            "a broker of Apache RocketMQ can't register here: this nameserver routes clients to lockstep's brokers. Give the broker the "
            "addresses of its own nameservers"
        )

    @handles(RequestCode.WIPE_WRITE_PERM_OF_BROKER, needs=[on_cluster(UPDATE)], native=False, classic=True)
    @handles(RequestCode.ADD_WRITE_PERM_OF_BROKER, needs=[on_cluster(UPDATE)], native=False, classic=True)
    def refuse_write_perm(self, request: Request) -> NoReturn:
        raise NoPermissionError(
            "a nameserver does not change the queues of topics: use `lockstep broker drain NAME` before a broker is stopped for good, or "
            "`lockstep topic alter`"
        )

    @handles(RequestCode.UPDATE_NAMESRV_CONFIG, needs=[on_cluster(UPDATE)], native=False, classic=True)
    def refuse_change(self, request: Request) -> NoReturn:
        raise NoPermissionError("settings are not changed by RocketMQ's tools: start the nameserver with other settings")

    @handles(RequestCode.GET_NAMESRV_CONFIG, needs=[on_cluster(GET)], native=False, classic=True)
    def settings(self, request: Request) -> Command:
        """Return the settings as a properties file."""
        lines = [f"listen={','.join(self._config.listen)}", f"connectionsMax={self._config.connections_max}", "orderMessageEnable=false"]
        return request.reply(body="".join(f"{line}\n" for line in lines).encode())

    @handles(RequestCode.DELETE_TOPIC_IN_NAMESRV, TopicHeader, needs=[on_topic(DELETE)], native=False, classic=True)
    def delete_topic(self, request: Request) -> Command:
        """Do nothing: the brokers register the deletion, which DELETE_TOPIC_IN_BROKER has asked for."""
        return request.reply()

    @handles(
        RequestCode.GET_TOPICS_BY_CLUSTER,
        ClusterHeader,
        needs=[inside("topics that may be listed")],
        lane=LIST_LANE,
        native=False,
        classic=True,
    )
    async def topics_by_cluster(self, request: Request) -> Command:
        """Return the topics with queues at registered brokers of a cluster; none if it is unknown."""
        header: ClusterHeader = request.header
        names = {broker.name for broker in self._table.brokers("") if broker.registered and broker.cluster == header.cluster}
        found, slices = [], Slices()
        for topic in filter(request.user.sees_topic, self._table.layouts.user_topics()):
            await slices.step()
            layout = self._table.layouts.get(topic)
            if layout is not None and not names.isdisjoint(entry.broker_name for entry in layout.entries):
                found.append(topic)
        return request.reply(body=TopicList(tuple(found)))

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, needs=ANY_USER, native=False, classic=True)
    def system_topics(self, request: Request) -> Command:
        """Return the names of clusters and brokers, which have routes as topics have, and the address of a broker that knows the others."""
        brokers = [broker for broker in self._table.brokers(request.endpoint.listener) if broker.registered]
        names = sorted({broker.cluster for broker in brokers} | {broker.name for broker in brokers})
        address = {"brokerAddr": brokers[0].address} if brokers else {}
        return request.reply(body=write_json({**address, "topicList": names}))

    @handles(RequestCode.GET_UNIT_TOPIC_LIST, needs=ANY_USER, native=False, classic=True)
    @handles(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, needs=ANY_USER, native=False, classic=True)
    @handles(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, needs=ANY_USER, native=False, classic=True)
    def unit_topics(self, request: Request) -> Command:
        """Return no topics: units are not supported."""
        return request.reply(body=TopicList(()))
