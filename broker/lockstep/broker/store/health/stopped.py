"""Read the directory of a store that no broker has open."""

from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.broker.store.errors import StoreInUseError
from lockstep.runtime.files import Files


@contextmanager
def stopped(files: Files, root: str, advice: str) -> Iterator[None]:
    """Keep brokers from opening the store in the block. Raise StoreInUseError, with the advice, if a broker has it open.

    Nothing is created: a store without a lock file has never been open, or is a copy. If the lock can't be taken for another reason (a file
    system without locks), it is not known whether a broker has the store open, and the block runs.
    """
    path = f"{root}/lock"
    if not files.exists(path):
        yield
        return
    try:
        release = files.lock(path)
    except BlockingIOError as error:
        raise StoreInUseError(f"store {root} is open in a broker: {advice}") from error
    except OSError:
        yield
        return
    try:
        yield
    finally:
        release()
