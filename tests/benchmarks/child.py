"""Runs a function in a process of its own and tells its peak memory."""

import multiprocessing
import re
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ran:
    """What a function gave back, how long it took, and the process' peak memory in bytes."""

    result: Any
    seconds: float
    peak: int


def alone(function: Callable[..., Any], *arguments: Any) -> Ran:
    """Runs a module's function in a new interpreter."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_ran, function, arguments).result()


def _ran(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Ran:
    began = time.perf_counter()
    result = function(*arguments)
    return Ran(result, time.perf_counter() - began, _peak())


def _peak() -> int:
    # Linux counts what the parent had at the time of the start into a child's ru_maxrss; VmHWM is the child's own
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    except FileNotFoundError:
        found = None
    return 1024 * (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
