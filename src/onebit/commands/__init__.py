"""The `onebit` command: one file for each of its commands.

A command's module has HELP, EXAMPLES, `add_arguments(parser)` and `run(arguments)`, which returns the exit code:
0, 1 (some of the work failed) or 2 (the user's mistake). argparse, because it says a mistake in one line.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from onebit.commands.errors import UserError
from onebit.version import __version__

COMMANDS = ("demo",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv's by default) and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="onebit", description="1-bit convolutional nets, trained in stock PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"onebit {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {name: importlib.import_module(f"onebit.commands.{name}") for name in COMMANDS}
    for name, module in modules.items():
        subparser = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
    arguments = parser.parse_args(argv)
    try:
        return int(modules[arguments.command].run(arguments))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)  # noqa: T201
        return 130
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "rich"}:
            raise
        missing = f"needs {error.name}: pip install 'onebit[train,cli]'"
        print(f"onebit {arguments.command}: {missing}", file=sys.stderr)  # noqa: T201
        return 2
    except UserError as error:
        print(f"onebit {arguments.command}: {error}", file=sys.stderr)  # noqa: T201
        return 2
