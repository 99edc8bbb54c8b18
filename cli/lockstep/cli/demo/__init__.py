"""The main job, shown and proved: order events through two brokers, ordered consumers, faults, and a proof from their files.

Read `__main__.py`, then `proof.py`.
"""
