"""Measure the same work through lockstep and other message systems, in turns, on this machine (docs/compare.md)."""
