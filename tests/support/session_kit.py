"""A session against a scripted broker: what its tests share."""

from lockstep.protocol.codes import RequestCode

LOCK, SYNC = RequestCode.LOCK_BATCH_MQ, RequestCode.SYNC
EMPTY_SYNC = -RequestCode.SYNC
