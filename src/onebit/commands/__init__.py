"""The `onebit` command: one file for each of its commands.

A command's module has HELP, EXAMPLES, `add_arguments(parser)` and `run(arguments)`, which returns the exit code:
0, 1 (some of the work failed) or 2 (the user's mistake). argparse, because it says a mistake in one line.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from onebit.errors import NotFiniteError, UserError, WorkError
from onebit.version import __version__

COMMANDS = ("demo", "train", "eval", "export", "run", "inspect", "bench", "compare", "report")
# What to install for a module that lacks.
EXTRAS = {
    "torch": "train",
    "pydantic": "train",
    "matplotlib": "train",
    "rich": "cli",
    "PIL": "cli",
    "safetensors": "cli",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv's by default) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else ""
    try:
        return _run(name, words)
    except BrokenPipeError:  # who reads our output has had enough (`| head`): no mistake of anybody's
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what Python still wants to write at exit
        return 128 + 13
    except KeyboardInterrupt:
        line, code = "stopped", 130
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        line, code = f"needs {error.name}: pip install 'onebit[{EXTRAS[error.name]}]'", 2
    except (UserError, NotFiniteError) as error:
        line, code = str(error), 2
    except WorkError as error:
        line, code = str(error), 1
    except OSError as error:
        line = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        code = 1 if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO} else 2
    rank = os.environ.get("RANK", "0")
    who = f"onebit {name}" if rank == "0" else f"onebit {name} (process {rank})"
    print(f"{who}: {line}", file=sys.stderr)  # noqa: T201
    return code


def entry_point() -> int:
    """What a process of its own runs: `main`; under torchrun, it then ends before Python takes itself down.

    Threads of torch's gloo outlive destroy_process_group where DDP has been used, and one that still wants the
    interpreter then aborts a process whose work is done (pytorch/pytorch#190489).
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return main()
    code = 1  # an error that nobody expected

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)  # the first to be registered is the last to be called
    try:
        code = main()
    except SystemExit as stop:  # argparse's way
        code = int(stop.code or 0)
    return code


def _run(name: str, words: list[str]) -> int:
    arguments = _parse(name, words)
    code = int(_module(arguments.command).run(arguments))
    sys.stdout.flush()
    return code


def _parse(name: str, words: list[str]) -> argparse.Namespace:
    if (
        not name.startswith("-")
        and name not in {*COMMANDS, ""}
        and (near := get_close_matches(name, COMMANDS, n=1))
    ):
        raise UserError(f"there is no such command; did you mean {near[0]}? see onebit --help")
    arguments, unknown = make_parser(name).parse_known_args(words)
    if unknown:
        raise UserError(f"there is no {unknown[0]}{_nearest(unknown[0], arguments)}; see onebit {name} --help")
    return arguments


def make_parser(command: str) -> argparse.ArgumentParser:
    """The parser, with all commands and the options of this one: those of others may need packages that lack."""
    parser = _Parser(prog="onebit", description="1-bit convolutional nets, trained in stock PyTorch.")
    parser.add_argument("--version", action="version", version=f"onebit {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = _module(name)
        subparser = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=module.EXAMPLES,
            usage=getattr(module, "USAGE", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # a flag that comes later must not change what an old command line means
        )
        if name == command:
            module.add_arguments(subparser)
    return parser


class _Parser(argparse.ArgumentParser):
    """One that says a mistake in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _nearest(word: str, arguments: argparse.Namespace) -> str:
    command = _Parser(add_help=False)
    _module(arguments.command).add_arguments(command)
    flags = [flag for action in command._actions for flag in action.option_strings]  # noqa: SLF001 argparse lists them nowhere else
    near = get_close_matches(word.split("=", maxsplit=1)[0], flags, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _module(command: str) -> Any:
    return importlib.import_module(f"onebit.commands.{command}")
