"""The names of OpenTelemetry's semantic conventions for messaging, version 1.44.0, of which this part has the status "development".

https://opentelemetry.io/docs/specs/semconv/messaging/. `tests/unit/otel/test_names.py` compares them with the published constants.
"""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "lockstep.otel"

MESSAGING_SYSTEM = "messaging.system"
ROCKETMQ = "rocketmq"
"""The conventions have no word for lockstep; its messages are RocketMQ's."""
MESSAGING_OPERATION_NAME = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
SEND = "send"
PROCESS = "process"
MESSAGING_DESTINATION_NAME = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID = "messaging.destination.partition.id"
MESSAGING_CONSUMER_GROUP_NAME = "messaging.consumer.group.name"
MESSAGING_MESSAGE_ID = "messaging.message.id"
MESSAGING_BATCH_MESSAGE_COUNT = "messaging.batch.message_count"
MESSAGING_ROCKETMQ_MESSAGE_TAG = "messaging.rocketmq.message.tag"
MESSAGING_ROCKETMQ_MESSAGE_KEYS = "messaging.rocketmq.message.keys"
MESSAGING_ROCKETMQ_MESSAGE_GROUP = "messaging.rocketmq.message.group"
"""The sharding key."""
MESSAGING_ROCKETMQ_MESSAGE_TYPE = "messaging.rocketmq.message.type"
NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"
MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL = "messaging.rocketmq.message.delay_time_level"
MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP = "messaging.rocketmq.message.delivery_timestamp"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"

LOCKSTEP_ATTEMPT = "lockstep.attempt"
"""How often the message, or the batch, has failed before."""
LOCKSTEP_EPOCH = "lockstep.epoch"
"""The epoch of the fence of an ordered call."""

MESSAGING_CLIENT_OPERATION_DURATION = "messaging.client.operation.duration"
MESSAGING_CLIENT_SENT_MESSAGES = "messaging.client.sent.messages"
MESSAGING_PROCESS_DURATION = "messaging.process.duration"
SECONDS, MESSAGES = "s", "{message}"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds of the histograms in seconds."""
