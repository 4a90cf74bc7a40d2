"""``pykaproducer completion SHELL``: what makes a shell complete commands, options and settings."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from pykaproducer.cli._completion import SHELLS, Command, Option, command_of, script
from pykaproducer.cli.common import parser_like
from pykaproducer.config import SETTINGS

_EXAMPLES = """\
examples:
  source <(pykaproducer completion bash)
                                        now; in ~/.bashrc: in every shell
  source <(pykaproducer completion zsh)
                                        in ~/.zshrc, behind compinit
  pykaproducer completion fish > ~/.config/fish/completions/pykaproducer.fish

Then: pykaproducer pr<Tab>, or pykaproducer produce -X comp<Tab>. Do it again
after an upgrade.
"""


def add_parser(commands: Any) -> None:
    """``completion`` and its argument."""
    parser = commands.add_parser(
        "completion",
        help="print what completes this command line in your shell",
        description="Prints a script with which bash, zsh or fish complete commands, options and\n"
        "names of settings.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")
    parser.set_defaults(run=functools.partial(run, commands))


def run(commands: Any, options: argparse.Namespace) -> int:
    """Print the script."""
    helps = {each.dest: each.help or "" for each in commands._choices_actions}
    below = tuple(
        command_of(parser, (name,), helps.get(name, ""))
        for name, parser in commands.choices.items()
    )
    own = (
        Option(("-h", "--help"), "show the help"),
        Option(("--version",), "show the version"),
    )
    program = Command((), "", own, False, (), below)
    names = [f"{row.name}=" for row in SETTINGS if row.kind.read and row.support == "honoured"]
    print(script(options.shell, program, sorted(names)), end="")
    return 0
