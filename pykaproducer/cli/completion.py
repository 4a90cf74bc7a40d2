"""``pykaproducer completion SHELL``: shell completion for commands, options and settings."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from pykaproducer.cli._completion import SHELLS, CommandSpec, Option, command_of, script
from pykaproducer.cli.common import parser_like
from pykaproducer.config import SETTINGS

_EXAMPLES = """\
examples:
  source <(pykaproducer completion bash)
                                        now; in ~/.bashrc for every shell
  source <(pykaproducer completion zsh)
                                        in ~/.zshrc, after compinit
  pykaproducer completion fish > ~/.config/fish/completions/pykaproducer.fish

Then try: pykaproducer pr<Tab>, or pykaproducer produce -X comp<Tab>. Generate
the fish script again after an upgrade.
"""


def add_parser(commands: Any) -> None:
    """Add ``completion`` and its argument."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for your shell",
        description="Print a script that completes commands, options and setting names in bash,\n"
        "zsh or fish.",
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
        Option(("-h", "--help"), "show help"),
        Option(("--version",), "show the version"),
    )
    program = CommandSpec((), "", own, False, (), below)
    names = [f"{row.name}=" for row in SETTINGS if row.kind.read and row.support == "honoured"]
    print(script(options.shell, program, sorted(names)), end="")
    return 0
