"""One job over many items: here, over processes, or over a Ray cluster. Results come in the order of the items.

Only so many items are on their way at once, so that an endless iterable takes no more memory than a short one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from unmask.errors import UserError, near

T = TypeVar("T")
R = TypeVar("R")
ENGINES = ("here", "processes", "ray")
AHEAD = 2  # items on their way for each that is being worked on


def spread(work: Callable[[T], R], items: Iterable[T], *, engine: str = "processes", processes: int | None = None) -> Iterator[R]:
    """`work` is a function of a module, so that other processes find it."""
    if engine not in ENGINES:
        raise UserError(f"there is no engine {engine!r}{near(engine, ENGINES)}")
    if processes is not None and processes < 1:
        raise UserError(f"{processes} processes cannot work; ask for 1 or more")
    count = processes or cores()
    if engine == "ray":
        return _over_ray(work, items, processes)
    return map(work, items) if engine == "here" or count == 1 else _over_processes(work, items, count)


def cores() -> int:
    """Those that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _over_processes(work: Callable[[T], R], items: Iterable[T], count: int) -> Iterator[R]:
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # spawned, not forked: a fork of a process that has threads (the Rust tokenizer's) may wait for ever
    with ProcessPoolExecutor(count, get_context("spawn"), _leave_with, (os.getpid(),)) as pool:
        coming: deque[Future[R]] = deque()
        try:
            for item in items:
                coming.append(pool.submit(work, item))
                if len(coming) >= count * AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "one of the processes died, perhaps for want of memory; run the same command again with fewer --processes: what is done is kept"
            ) from None
        finally:
            for future in coming:
                future.cancel()


def _leave_with(parent: int) -> None:
    """A worker whose parent was killed is told by nobody: it looks for itself."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _over_ray(work: Callable[[T], R], items: Iterable[T], processes: int | None) -> Iterator[R]:
    try:
        import ray
    except ImportError:
        raise UserError("the engine ray needs Ray: pip install 'unmask[scale]'") from None
    if not ray.is_initialized():
        ray.init(num_cpus=processes, log_to_driver=False, configure_logging=False, include_dashboard=False)
    remote: Any = ray.remote(lambda item: work(item))  # it takes functions only, and `work` may be a partial one
    count = int(ray.cluster_resources().get("CPU", 1))
    coming: deque[Any] = deque()
    try:
        for item in items:
            coming.append(remote.remote(item))
            if len(coming) >= count * AHEAD:
                yield _got(ray, coming.popleft())
        while coming:
            yield _got(ray, coming.popleft())
    finally:
        for reference in coming:
            ray.cancel(reference, force=True)


def _got(ray: Any, reference: Any) -> Any:
    """A mistake of the user's is told as it would be here."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from None
    except ray.exceptions.RayError as error:
        raise UserError(f"the Ray cluster lost a worker ({type(error).__name__}); run the same command again: what is done is kept") from None
