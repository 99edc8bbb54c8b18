"""lockstep bench: measure rates and latencies as users see them with one producer process, one consumer process and one broker process."""
