"""A description of the command line, and completion scripts for bash, zsh and fish."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Placeholders in the help that are completed as files or as directories.
_FILES = {"FILE", "SOURCE", "PATH"}
_DIRECTORIES = {"DIR"}


@dataclass(frozen=True)
class Option:
    """An option and its value."""

    names: tuple[str, ...]
    help: str
    #: Placeholder of its value; "" if it takes none.
    value: str = ""
    #: Allowed values; empty if any value is allowed.
    choices: tuple[str, ...] = ()
    #: Whether its value begins with the name of a setting.
    settings: bool = False
    repeated: bool = False

    @property
    def takes_file(self) -> bool:
        """Whether the value is a file or may contain one."""
        return self.value in _FILES

    @property
    def takes_directory(self) -> bool:
        """Whether the value is a directory."""
        return self.value in _DIRECTORIES


@dataclass(frozen=True)
class SettingSpec:
    """A setting that ``-X`` accepts."""

    #: Our own name first, then the dotted ones.
    names: tuple[str, ...]
    #: Allowed values; empty if they are not listed.
    values: tuple[str, ...] = ()
    is_path: bool = False


def _own_names(settings: Sequence[SettingSpec]) -> str:
    return " ".join(f"{each.names[0]}=" for each in settings)


def _dotted_names(settings: Sequence[SettingSpec]) -> str:
    return " ".join(f"{name}=" for each in settings for name in each.names if "." in name)


@dataclass(frozen=True)
class CommandSpec:
    """A command, or the program itself, with its options and arguments."""

    path: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    #: Whether its arguments are files.
    files: bool
    #: Allowed values of its only argument.
    choices: tuple[str, ...]
    commands: tuple[CommandSpec, ...]

    def all(self) -> Iterator[CommandSpec]:
        """Yield this command and all subcommands."""
        yield self
        for command in self.commands:
            yield from command.all()


def command_of(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = (), about: str = ""
) -> CommandSpec:
    """Return the description of the command that *parser* parses."""
    options, commands, files, choices = [], [], False, ()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            commands += [
                command_of(below, (*path, name), helps.get(name, ""))
                for name, below in action.choices.items()
            ]
        elif action.option_strings:
            options.append(_option(action))
        else:
            files = files or str(action.metavar) in _FILES
            choices = choices or tuple(action.choices or ())
    return CommandSpec(path, about, tuple(options), files, choices, tuple(commands))


def _option(action: argparse.Action) -> Option:
    takes = action.nargs != 0
    text = (action.help or "").split(";")[0].split(" (")[0].replace("%%", "%")
    return Option(
        tuple(action.option_strings),
        text,
        str(action.metavar or action.dest.upper()) if takes else "",
        tuple(map(str, action.choices or ())) if takes else (),
        settings=action.dest == "settings",
        repeated=isinstance(action, argparse._AppendAction),
    )


def script(shell: str, program: CommandSpec, settings: Sequence[SettingSpec]) -> str:
    """Return the script for a shell; *settings* are the completions of -X.

    A setting is completed under its own name, or a dotted one once a dot has been typed.
    """
    return "\n".join(_SCRIPTS[shell](program, settings)) + "\n"


def _name(path: Iterable[str]) -> str:
    return "/".join(("", *path)) if path else ""


# bash ---------------------------------------------------------------------------------------------


def _bash(program: CommandSpec, settings: Sequence[SettingSpec]) -> Iterator[str]:
    commands = list(program.all())
    known = " | ".join(_name(command.path) for command in commands[1:])
    yield "# Completes pykaproducer in bash. Load it with:"
    yield "#   source <(pykaproducer completion bash)"
    yield from _bash_settings(settings)
    yield "_pykaproducer() {"
    # COMP_WORDS splits NAME=VALUE, so the line itself is split here.
    yield "    local line=${COMP_LINE:0:COMP_POINT} path= word words="
    yield "    local -a typed=()"
    yield '    read -ra typed <<< "$line"'
    yield "    [[ $line == *[[:space:]] ]] && typed+=('')"
    yield "    local cur=${typed[${#typed[@]}-1]} prev=${typed[${#typed[@]}-2]}"
    yield '    for word in "${typed[@]:1:${#typed[@]}-2}"; do'
    yield '        case "$path/$word" in'
    yield f"            {known}) path=$path/$word ;;"
    yield "        esac"
    yield "    done"
    yield "    COMPREPLY=()"
    yield '    case "$path $prev" in'
    yield from _bash_values(commands)
    yield "    esac"
    yield '    case "$path" in'
    for command in commands:
        words = [name for option in command.options for name in option.names]
        first = [each.path[-1] for each in command.commands] or command.choices
        yield f'        "{_name(command.path)}")'
        yield f'            words="{" ".join(words)}"'
        if first or not command.files:
            yield f'            [[ $cur == -* ]] || words="{" ".join(first)}"'
            yield "            ;;"
        else:
            yield "            [[ $cur == -* ]] || return"
            yield "            ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o bashdefault -o default -F _pykaproducer pykaproducer"


def _bash_settings(settings: Sequence[SettingSpec]) -> Iterator[str]:
    """Yield the function that completes the value of ``-X``, which is in $cur."""
    yield "_pykaproducer_settings() {"
    yield f'    local words="{_own_names(settings)}"'
    yield '    case "$cur" in'
    yield "        *@*) return ;;"
    yield "        *=*) words= ;;"
    yield f'        *.*) words="{_dotted_names(settings)}" ;;'
    yield "    esac"
    yield '    case "$cur" in'
    for each in settings:
        cases = " | ".join(f"{name}=*" for name in each.names)
        if each.is_path:
            yield f"        {cases}) return ;;"
        elif each.values:
            yield f'        {cases}) words="{" ".join(each.values)}" ;;'
    yield "    esac"
    yield "    compopt +o default +o bashdefault 2>/dev/null"
    yield "    if [[ $cur != *=* ]]; then"
    yield "        compopt -o nospace 2>/dev/null"
    yield '        COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "        return"
    yield "    fi"
    yield "    local name=${cur%%=*}="
    # Where = separates words, as it does by default, readline replaces only the value.
    yield "    local shown=$name"
    yield "    [[ $COMP_WORDBREAKS == *=* ]] && shown="
    yield '    COMPREPLY=($(compgen -P "$shown" -W "$words" -- "${cur#"$name"}"))'
    yield "}"


def _bash_values(commands: Sequence[CommandSpec]) -> Iterator[str]:
    """Yield the cases in which the previous word is an option that takes a value."""
    for command in commands:
        for option in command.options:
            if not option.value:
                continue
            yield (
                "        " + " | ".join(f'"{_name(command.path)} {n}"' for n in option.names) + ")"
            )
            if option.settings:
                yield "            _pykaproducer_settings"
            elif option.choices:
                words = " ".join(option.choices)
                yield f'            COMPREPLY=($(compgen -W "{words}" -- "$cur"))'
            elif option.takes_directory:
                yield "            compopt -o dirnames 2>/dev/null"
            elif not option.takes_file:
                yield "            compopt +o default +o bashdefault 2>/dev/null"
            yield "            return ;;"


# zsh ----------------------------------------------------------------------------------------------


def _zsh(program: CommandSpec, settings: Sequence[SettingSpec]) -> Iterator[str]:
    yield "#compdef pykaproducer"
    yield "# Completes pykaproducer in zsh. Load it, after compinit, with:"
    yield "#   source <(pykaproducer completion zsh)"
    yield from _zsh_settings(settings)
    for command in reversed(list(program.all())):
        yield f"{_zsh_function(command)}() {{"
        yield from (f"    {line}" for line in _zsh_body(command))
        yield "}"
    yield 'if [ "$funcstack[1]" = _pykaproducer ]; then'
    yield '    _pykaproducer "$@"'
    yield "else"
    yield "    compdef _pykaproducer pykaproducer"
    yield "fi"


def _zsh_settings(settings: Sequence[SettingSpec]) -> Iterator[str]:
    """Yield the function that completes the value of ``-X``."""
    yield "_pykaproducer_settings() {"
    yield "    local name=${PREFIX%%[=@]*}"
    yield "    if compset -P 1 '*@'; then"
    yield "        _files"
    yield "    elif compset -P 1 '*='; then"
    yield '        case "$name" in'
    for each in settings:
        cases = " | ".join(each.names)
        if each.is_path:
            yield f"            {cases}) _files ;;"
        elif each.values:
            yield f"            {cases}) compadd -- {' '.join(each.values)} ;;"
    yield "        esac"
    yield "    elif [[ $PREFIX == *.* ]]; then"
    yield f"        compadd -S '' -- {_dotted_names(settings)}"
    yield "    else"
    yield f"        compadd -S '' -- {_own_names(settings)}"
    yield "    fi"
    yield "}"


def _zsh_function(command: CommandSpec) -> str:
    return "_".join(("_pykaproducer", *command.path))


def _zsh_body(command: CommandSpec) -> Iterator[str]:
    specs = [spec for option in command.options for spec in _zsh_specs(option)]
    if command.commands:
        yield "local line state"
        rows = (_zsh_text(f"{each.path[-1]}:{each.help}") for each in command.commands)
        yield f"local -a commands=({' '.join(map(shlex.quote, rows))})"
        specs += ["1: :->first", "*:: :->rest"]
    elif command.choices:
        specs.append(f"1: :({' '.join(command.choices)})")
    elif command.files:
        specs.append("*:FILE:_files")
    yield "_arguments -C \\"
    for place, spec in enumerate(specs, 1):
        yield f"    {shlex.quote(spec)}" + (" \\" if place < len(specs) else "")
    if command.commands:
        yield "case $state in"
        yield "    first) _describe command commands ;;"
        yield "    rest)"
        yield "        case $line[1] in"
        for each in command.commands:
            yield f"            {each.path[-1]}) {_zsh_function(each)} ;;"
        yield "        esac ;;"
        yield "esac"


def _zsh_specs(option: Option) -> Iterator[str]:
    others = "" if option.repeated else f"({' '.join(option.names)})"
    for name in option.names:
        spec = ("*" if option.repeated else others) + name
        if not option.value:
            yield f"{spec}[{_zsh_text(option.help)}]"
            continue
        what = " "
        if option.settings:
            what = "_pykaproducer_settings"
        elif option.choices:
            what = f"({' '.join(option.choices)})"
        elif option.takes_file:
            what = "_files"
        elif option.takes_directory:
            what = "_files -/"
        equals = "=" if name.startswith("--") else ""
        value = _zsh_text(option.value).replace(":", "\\:")
        yield f"{spec}{equals}[{_zsh_text(option.help)}]:{value}:{what}"


def _zsh_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")


# fish ---------------------------------------------------------------------------------------------


def _fish(program: CommandSpec, settings: Sequence[SettingSpec]) -> Iterator[str]:
    yield "# Completes pykaproducer in fish. Load it with:"
    yield "#   pykaproducer completion fish | source"
    yield from _fish_settings(settings)
    yield "complete -c pykaproducer -f"
    for command in program.all():
        when = _fish_condition(command)
        for below in command.commands:
            yield f"{when} -a {below.path[-1]} -d {_fish_text(below.help)}"
        if command.choices:
            yield f"{when} -a {_fish_text(' '.join(command.choices))}"
        if command.files:
            yield f"{when} -F"
        for option in command.options:
            yield f"{when} {_fish_option(option)}"


def _fish_settings(settings: Sequence[SettingSpec]) -> Iterator[str]:
    """Yield the function that lists the completions of the value of ``-X``."""
    yield "function __pykaproducer_settings"
    yield "    set -l head (string match -r '^[^=@]*[=@]?' -- (commandline -ct))"
    yield "    set -l rest (string replace -- $head '' (commandline -ct))"
    yield "    switch (commandline -ct)"
    yield "        case '*@*'"
    yield "            printf '%s\\n' $head(__fish_complete_path $rest)"
    yield "        case '*=*'"
    yield "            switch $head"
    for each in settings:
        if each.is_path or each.values:
            yield f"                case {' '.join(f'{name}=' for name in each.names)}"
        if each.is_path:
            yield "                    printf '%s\\n' $head(__fish_complete_path $rest)"
        elif each.values:
            yield f"                    printf '%s\\n' $head{{{','.join(each.values)}}}"
    yield "            end"
    yield "        case '*.*'"
    yield f"            printf '%s\\n' {_dotted_names(settings)}"
    yield "        case '*'"
    yield f"            printf '%s\\n' {_own_names(settings)}"
    yield "    end"
    yield "end"


def _fish_condition(command: CommandSpec) -> str:
    tests = [f"__fish_seen_subcommand_from {name}" for name in command.path]
    if command.commands:
        names = " ".join(each.path[-1] for each in command.commands)
        tests.append(f"not __fish_seen_subcommand_from {names}")
    return f"complete -c pykaproducer -n {_fish_text('; and '.join(tests))}"


def _fish_option(option: Option) -> str:
    words = []
    for name in option.names:
        words.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
    if option.settings:
        words.append("-x -a '(__pykaproducer_settings)'")
    elif option.choices:
        words.append(f"-x -a {_fish_text(' '.join(option.choices))}")
    elif option.takes_file:
        words.append("-r -F")
    elif option.takes_directory:
        words.append("-x -a '(__fish_complete_directories)'")
    elif option.value:
        words.append("-x")
    return f"{' '.join(words)} -d {_fish_text(option.help)}"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: Mapping[str, Any] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

#: The supported shells.
SHELLS = tuple(_SCRIPTS)
