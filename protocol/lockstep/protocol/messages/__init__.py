"""Messages: what users send and receive, and their stored form, a record with properties.

Here: values, their encodings, message ids, and the sequences of idempotent producers. Not here: the frames that carry records
(`protocol/frame.py`), and the log that holds them (`broker/store`).

Read `message.py` first, then `record.py`.
"""
