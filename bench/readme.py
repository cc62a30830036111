"""Puts the benchmark table between the markers of README.md. In: figures of `bench.models`. Out: the page, rewritten."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
START, END = "<!-- results: python -m bench.models --readme -->", "<!-- end of results -->"


def rewrite(table: str, path: Path = README) -> None:
    """Replace what stands between the markers. Raises ValueError where they are missing."""
    page = path.read_text()
    head, start, rest = page.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{path} has no lines {START!r} and {END!r}")
    path.write_text(f"{head}{START}\n{table.strip()}\n{END}{tail}")
