"""`onebit completion`: a script that makes a shell complete commands, options, names and files.

Made from the parsers by shtab (docs/decisions/0014). All is in the script: no Python runs when a tab is typed.
"""

from __future__ import annotations

import argparse

from onebit.advice import program
from onebit.console import say, tell_text

HELP = "print a script that lets the tab key complete commands, options, recipes, methods and files"
EXAMPLES = """examples:
  source <(onebit completion bash)          for this shell; in ~/.bashrc, for every shell
  eval "$(onebit completion zsh)"           the same in zsh, after its compinit
  onebit completion fish | source           the same in fish
  onebit completion bash > ~/.local/share/bash-completion/completions/onebit    once, so that shells start faster
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that will read the script")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from onebit.commands import COMMANDS, actions_of, make_parser

    known = []
    for name in COMMANDS:
        try:
            make_parser(name)
            known.append(name)
        except ModuleNotFoundError as error:
            say(f"onebit {name} is left out: it needs {error.name} (see {program()} doctor)")
    parser = make_parser(*known)
    for action in actions_of(parser):
        _suggest(action)
    tell_text(shtab.complete(parser, arguments.shell) + "\n")
    return 0


def _suggest(action: argparse.Action) -> None:
    """What may stand behind an option: by the word for it in --help (A|B|C, FILE, DIR, RUN), or by its name."""
    import shtab

    words = str(action.metavar or "").partition("[")[0].split("|")  # N|auto[,N...]: one of those, and perhaps more
    if action.choices is not None:
        return
    if action.dest == "recipe":
        from onebit.training.recipes import recipe_names

        action.choices = recipe_names()
    elif action.dest == "zoo_net":
        from onebit.zoo import names

        action.choices = names()
    elif action.dest in {"method", "methods"}:
        from onebit.training.config import METHOD_NAMES

        action.choices = METHOD_NAMES
    elif words[0] in {"FILE", "PATH", "RUN", "IMAGE"}:  # a run is a folder, or a file in it
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif words[0] == "DIR":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    else:
        # N and NAME stand for what nobody can list.
        action.choices = [word for word in words if len(words) > 1 and word and not word.isupper()] or None
