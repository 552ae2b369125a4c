"""`edgespec completion`: a script with which a shell completes commands, options and models."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from edgespec.cli.parsing import COMMANDS, SPELLINGS, CommandParser
from edgespec.cli.terminal import tell
from edgespec.llm.load.options import DRAFTS
from edgespec.store.catalogue import Catalogue
from edgespec.system.cachedir import cache_folder

_HERE, _ALL = "models that are here", "those and the catalogue's"
_TAKEN = {"model": _ALL, "models": _ALL, "checkpoint": _ALL, "names": _HERE}
# zsh reads the script of bash by its own bashcompinit.
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
_BASH = """\
_edgespec() {{
    local known="{names}"
    local at="$COMP_CWORD" word="${{COMP_WORDS[COMP_CWORD]}}" words="" begun=""
    # bash takes a name with a colon for three words
    while [ "$at" -gt 1 ]; do
        case "${{COMP_WORDS[at-1]}}/${{COMP_WORDS[at]}}" in :/* | */:) ;; *) break ;; esac
        at=$((at - 1))
        word="${{COMP_WORDS[at]}}$word"
        begun="${{word%"${{word##*:}}"}}"
    done
    local before="${{COMP_WORDS[at-1]}}"
    COMPREPLY=()
    if [ "$at" -eq 1 ]; then
        words={commands}
    else
        case "${{COMP_WORDS[1]}} $before" in
{values}
        *)
            case "${{COMP_WORDS[1]}} $word" in
{options}
{words}
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    COMPREPLY=("${{COMPREPLY[@]#"$begun"}}")
}}
complete -o default -F _edgespec edgespec"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument(
        "shell",
        choices=_SCRIPTS,
        help="bash: save the script as ~/.local/share/bash-completion/completions/edgespec; fish: "
        "as ~/.config/fish/completions/edgespec.fish; zsh: source it in ~/.zshrc, behind compinit",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    folder = cache_folder("models")  # without which there are no models
    list_models = "true" if folder is None else f"ls {shlex.quote(str(folder))} 2>/dev/null"
    tell(_SCRIPTS[arguments.shell](list_models, " ".join(Catalogue.read().names)))
    return 0


class _Command(NamedTuple):
    """A command as it may be spelt, its options, and what its first argument may be.

    Attributes:
        name: how it is spelt.
        options: its options.
        words: words that it takes.
        takes: which names of models it takes: `_HERE`, `_ALL` or none.
    """

    name: str
    options: Sequence[argparse.Action]
    words: Sequence[str]
    takes: str

    def found(self, names: Mapping[str, str]) -> str:
        """Returns what a shell makes the words of that the first argument may be.

        Args:
            names: what it makes names of models of, by what a command takes of them.
        """
        return " ".join([*self.words, *filter(None, [names.get(self.takes)])])


def _declared() -> Iterator[_Command]:
    for name in (*COMMANDS, *SPELLINGS):
        first, *given = SPELLINGS.get(name, (name,))
        declared = CommandParser(command=first).declare()
        actions = [each for each in declared if each.help != argparse.SUPPRESS]
        others = [each for each in actions if not each.option_strings]
        words = [str(word) for each in others if not given for word in each.choices or ()]
        takes = next((_TAKEN[each.dest] for each in others if each.dest in _TAKEN), "")
        yield _Command(name, [each for each in actions if each.option_strings], words, takes)
    yield _Command("help", (), (*COMMANDS, *SPELLINGS), "")


def _values(option: argparse.Action, models: str) -> str:
    """Returns the words that may follow an option, with those for names of models."""
    if "SOURCE" in str(option.metavar):
        return " ".join(DRAFTS) + f" {models}" * ("MODEL" in str(option.metavar))
    return " ".join(map(str, option.choices or ()))


def _bash(list_models: str, known: str) -> str:
    names = {_HERE: f"$({list_models})", _ALL: f"$({list_models}) $known"}
    commands = list(_declared())
    values = dict[str, list[str]]()
    options = []
    words = []
    for each in commands:
        spelt = [(option, name) for option in each.options for name in option.option_strings]
        for option, name in spelt:
            if option.nargs != 0:
                values.setdefault(_values(option, names[_ALL]), []).append(f'"{each.name} {name}"')
        options.append(f'            "{each.name} -"*) words="{" ".join(n for _, n in spelt)}" ;;')
        found = each.found(names)
        words.append(f'            "{each.name} "*) words="{found}" ;;')
    cases = [f'        {" | ".join(given)}) words="{found}" ;;' for found, given in values.items()]
    return _BASH.format(
        names=known,
        commands=f'"{" ".join(each.name for each in commands)}"',
        values="\n".join(cases),
        options="\n".join(options),
        words="\n".join(words),
    )


def _fish(list_models: str, known: str) -> str:
    names = {_HERE: f"({list_models})", _ALL: f"({list_models}) $__edgespec_known"}
    lines = []
    for each in _declared():
        told = COMMANDS.get(SPELLINGS.get(each.name, (each.name,))[0], "show a command's help")
        lines.append(f"-n __fish_use_subcommand -f -a {each.name} -d {shlex.quote(told)}")
        here = f"-n '__fish_seen_subcommand_from {each.name}'"
        lines.append(f"{here} -a {shlex.quote(each.found(names))}")
        for option in each.options:
            spelt = (
                f"-{'l' if n[1] == '-' else 's'} {n.lstrip('-')}" for n in option.option_strings
            )
            found = _values(option, names[_ALL])
            told = re.split(r"[;(]|\. ", option.help or "")[0]
            value = "" if option.nargs == 0 else f"-x -a {shlex.quote(found)}" if found else "-r"
            told = shlex.quote(told.replace("%%", "%").strip())
            lines.append(f"{here} {' '.join(spelt)} {value} -d {told}")
    first = f"set -g __edgespec_known {known}"
    return "\n".join([first, *(f"complete -c edgespec {line}" for line in lines)])


def _zsh(list_models: str, known: str) -> str:
    return _ZSH + _bash(list_models, known)


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
