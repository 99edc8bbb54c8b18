"""`lockstep witness`: keeps the register of broker names for clusters without etcd (docs/replication.md).

One process, and one small file for each broker name. While it is down nothing fails over and nothing stops.

    config.py, app.py   the process      processor.py   its requests      values.py   its files
"""
