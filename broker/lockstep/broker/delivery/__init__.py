"""Delivery: messages that the broker itself stores again, later or elsewhere.

Here: delayed messages, the retries and dead letters of groups, and the copies of parked messages. Not here: which message a group gets
next (`broker/groups`), how a producer's message is stored (`broker/processors/sent_frames.py`), and the stored bytes (`broker/store`).

Read `message_copy.py` first: what a copy keeps of the message. `delayed_delivery.py` is RocketMQ's ScheduleMessageService.
"""
