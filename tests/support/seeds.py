"""Which test of a seed system a test of ours answers: `@answers("their_test")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def answers(*names: str) -> Callable[[T], T]:
    def marked(test: T) -> T:
        test.__dict__["answers"] = names
        return test

    return marked


def answered(module: Mapping[str, Any]) -> list[str]:
    """By the tests of a module, given its `globals()`; in their order."""
    return [name for each in module.values() for name in getattr(each, "__dict__", {}).get("answers", ())]
