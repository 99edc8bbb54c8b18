"""All systems, in the order of the table's columns."""

from collections.abc import Mapping

from compare.systems.base import System
from compare.systems.kafka import AIOKAFKA, CONFLUENT
from compare.systems.lockstep import LOCKSTEP
from compare.systems.nats import NATS
from compare.systems.rabbitmq import RABBITMQ
from compare.systems.redis import REDIS
from compare.systems.rocketmq import AT_LOCKSTEP, ROCKETMQ

SYSTEMS: Mapping[str, System] = {system.name: system for system in (LOCKSTEP, REDIS, NATS, RABBITMQ, AIOKAFKA, CONFLUENT, ROCKETMQ)}

BY_NAME: Mapping[str, System] = {**SYSTEMS, AT_LOCKSTEP.name: AT_LOCKSTEP}
"""The systems that `--systems` may name: also one that is no column of the table."""
