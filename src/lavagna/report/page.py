"""The report of a comparison: one HTML file that needs nothing else, not even a network or JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import atomic_file
from . import figures, words

__all__ = ["render", "write_report"]

TEMPLATE = Path(__file__).with_name("compare.html.j2")


def write_report(results: Mapping[str, Any], path: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        results: what results.json holds.
        path: of the HTML file.
    """
    page = render(results)
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(results: Mapping[str, Any]) -> str:
    """The page of a comparison's results."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    for word in ("bits", "count", "joined", "short", "size"):
        environment.filters[word] = getattr(words, word)
    drawn = {
        name: Markup(getattr(figures, name)(results))
        for name in ("differences", "curves", "beyond", "reading", "trade_offs")
    }
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    by_kind: dict[str, list[str]] = {}
    for statement in results["verdict"]:
        by_kind.setdefault(statement["kind"], []).append(statement["text"])
    ranked = sorted(results["candidates"], key=lambda candidate: candidate["bits_per_byte"]["value"])
    return template.render(results=results, ranked=ranked, figures=drawn, said=by_kind)
