"""``pykaproducer completion SHELL``: complete commands, options, settings and their values."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from pykaproducer.cli._completion import (
    SHELLS,
    CommandSpec,
    Option,
    SettingSpec,
    command_of,
    script,
)
from pykaproducer.cli.common import parser_like
from pykaproducer.config import SETTINGS

_EXAMPLES = """\
examples:
  source <(pykaproducer completion bash)
                                        now; in ~/.bashrc for every shell
  source <(pykaproducer completion zsh)
                                        in ~/.zshrc, after compinit
  pykaproducer completion fish > ~/.config/fish/completions/pykaproducer.fish

Then try: pykaproducer pr<Tab>, or pykaproducer produce -X acks=<Tab>.
Generate the fish script again after an upgrade.
"""


def add_parser(commands: Any) -> None:
    """Add ``completion`` and its argument."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for your shell",
        description="Print a script that completes commands, options and settings in bash, zsh or\n"
        "fish.",
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
    settings = [
        SettingSpec(
            tuple(dict.fromkeys((row.name, *row.dotted))), row.kind.choices, row.kind.is_path
        )
        for row in sorted(SETTINGS, key=lambda row: row.name)
        if row.kind.read and row.support == "honoured"
    ]
    print(script(options.shell, program, settings), end="")
    return 0
