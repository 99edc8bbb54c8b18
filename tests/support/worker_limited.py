"""Runs a program with few file descriptors on a selected event loop: LIMIT LOOP MODULE ARGUMENTS…"""

import asyncio
import resource
import runpy
import sys

from lockstep.runtime import daemon


def main() -> None:
    limit, loop, module = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if loop == "asyncio":
        vars(daemon)["new_event_loop"] = asyncio.new_event_loop
    sys.argv[:] = [module, *sys.argv[4:]]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
