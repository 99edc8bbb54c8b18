"""Requests and bodies of RocketMQ's own clients that differ from those of native ones (docs/rocketmq.md)."""
