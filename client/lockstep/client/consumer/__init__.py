"""Consumers: push consumers call a listener, in order or concurrently; pull consumers are polled."""
