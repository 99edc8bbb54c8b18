"""Typed header fields, one frozen dataclass per request or response. Wire names are RocketMQ's (camelCase of the names here)."""
