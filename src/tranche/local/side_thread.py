"""A thread beside the command, for as long as a block runs: it waits for the block's end and takes no signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def beside(name: str, work: Callable[[int], None]) -> Iterator[None]:
    """Run `work` in a thread of that name within the block, and wait for it after the block.

    `work` is told a file descriptor that can be read from when the block has ended; it has to return then.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    thread = threading.Thread(target=work, args=(reading,), name=name, daemon=True)
    with ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(lambda: thread.join() if thread.ident else None)
        stack.callback(os.close, writing)
        # Signals of the terminal are for the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield
