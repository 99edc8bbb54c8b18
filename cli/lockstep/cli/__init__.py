"""What people type: the command lockstep."""
