"""Routes and layouts: REGISTER_BROKER, GET_ROUTEINFO_BY_TOPIC and other lists, UPDATE_AND_CREATE_TOPIC."""

from dataclasses import dataclass, field

from lockstep.protocol.topics.queue import TopicLayout


@dataclass(frozen=True, slots=True)
class DataVersion:
    timestamp: int
    counter: int


@dataclass(frozen=True, slots=True)
class RegisterBody:
    """REGISTER_BROKER (103)."""

    listeners: dict[str, str]
    """Listener name → advertised host:port. `internal` is always included."""
    layouts: tuple[TopicLayout, ...]
    """The layouts that the broker stores, for the whole cluster. If the registration has several parts, those of this part."""
    data_version: DataVersion
    part: int = 0
    parts: int = 1
    """The number of requests of this registration, sent one after the other on one connection. It takes effect with the last one."""
    full: bool = False
    """Whether the broker accepts no more topics. The response then has only newer layouts of topics that the broker already has."""
    auto_create: bool = False
    """Whether the broker creates a topic with its first send."""
    replicas: tuple[str, ...] | None = None
    """The addresses of the other copies of the broker's log: host:port of their listeners named `internal`. None if it has none."""
    tried: tuple[int, ...] | None = None
    """The terms of starts of this store since `previous_term` that ended before it was certain that a nameserver had accepted them."""


@dataclass(frozen=True, slots=True)
class RefusedLayout:
    """A layout that the nameserver left out of a registration."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegisterReply:
    """The response to REGISTER_BROKER.

    Also the body of LAYOUTS_CHANGED (30008): the layouts that another broker registered (sent to brokers), or that a broker has (sent to
    members).
    """

    layouts: tuple[TopicLayout, ...]
    """Layouts that the broker did not send, or sent in a lower version, at most 4,096. The broker adopts them and registers again. Empty in
    the response to any part but the last."""
    refused: tuple[RefusedLayout, ...] = ()
    """Layouts of this request that were left out, at most the first 1,024 of a registration. The registration is valid nevertheless."""
    refused_more: int = 0
    """How many more layouts of this request were left out."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    name: str
    cluster: str
    address: str
    """host:port of the listener on which the nameserver received the request, or of `internal` if the broker has no such listener."""
    registered: bool
    """False for the last known address of a broker that is not registered now."""
    term: int
    replicas: tuple[str, ...] | None = None
    """The addresses of the other copies of its log, one of which serves when this one does not; only beside the address of the listener
    `internal`. None if there are none."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the address, and those of the other copies."""
        return (self.address, *(each for each in self.replicas or () if each != self.address))


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """GET_ROUTEINFO_BY_TOPIC (105): the whole layout and the addresses known now. RocketMQ: TopicRouteData."""

    layout: TopicLayout
    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """GET_BROKER_CLUSTER_INFO (106)."""

    brokers: tuple[BrokerAddress, ...]


@dataclass(frozen=True, slots=True)
class TopicList:
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), without deleted and system topics."""

    topics: tuple[str, ...] = field(metadata={"wire": "topicList"})


@dataclass(frozen=True, slots=True)
class CreateTopicReply:
    """UPDATE_AND_CREATE_TOPIC (17): the layout in force at this broker."""

    layout: TopicLayout
