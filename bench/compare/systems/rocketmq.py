"""Apache RocketMQ, with its Java client."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from compare.children import ChildError, Children, free_ports
from compare.systems import lockstep
from compare.systems.base import CACHE, ROOT, Need, Server, System, class_path, jar_version, needs_java

JARS = CACHE / "rocketmq"
CLASSES = CACHE / "classes"
SOURCE = ROOT / "bench" / "compare" / "java" / "RocketMQClient.java"
OPENED = ["--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
OPENED += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
BROKER_JVM = ["-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:+AlwaysPreTouch", "-XX:MaxDirectMemorySize=1g"]
SETTINGS = """\
brokerClusterName=compare
brokerName=broker-a
brokerId=0
brokerIP1=127.0.0.1
listenPort={port}
haListenPort={ha_port}
namesrvAddr={nameserver}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
mappedFileSizeCommitLog=134217728
autoCreateTopicEnable=true
defaultTopicQueueNums=8
flushDiskType=ASYNC_FLUSH
brokerRole=ASYNC_MASTER
maxTransferCountOnMessageInMemory=1000
maxTransferBytesOnMessageInMemory=1048576
sendThreadPoolQueueCapacity=100000
waitTimeMillsInSendQueue=5000
diskMaxUsedSpaceRatio=95
"""
"""The broker transfers 32 messages or 256 KiB per pull by default, and rejects sends that waited for more than 200 ms."""


def start(children: Children) -> str:
    folder = children.folder
    nameserver_port, port, ha_port = free_ports(3)
    # The broker listens on its port minus 2 as well.
    address = f"127.0.0.1:{nameserver_port}"
    names, broker = folder / "namesrv.conf", folder / "broker.conf"
    names.write_text(f"listenPort={nameserver_port}\n")
    broker.write_text(SETTINGS.format(port=port, ha_port=ha_port, nameserver=address, store=folder / "store"))
    java = ["java", f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}", *OPENED]
    jars = class_path(JARS)
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    children.start("namesrv", [*java, "-Xms256m", "-Xmx256m", "-cp", jars, main, "-c", str(names)], ready="boot success")
    main = "org.apache.rocketmq.broker.BrokerStartup"
    children.start("broker", [*java, *BROKER_JVM, "-cp", jars, main, "-c", str(broker)], ready="boot success")
    return address


def client() -> list[str]:
    """Return the command of the Java program, which is compiled when its source is newer."""
    compiled = CLASSES / "RocketMQClient.class"
    if not compiled.exists() or compiled.stat().st_mtime < SOURCE.stat().st_mtime:
        CLASSES.mkdir(parents=True, exist_ok=True)
        command = ["javac", "-nowarn", "-d", str(CLASSES), "-cp", class_path(JARS), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ChildError(f"{Path(SOURCE).name} does not compile:\n{done.stdout}{done.stderr}")
    return [shutil.which("java") or "java", "-Xms512m", "-Xmx1g", *OPENED, "-cp", class_path(JARS, CLASSES), "RocketMQClient"]


def needs() -> list[Need]:
    return needs_java(JARS, "java", "javac")


def version() -> str:
    return jar_version(JARS, "rocketmq-broker")


SERVER = Server("Apache RocketMQ", needs, start, version)
ROCKETMQ = System(
    name="rocketmq",
    label="RocketMQ, Java",
    server=SERVER,
    library="rocketmq-client",
    library_version=lambda: jar_version(JARS, "rocketmq-client"),
    durability="ASYNC_FLUSH: written to a mapped file before it is confirmed, synced every 500 ms if there are 16 KiB, else within 10 s",
    counts={
        "one": 5_000,
        "tasks": 20_000,
        "pipeline": 150_000,
        "batch": 400_000,
        "consume_batch": 400_000,
        "consume_one": 300_000,
        "ordered_one": 300_000,
        "e2e": 2_000,
    },
    client=client,
    # A JVM compiles what it runs often: a new process is slow at first.
    warmup=1.0,
    e2e_warmup=12_000,
    language="Java",
)
AT_LOCKSTEP = replace(
    ROCKETMQ,
    name="rocketmq_at_lockstep",
    label="RocketMQ's Java client at lockstep",
    server=lockstep.SERVER,
    durability=lockstep.LOCKSTEP.durability,
    needs=needs,
)
"""The same client program at lockstep's broker: beside ROCKETMQ it compares the two brokers."""
