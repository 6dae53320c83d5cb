"""`fedgen completion`: scripts for shells, and the words that they complete by."""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

from fedgen.foreign_text import printable
from fedgen.recipe.recipe_files import known_recipes

BASH = """\
_fedgen() {
  local word
  COMPREPLY=()
  while IFS= read -r word; do
    COMPREPLY+=("$(printf %q "$word")")
  done < <(fedgen completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o bashdefault -o default -F _fedgen fedgen
"""
ZSH = """\
#compdef fedgen
_fedgen() {
  local -a found
  found=("${(@f)$(fedgen completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then
    compadd -a found
  else
    _files
  fi
}
compdef _fedgen fedgen
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}
HELP = """\
usage: fedgen completion bash|zsh

Print a script that completes commands, options, recipes, experiments and run
folders. To have it in every shell:

  echo 'eval "$(fedgen completion bash)"' >> ~/.bashrc
  echo 'eval "$(fedgen completion zsh)"' >> ~/.zshrc    # below compinit
"""
RUN_FILES = ("scores.jsonl", "recipe.yaml", "last.ckpt")
MOST_FOLDERS = 500
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")


def completion(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "words":
        words = list(arguments[1:])
        print("".join(f"{word}\n" for word in candidates(words[1:] if words[:1] == ["--"] else words)), end="")
        return 0
    if list(arguments) in ([], ["-h"], ["--help"], ["--help-all"]):
        print(HELP, end="")
        return 0
    if len(arguments) > 1 or arguments[0] not in SCRIPTS:
        raise ValueError(f"completion for {' '.join(arguments)!r}: choose {' or '.join(SCRIPTS)}")
    print(SCRIPTS[arguments[0]], end="")
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last word behind `fedgen`, at the cursor, may become; none where the shell completes files."""
    from fedgen.__main__ import COMMANDS

    before, start = list(words[:-1]), words[-1] if words else ""
    if not before:
        return _fitting([*COMMANDS, "--help", "--version"], start)
    if before[0] not in COMMANDS:
        return []
    if start.startswith("-"):
        return _fitting(options(before[0]), start)
    named = KINDS.get(before[0])
    return _fitting(named(start), start) if named is not None and not before[-1].startswith("-") else []


def options(command: str) -> list[str]:
    """The options that a command has; of `fit`, whose parser takes seconds to make, the usual ones."""
    from fedgen.__main__ import main

    told = io.StringIO()
    with redirect_stdout(told), suppress(SystemExit):
        main([command, "--help" if command == "fit" else "--help-all"])
    return list(dict.fromkeys([*OPTION.findall(told.getvalue()), "--help", "--help-all"]))


def run_folders(start: str) -> list[str]:
    """Folders of runs: here, in `checkpoints`, and in the folder that a word names so far."""
    named = start.rpartition("/")[0] + "/" if "/" in start else ""
    places = [named] if named else ["", "checkpoints/"]
    found = (f"{place}{folder.name}" for place in places for folder in sorted(Path(place).glob("*/"))[:MOST_FOLDERS])
    return [name for name in found if any((Path(name) / file).exists() for file in RUN_FILES)]


KINDS: dict[str, Callable[[str], Iterable[str]]] = {
    **dict.fromkeys(("fit", "deploy"), lambda start: known_recipes()),
    **dict.fromkeys(("select", "audit", "report", "evaluate"), run_folders),
    "clients": lambda start: [*known_recipes(), *run_folders(start)],
    "reproduce": lambda start: import_module("fedgen.experiments.command").EXPERIMENTS,
    "benchmark": lambda start: ["run", "table", *import_module("fedgen.benchmark.suite").SUITES],
    "completion": lambda start: SCRIPTS,
}


def _fitting(names: Iterable[str], start: str) -> list[str]:
    """Those that begin so; names that would act on a terminal are left out."""
    return [name for name in names if name.startswith(start) and printable(name, 4096) == name]
