"""An argument parser that suggests a name for a mistyped command, option or value."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any


class Parser(argparse.ArgumentParser):
    """A parser of a command, or of the program.

    argparse itself suggests names only from Python 3.14 on, reports an unknown option of a command
    with the usage of the program, and reports it after a missing required option.
    """

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but exit with status 2 on an unknown argument."""
        if args is not None:
            self._refuse_unknown(list(self._unknown_options(args)))
        found, rest = super().parse_known_args(args, namespace)
        self._refuse_unknown(rest)
        return found, rest

    def _unknown_options(self, args: Sequence[str]) -> Iterable[str]:
        """Yield the long options that this parser does not have.

        Nothing is yielded for a parser that passes arguments on: to a subcommand, whose parser
        checks them itself, or to another program.
        """
        passing = (argparse.PARSER, argparse.REMAINDER)
        if any(action.nargs in passing for action in self._actions):
            return
        for word in args:
            if word == "--":
                return
            if word.startswith("--") and " " not in word and self._option(word) is None:
                yield word

    def _option(self, word: str) -> argparse.Action | None:
        return self._option_string_actions.get(word.partition("=")[0])

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        options = [word for word in words if word.startswith("-") and word != "-"]
        if options:
            name = options[0].partition("=")[0]
            known = [text for text in self._option_string_actions if text.startswith("--")]
            self.error(f"unknown option {name}{did_you_mean(name, known)}")
        if words:
            self.error(f"unexpected argument: {words[0]}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(
            action,
            f"invalid choice: {value!r}{did_you_mean(str(value), names)} "
            f"(choose from {', '.join(names)})",
        )


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Return ``"; did you mean X?"`` for the most similar of *names*, or an empty string."""
    bare = {each.lstrip("-"): each for each in names}
    similar = difflib.get_close_matches(name.lstrip("-"), bare, n=1, cutoff=0.6)
    return f"; did you mean {bare[similar[0]]}?" if similar else ""
