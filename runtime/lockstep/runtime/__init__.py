"""The floor that touches the machine: loop, sockets, files, clock, configuration, logs. All above reaches it by what it is handed."""
