"""How a notebook cell, whose thread already runs an event loop, waits for a coroutine to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def to_the_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, run in a thread of its own; an interrupt cancels it first, so that its servers and files are closed."""
    loop, done = asyncio.new_event_loop(), Future[T]()
    task = loop.create_task(coroutine)

    def work() -> None:
        try:
            done.set_result(loop.run_until_complete(task))
        except BaseException as error:
            done.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
