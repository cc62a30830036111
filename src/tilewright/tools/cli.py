"""The command `tilewright`: its subcommands are the tools of this folder.

    tilewright env                                    versions, target, cache, settings
    tilewright opt [FILE] [--passes ...] [--to ...]   run passes over IR text
    tilewright dump FOLDER                            what TW_DUMP wrote, pass by pass
    tilewright check [FILE]                           which stage changes a graph's values
    tilewright explain FILE.py:NAME TYPE...           what a call becomes; a type is f32[8, 256]
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..base import errors


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"error: unknown command {name!r}{errors.did_you_mean(name, COMMANDS)}\n\n{__doc__}", file=sys.stderr)
        return 2
    return COMMANDS[name](rest)


def _env(argv: Sequence[str]) -> int:
    argparse.ArgumentParser("tilewright env", description="Versions, target, cache and settings.").parse_args(argv)
    from . import environment

    print("\n".join(environment.lines()))
    return 0


def _opt(argv: Sequence[str]) -> int:
    from . import opt

    return opt.main(argv)


def _dump(argv: Sequence[str]) -> int:
    from . import dump

    return dump.main(argv)


def _check(argv: Sequence[str]) -> int:
    from . import check

    return check.main(argv)


def _explain(argv: Sequence[str]) -> int:
    about = "What a call becomes: kernels, guards, eager parts. Nothing is run."
    parser = argparse.ArgumentParser("tilewright explain", description=about)
    parser.add_argument("function", help="FILE.py:NAME or MODULE:NAME: a function, a module, or a module class without arguments")
    parser.add_argument("types", nargs="*", metavar="TYPE", help="the arguments' types, such as 'f32[8, 256]' or 'i64[1, 128]'")
    parser.add_argument("--grad", action="store_true", help="as called with gradients enabled")
    options = parser.parse_args(argv)
    import torch

    from .explain import report_on
    from .inputs import example, parse_type

    try:
        function, tensors = load(options.function), [example(parse_type(t)) for t in options.types]
        with torch.set_grad_enabled(options.grad):
            print(report_on(function, tuple(tensors), {}))
    except (errors.TilewrightError, OSError, ImportError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "env": _env, "opt": _opt, "dump": _dump, "check": _check, "explain": _explain,
}  # fmt: skip


def load(place: str) -> Any:
    """What `FILE.py:NAME` or `MODULE:NAME` names; of a module class an instance in eval mode. Raises OptionError."""
    from torch import nn

    where, _, name = place.rpartition(":")
    if not where:
        raise errors.OptionError(option="function", choices="FILE.py:NAME or MODULE:NAME", value=place)
    namespace = runpy.run_path(where) if where.endswith(".py") else vars(importlib.import_module(where))
    if name not in namespace:
        raise errors.OptionError(option="function", choices=f"a name in {where}", value=name)
    found = namespace[name]
    return found().eval() if isinstance(found, type) and issubclass(found, nn.Module) else found


if __name__ == "__main__":
    sys.exit(main())
