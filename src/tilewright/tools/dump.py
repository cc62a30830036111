"""Shows a folder that `TW_DUMP` filled: which stages there are, and what each graph pass changed.

    python -m tilewright.tools.dump FOLDER [--stage NAME] [--full]

In: the folder of one compilation, or the one above with all of them. Out: text. Two graphs are compared line by line with nodes
matched by what they are, not by their numbers, since a node that goes renumbers all behind it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_NUMBER = re.compile(r"%(\d+)")
_FILE = re.compile(r"(\d+)-(.+)\.txt")


@dataclass(frozen=True)
class Stage:
    """One file of a dump."""

    number: int
    name: str
    path: Path

    def text(self) -> str:
        return self.path.read_text()

    @property
    def is_graph(self) -> bool:
        return self.name.startswith("graph")


def stages(folder: Path) -> list[Stage]:
    """The stages of one compilation, in order."""
    found = [(_FILE.fullmatch(p.name), p) for p in folder.glob("*.txt")]
    return sorted((Stage(int(m[1]), m[2].replace("-", " "), p) for m, p in found if m), key=lambda s: s.number)


def compilations(folder: Path) -> list[Path]:
    """The folders of single compilations at or below `folder`."""
    if stages(folder):
        return [folder]
    return sorted(p for p in folder.glob("*") if p.is_dir() and stages(p))


def changes(before: str, after: str) -> list[str]:
    """The lines that differ between two graphs, "-" and "+" in front, each with the numbers of its own text."""
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, [_bare(x) for x in old], [_bare(x) for x in new], autojunk=False)
    found: list[str] = []
    number: dict[str, str] = {}
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind != "equal":
            found += [f"- {x}" for x in old[i:i_end]] + [f"+ {x}" for x in new[j:j_end]]
            _pair(number, old[i:i_end], new[j:j_end])
            continue
        for x, y in zip(old[i:i_end], new[j:j_end], strict=True):
            _pair(number, [x], [y])
            if _NUMBER.sub(lambda m: f"%{number.get(m[1], '?')}", x) != y:
                found += [f"- {x}", f"+ {y}"]
    return found


def _pair(number: dict[str, str], old: Sequence[str], new: Sequence[str]) -> None:
    """Note which node stands for which: one by one, or the last for the last where a node became several."""
    if len(old) != len(new):
        old, new = old[-1:], new[-1:]
    for x, y in zip(old, new):
        a, b = _NUMBER.match(x), _NUMBER.match(y)
        if a and b:
            number[a[1]] = b[1]


def _bare(line: str) -> str:
    return _NUMBER.sub("%", line)


def overview(folder: Path, full: bool = False) -> Iterator[str]:
    """The stages of one compilation; for a graph pass what it changed, for other stages their size, or with `full` their text."""
    previous: Stage | None = None
    for s in stages(folder):
        text = s.text()
        lines = text.splitlines()
        if previous is None or not (s.is_graph and previous.is_graph):
            yield f"{s.number:02} {s.name}: {len(lines)} lines"
            if full or previous is None:
                yield from _indented(lines)
        else:
            changed = changes(previous.text(), text)
            summary = f"{_count(changed, '-')} lines gone, {_count(changed, '+')} new" if changed else "no change"
            yield f"{s.number:02} {s.name}: {summary}"
            yield from _indented(changed)
        previous = s


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {x}".rstrip() for x in lines)


def _count(lines: Sequence[str], mark: str) -> int:
    return sum(x.startswith(mark) for x in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status: 1 where there is nothing to show."""
    parser = argparse.ArgumentParser("tilewright dump", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what TW_DUMP named, or one compilation's folder in it")
    parser.add_argument("--stage", help="print the whole text of the stages whose name has this in it, and nothing else")
    parser.add_argument("--full", action="store_true", help="print tile IR, LLVM IR and assembly whole")
    options = parser.parse_args(argv)
    shown = 0
    for folder in compilations(options.folder):
        chosen = [s for s in stages(folder) if options.stage is None or options.stage in s.name]
        shown += len(chosen)
        if options.stage is None:
            print(f"{folder}:")
            print("\n".join(overview(folder, options.full)))
        for s in chosen if options.stage is not None else ():
            print(f"# {s.path}")
            print(s.text(), end="")
    if not shown:
        print(f"error: no stages in {options.folder}" + (f" named {options.stage!r}" if options.stage else ""), file=sys.stderr)
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
