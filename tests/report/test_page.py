"""The report is one page that needs nothing else, and shows what the results hold."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lavagna.report import render, write_report
from lavagna.studies.verdict import verdict
from tests.studies.results import candidate, results

VOID = {"meta", "br"}


class Page(HTMLParser):
    """The elements of a page, with a check that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def with_verdict(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "verdict": verdict(found)}


FULL = with_verdict(
    results(
        candidate(
            "attention", 2.9, training=20_000, generation=300, state=(100_000, 1_600_000), beyond=3.8, native=1.0
        ),
        candidate("mamba", 2.4, training=8_000, generation=600, beyond=2.4, diverged=(0.03,), native=6.5),
        candidate("gla", 3.6, beyond=3.6, edge="lowest", native=4.0),
        rates=(0.01, 0.03),
    )
)
CASES = {
    "full": FULL,
    "one candidate, one document": with_verdict(results(candidate("mamba", 2.4, known=False))),
    "equal": with_verdict(results(candidate("attention", 2.4), candidate("attention (2)", 2.4))),
    "many": with_verdict(results(*(candidate(f"m{i}", 2 + 0.1 * i) for i in range(9)))),
}


@cache
def rendered(case: str) -> str:
    return render(CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_it_is_whole_and_needs_nothing_else(case: str) -> None:
    text = rendered(case)
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    for name, value in page.attributes:
        if name in ("href", "src", "xlink:href", "srcset", "data"):
            assert value is not None
            assert value.startswith("#")
    for outside in ("http", "//", "url(h", "@import", "file:"):
        assert outside not in text
    ids = [value for name, value in page.attributes if name == "id"]
    used = {value[1:] for name, value in page.attributes if name == "href" and value}
    assert used <= set(ids)


@pytest.mark.parametrize("case", CASES)
def test_every_statement_and_number_is_there(case: str) -> None:
    found = CASES[case]
    text = Page(rendered(case)).text
    for statement in found["verdict"]:
        assert statement["text"] in text
    for part in found["candidates"]:
        assert part["name"] in text
        assert f"{part['bits_per_byte']['value']:.3f}" in text
        assert part["sample"]["text"] in text
    assert f"{found['baselines']['gzip']:.3f}" in text


def test_native_kernels_are_held_against_the_portable_path_where_they_ran() -> None:
    assert "6.56.4 to 6.6" in Page(rendered("full")).text
    assert "portable" in rendered("full")
    assert "portable" not in rendered("equal")


def test_the_warning_stands_before_the_headline() -> None:
    text = Page(rendered("full")).text
    assert (
        text.index("does not even beat") < text.index("predicts held-out text best") < text.index("What was measured")
    )


def test_text_of_others_is_escaped() -> None:
    text = rendered("full")
    assert "import &lt;b&gt;" in text
    assert "os &amp; sys" in text


def test_figures_are_described_and_drawn_alike_each_time() -> None:
    text = rendered("full")
    assert text == render(FULL)
    figures = text.count("<svg")
    assert figures == 5
    assert text.count('<svg role="img" aria-label="') == figures
    # With a single candidate there is no difference to draw.
    assert rendered("one candidate, one document").count("<svg") == 4


def test_it_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("an older one")
    write_report(FULL, path)
    assert path.read_text(encoding="utf-8") == rendered("full")
    broken = {key: value for key, value in FULL.items() if key != "baselines"}
    with pytest.raises(Exception, match="baselines"):
        write_report(broken, path)
    assert path.read_text(encoding="utf-8") == rendered("full")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
