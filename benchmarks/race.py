"""Contenders timed in turns, so that a noisy minute of a shared machine falls on all of them."""

import concurrent.futures
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

import msgspec

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
SHORT = 20.0  # seconds
Contender = Callable[[], float]  # does the work once and returns its seconds, without what should not count


class Heat(msgspec.Struct):
    """What one contender's turns took, or why there is no figure."""

    seconds: list[float] = []
    problem: str | None = None

    @property
    def best(self) -> float | None:
        return min(self.seconds) if self.problem is None else None

    def describe(self, work: int) -> dict[str, object]:
        if self.best is None:
            return {"problem": self.problem}
        return {
            "seconds": [round(seconds, 3) for seconds in self.seconds],
            "median_seconds": round(statistics.median(self.seconds), 3),
            "best_per_second": round(work / self.best),
        }


def race(contenders: Mapping[str, Contender], repeat: int, say: Callable[[str], None]) -> dict[str, Heat]:
    """Run all contenders `repeat` times in turns: a, b, a, b; a short race up to three times as often.

    One that fails is out, the others go on.
    """
    heats = {name: Heat() for name in contenders}
    began = time.monotonic()
    for turn in range(3 * repeat):
        if turn >= repeat and time.monotonic() - began > SHORT:
            break
        for name, contender in contenders.items():
            if heats[name].problem is None:
                say(f"{name}, turn {turn + 1}")
                seconds, heats[name].problem = attempt(contender)
                heats[name].seconds += [] if seconds is None else [seconds]
    return heats


def attempt(action: Callable[[], Answer]) -> tuple[Answer | None, str | None]:
    """Its answer, or the reason why there is none."""
    try:
        return action(), None
    except NotImplementedError:
        return None, "not yet"
    except ImportError as error:
        return None, f"not installed: {error}"
    except Exception as error:
        traceback.print_exc()
        return None, f"{type(error).__name__}: {error}"


def in_own_process(function: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
    """Call it in a new interpreter: its memory and its warm caches are not ours."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args, **kwargs).result()


def surroundings() -> dict[str, object]:
    """What a reader of the figures should know of the machine they were taken on."""
    return {"cores": os.cpu_count(), "load_average": [round(load, 2) for load in os.getloadavg()]}
