"""Access to the machine: event loop, sockets, files, clock, settings, logs. Higher layers receive it as arguments."""
