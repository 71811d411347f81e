"""The `onebit` command: one file for each of its commands.

A command's module has HELP, EXAMPLES, `add_arguments(parser)` and `run(arguments)`, which returns the exit code:
0, 1 (some of the work failed) or 2 (the user's mistake). argparse, because it says a mistake in one line.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import importlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from onebit.advice import install_for, is_known, package_of, program
from onebit.console import complain, quietly, tell_text
from onebit.errors import NotFiniteError, UserError, WorkError
from onebit.machine import cores
from onebit.version import __version__

COMMANDS = (
    "demo",
    "train",
    "eval",
    "export",
    "run",
    "inspect",
    "bench",
    "zoo",
    "report",
    "compare",
    "reproduce",
    "doctor",
    "completion",
)
EXAMPLES = """examples:
  onebit demo                              see it work: 1 to 3 minutes
  onebit train --recipe digits-pcnn22      train a net, half a minute
  onebit export runs/digits-pcnn22         make a file of bits of it
  onebit doctor                            what is installed, what is missing and how to get it
  onebit help train                        the options and examples of a command
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv's by default) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:  # `onebit help train` is `onebit train --help`
        words = [*words[1:2], "--help"]
    try:
        return _told(words)
    except BrokenPipeError:  # who reads our output has had enough (`| head`): no mistake of anybody's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # for what Python still wants to write at exit
            os.dup2(nowhere, stream.fileno())
        return 128 + 13


def _told(words: list[str]) -> int:
    """The exit code; what goes wrong is said in one line."""
    name = words[0] if words and not words[0].startswith("-") else ""
    try:
        return _run(name, words)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        line, code = "stopped", 130
    except ModuleNotFoundError as error:
        if not (error.name and is_known(error.name)):
            raise
        line, code = f"needs {package_of(error.name)}: {install_for(error.name)}", 2
    except (UserError, NotFiniteError) as error:
        line, code = str(error), _code_of(error.__cause__)
    except WorkError as error:
        line, code = str(error), 1
    except OSError as error:
        line = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part is not None)
        code = _code_of(error)
    except MemoryError:
        line, code = "there is not enough memory for this", 1
    rank = os.environ.get("RANK", "0")
    who = f"onebit {name}".strip()
    complain(who if rank == "0" else f"{who} (process {rank})", line)
    return code


def _code_of(error: BaseException | None) -> int:
    """1 where a machine could not do its work, 2 for a user's mistake."""
    return 1 if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO} else 2


def entry_point() -> int:
    """What a process of its own runs: `main`; under torchrun, it then ends before Python takes itself down.

    Threads of torch's gloo outlive destroy_process_group where DDP has been used, and one that still wants the
    interpreter then aborts a process whose work is done (pytorch/pytorch#190489).
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started us (`>&-`)
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 it stays open as long as we live
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return main()
    code = 1  # an error that nobody expected

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)  # the first to be registered is the last to be called
    code = main()
    return code


def _run(name: str, words: list[str]) -> int:
    if not words:
        make_parser().print_help(sys.stderr)
        return 2
    try:
        arguments = _parse(name, words)
    except SystemExit as end:  # argparse's way to end after --help and --version
        sys.stdout.flush()
        return int(end.code or 0)
    with quietly(arguments.quiet):
        code = int(_module(arguments.command).run(arguments))
    sys.stdout.flush()
    return code


def _parse(name: str, words: list[str]) -> argparse.Namespace:
    if name and name not in COMMANDS and (near := get_close_matches(name, COMMANDS, n=1)):
        raise UserError(f"there is no such command; did you mean {near[0]}? see {program()} --help")
    parser = make_parser(name) if name in COMMANDS else make_parser()
    see = f"see {f'{program()} {name}'.strip()} --help"
    # Before argparse, which would rather say that something else is missing.
    flags = {flag for action in actions_of(parser) for flag in action.option_strings}
    for word in itertools.takewhile(lambda word: word != "--", words):
        flag = word.split("=", maxsplit=1)[0]
        if flag.startswith("--") and flag not in flags and " " not in word:
            near = get_close_matches(flag, flags, n=1)
            raise UserError(f"there is no {flag}; {f'did you mean {near[0]}? ' if near else ''}{see}")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        what = "there is no such option" if unknown[0].startswith("-") else "one word too many"
        raise UserError(f"{unknown[0]}: {what}; {see}")
    return arguments


def make_parser(*commands: str) -> argparse.ArgumentParser:
    """The parser of these commands; of none: of all, without their options, which may need packages that lack."""
    parser = _Parser(
        prog="onebit",
        description="1-bit convolutional nets, trained in stock PyTorch, kept and run as bits.",
        epilog=_examples(EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"onebit {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in commands or COMMANDS:
        module = _module(name)
        subparser = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=_examples(module.EXAMPLES),
            usage=getattr(module, "USAGE", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # a flag that comes later must not change what an old command line means
        )
        if commands:
            module.add_arguments(subparser)
            if not any("--quiet" in action.option_strings for action in actions_of(subparser)):
                subparser.add_argument("--quiet", action="store_true", help="no progress, no remarks")
    return parser


def _examples(text: str) -> str:
    """Examples, and how they are typed where the shell does not know `onebit`."""
    name = program()
    return text if name == "onebit" else f"{text}\nHere `onebit` is not on the PATH: type {name} in its place."


def add_threads(parser: argparse.ArgumentParser, what: str) -> None:
    """The option --threads of commands that run a net to get a result, not to time it."""
    help_ = f"{what}; results are the same with any number (default: auto, all cores that this process may use)"
    parser.add_argument("--threads", metavar="N|auto", help=help_)


def _processes_here() -> int:
    """Of torchrun, on this machine; 1 without it."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(count) if count.isdecimal() and int(count) else 1


def threads_of(arguments: argparse.Namespace) -> int:
    """As many as --threads says; without it all cores, of which processes of torchrun have a share each."""
    if arguments.threads is None or not (asked := threads_in([arguments.threads], arguments.threads)[0]):
        return max(1, cores() // _processes_here())
    return asked


def threads_in(words: Sequence[str], written: str) -> list[int]:
    """The numbers of threads that the words after --threads say, 0 for all; one remark if there are fewer."""
    from onebit.console import say
    from onebit.native import AUTO, usable_threads

    numbers, remarks = [], set()
    for word in words:
        number = 0 if word == AUTO else int(word) if re.fullmatch("[0-9]{1,9}", word) else -1
        count, remark = usable_threads(number, f"--threads {written}")
        numbers.append(count if number else 0)
        remarks.add(remark)
    for remark in remarks - {""}:
        say(remark)
    return numbers


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All its options and arguments, and those of its commands."""
    for action in parser._actions:  # noqa: SLF001 argparse lists them nowhere else
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subparser in action.choices.values():
                yield from actions_of(subparser)


class _Parser(argparse.ArgumentParser):
    """One that says a mistake in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UserError(
            f"{message}; see {program()} {self.prog.removeprefix('onebit').strip()}".rstrip() + " --help"
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Without argparse's own silence where the output can't be written."""
        tell_text(message, file or sys.stderr)


def _module(command: str) -> Any:
    return importlib.import_module(f"onebit.commands.{command}")
