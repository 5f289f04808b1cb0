"""The page shows the newest results, and every row that there is."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.results import PAGE, file_name, latest, put_into_page, render
from benchmarks.rows import ROWS

FOUND = {
    "date": "2026-01-02",
    "machine": {
        "processor": "A (R) Processor 9",
        "cpus": 2,
        "instruction_set": "avx2",
        "compiler": "gcc 12",
        "system": "Linux x86_64",
        "versions": {"torch": "2"},
        "load": 0.1,
    },
    "limits": [
        {"name": "read", "threads": threads, "unit": "GB/s", "median": 10.0 * threads, "low": 1, "high": 2, "rounds": 5}
        for threads in (1, 2)
    ],
    "rows": [
        {
            "name": "a",
            "work": "work",
            "against": "peer",
            "target": {"low": 2.0, "high": None, "unit": "×"},
            "figures": {"median": 3.0, "low": 2.5, "high": 3.5, "rounds": 15},
            "met": True,
            "error": None,
            "seconds": 1.0,
        },
        {
            "name": "b",
            "work": "other",
            "against": "peer",
            "target": {"low": 0.5, "high": None, "unit": "%"},
            "figures": None,
            "met": False,
            "error": "BackendError: a | b",
            "seconds": 1.0,
        },
    ],
}


def test_a_table_has_every_row() -> None:
    text = render(FOUND)
    assert "| work | peer | ≥ 2 × | **3 ×** (2.50 × – 3.50 ×) | met |" in text
    assert r"| other | peer | ≥ 50 % | failed: BackendError: a \| b | no figure |" in text
    assert "| read, GB/s | 10 | 20 |" in text


def test_a_file_is_named_after_day_and_machine() -> None:
    assert file_name(FOUND) == "2026-01-02-a-r-processor-9-2-cores.json"


def test_the_tables_replace_those_of_an_earlier_run() -> None:
    page = "before\n<!-- measured: old.json -->\n\nold\n\n<!-- end of what was measured -->\nbehind\n"
    new = put_into_page(page, "new.json", FOUND)
    assert new.startswith("before\n<!-- measured: new.json -->\n")
    assert "old" not in new
    assert put_into_page(new, "new.json", FOUND) == new
    with pytest.raises(ValueError, match="one pair of markers"):
        put_into_page("no markers", "new.json", FOUND)


def test_the_page_shows_the_newest_results() -> None:
    page, path = PAGE.read_text(encoding="utf-8"), latest()
    if path is None:
        assert "<!-- measured:  -->\n\n<!-- end of what was measured -->" in page
    else:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert put_into_page(page, path.name, found) == page
        assert [row["name"] for row in found["rows"]] == [row.name for row in ROWS]


def test_the_page_links_a_page_for_each_kernel() -> None:
    linked = re.findall(r"\(performance/(\w+)\.md\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(path.stem for path in (PAGE.parent / "performance").glob("*.md"))
