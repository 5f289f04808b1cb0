"""The exceptions to the contracts that mathematics demands; the conformance suites read this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["CONTRACTS", "EXCEPTIONS", "Exemption", "exempt", "table"]

#: the seven contracts of docs/architecture.md
CONTRACTS = (
    "one answer",
    "cut anywhere",
    "neighbours don't matter",
    "the past cannot see the future",
    "finite",
    "constant memory",
    "clear refusal",
)


class Exemption(NamedTuple):
    """One exception.

    Fields:
        name: an operator or a mixer.
        contract: one of CONTRACTS.
        reason: why no implementation could keep the contract.
        options: the exception holds for calls with these options alone.
    """

    name: str
    contract: str
    reason: str
    options: Mapping[str, Any] = MappingProxyType({})


EXCEPTIONS = (
    Exemption(
        "attention",
        "constant memory",
        "softmax weighs every earlier key anew, so all of them must be kept",
        {"causal": True, "window": None},
    ),
    Exemption("attention", "cut anywhere", "every token sees the tokens after it", {"causal": False}),
    Exemption("attention", "the past cannot see the future", "every token sees the tokens after it", {"causal": False}),
)


def table() -> str:
    """The exceptions as docs/exceptions.md shows them."""
    lines = ["| operator, mixer | with | contract | because |", "| --- | --- | --- | --- |"]
    for e in EXCEPTIONS:
        options = ", ".join(f"`{key}={value}`" for key, value in e.options.items()) or "any options"
        lines.append(f"| `{e.name}` | {options} | {e.contract} | {e.reason} |")
    return "\n".join(lines)


def exempt(name: str, contract: str, **options: Any) -> bool:
    """Whether the table excepts calls of `name` with these options, defaults included, from a contract."""
    return any(e.name == name and e.contract == contract and e.options.items() <= options.items() for e in EXCEPTIONS)
