"""Helpers for tests of a session against a scripted broker."""

from lockstep.protocol.codes import RequestCode

LOCK, SYNC = RequestCode.LOCK_BATCH_MQ, RequestCode.SYNC
EMPTY_SYNC = -RequestCode.SYNC
