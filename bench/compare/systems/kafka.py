"""Apache Kafka in KRaft mode, with two client libraries."""

import subprocess

from compare.children import ChildError, Children, free_ports
from compare.systems.base import CACHE, Need, Server, System, class_path, jar_version, needs_java, needs_library, python_client

JARS = CACHE / "kafka"
CLUSTER_ID = "bG9ja3N0ZXAtY29tcGFyZQ"
"""22 digits of base 64, as Kafka wants it."""
JVM = ["-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
JVM += ["-Djava.awt.headless=true"]
"""As in Kafka's own start script."""
SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={data}
num.partitions=8
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
LOGGING = """\
<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c)%n%throwable"/></Console></Appenders>
  <Loggers>
    <Logger name="kafka.server.KafkaRaftServer" level="INFO"/>
    <Root level="WARN"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""


def start(children: Children) -> str:
    port, controller_port = free_ports(2)
    settings, logging = children.folder / "server.properties", children.folder / "log4j2.xml"
    settings.write_text(SETTINGS.format(port=port, controller_port=controller_port, data=children.folder / "data"))
    logging.write_text(LOGGING)
    java = ["java", *JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", class_path(JARS)]
    formatting = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(settings)]
    done = subprocess.run(formatting, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildError(f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")
    children.start("kafka", [*java, "kafka.Kafka", str(settings)], ready="Kafka Server started")
    return f"127.0.0.1:{port}"


def needs() -> list[Need]:
    return needs_java(JARS, "java")


SERVER = Server("Apache Kafka", needs, start, lambda: jar_version(JARS, "kafka_2.13"))
DURABILITY = "acks=all on one node: written to the operating system's cache before it is confirmed, synced when the system chooses"
AIOKAFKA = System(
    name="aiokafka",
    label="Kafka, aiokafka",
    server=SERVER,
    library="aiokafka",
    durability=DURABILITY,
    counts={"one": 2_000, "tasks": 100_000, "pipeline": 120_000, "consume_batch": 700_000, "consume_one": 250_000, "e2e": 2_000},
    client=python_client("aiokafka"),
    needs=needs_library("aiokafka"),
    same={"batch": "pipeline"},
)
CONFLUENT = System(
    name="confluent",
    label="Kafka, confluent",
    server=SERVER,
    library="confluent-kafka",
    durability=DURABILITY,
    counts={"one": 2_000, "tasks": 60_000, "pipeline": 800_000, "consume_batch": 1_200_000, "consume_one": 700_000, "e2e": 2_000},
    client=python_client("confluent"),
    needs=needs_library("confluent_kafka"),
    language="C",
    same={"batch": "pipeline"},
)
