"""Watch: follows a cluster, and keeps what its brokers reported in the last hour, for tools that show a cluster as it changes.

Here: requests again and again, in which a silent server delays no other one, and pure series of limited memory. Not here: pages.

Read `watch.py` first.
"""
