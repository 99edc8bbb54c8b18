"""Logs: structlog as the servers and the SDK use it, with a limit for repeated events and text that a terminal can print.

Not here: metrics (`runtime/metrics.py`).

Read `log.py` first.
"""
