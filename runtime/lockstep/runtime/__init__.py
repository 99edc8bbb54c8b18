"""What touches the world: the loop, sockets, files, clocks, threads, configuration, logs. Everything above reaches it by what it is handed."""
