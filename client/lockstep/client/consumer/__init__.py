"""Receiving: rebalance, locks, pulls, ordered listeners."""
