"""lockstep bench: one producer process, one consumer process, one broker process; rates and latencies as their users see them."""
