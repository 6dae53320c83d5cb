"""The command line: one thin dispatcher, so that help comes at once and a command imports only what it needs."""

import inspect
import os
import resource
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from fedgen import __version__
from fedgen.class_paths import nearest
from fedgen.extras import MissingExtraError, unfit_torchvision
from fedgen.foreign_text import printable_lines
from fedgen.own_code import from_own_code, is_of_kit
from fedgen.pytorch_lightning_alias import alias_if_unused

_python_format = warnings.formatwarning

# command -> (module:function, what it does); the options of a function without `arguments` are its own arguments
COMMANDS = {
    "fit": ("fedgen.cli.fit:fit", "train from a recipe: federated, or one of its controls"),
    "recipes": ("fedgen.cli.fit:list_recipes", "list the recipes that fit finds by name"),
    "evaluate": ("fedgen.cli.run:evaluate", "score any stored images, or a run's checkpoints again"),
    "select": ("fedgen.cli.run:select_checkpoint", "rank a run's checkpoints by a score and print the best one's path"),
    "audit": ("fedgen.cli.run:audit_models", "attack a run's models: what they reveal of training images"),
    "report": ("fedgen.cli.run:report", "write one HTML page of a run, or of several side by side"),
    "benchmark": ("fedgen.cli.benchmark:benchmark", "compare generators and algorithms on one suite of cells"),
    "convert": (
        "fedgen.cli.deploy:convert",
        "convert StyleGAN2 pickles to safetensors without running them",
    ),
    "clients": ("fedgen.cli.clients:clients", "show a recipe's partition, and how clients differ"),
    "deploy": ("fedgen.cli.deploy:deploy_recipe", "write a recipe as a Flower app for clients' own machines"),
    "supernode": ("fedgen.cli.deploy:supernode", "start Flower's SuperNode for apps allowed by SHA-256"),
    "completion": ("fedgen.cli.completion:completion", "print a bash or zsh script that completes commands"),
    "reproduce": ("fedgen.experiments.command:reproduce", "run an experiment: prints a table, writes a figure"),
}


def usage() -> str:
    longest = max(map(len, COMMANDS))
    lines = [f"  {name:<{longest}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fedgen COMMAND [ARGUMENT ...]",
            "",
            "Train, score and select generative models on data that stays with its owners.",
            "",
            "commands:",
            *lines,
            "",
            "fedgen COMMAND --help explains a command; fedgen --version prints the version.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status (2 for a mistake in the input, with one message; 130 for Ctrl-C)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name need not be text
    warnings.formatwarning = _format_warning
    if not arguments or arguments[0] in ("-h", "--help", "--help-all"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(f"fedgen {__version__}")
        return 0
    if arguments[0] not in COMMANDS:
        told = nearest(arguments[0], list(COMMANDS))
        print(f"fedgen: no command {printable_lines(repr(arguments[0]))}{told}\n\n{usage()}", file=sys.stderr)
        return 2
    alias_if_unused()  # before a recipe's own classes are imported
    module, function = COMMANDS[arguments[0]][0].split(":")
    try:
        command = getattr(import_module(module), function)
        if "arguments" in inspect.signature(command).parameters:
            return command(arguments[1:]) or 0
        from jsonargparse import auto_cli

        from fedgen.flags import CommandParser, with_flags  # which `fedgen fit` does without

        given, prog = with_flags(command, arguments[1:]), f"fedgen {arguments[0]}"
        auto_cli(command, args=given, as_positional=True, prog=prog, parser_class=CommandParser)
        return 0
    except KeyboardInterrupt:
        if os.environ.get("FEDGEN_TRACEBACK"):
            raise
        print("fedgen: interrupted; files are written whole or not at all", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("FEDGEN_TRACEBACK"):
            raise
        return tell(error)


def tell(error: Exception) -> int:
    """Prints an error, and returns the status: 1 for the user's own code, 2 for the input; raises any other."""
    hint = "(FEDGEN_TRACEBACK=1 shows where it was raised)"
    if unfit := unfit_torchvision(error):
        print(f"fedgen: error: {unfit}\n{hint}", file=sys.stderr)
        return 2
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if isinstance(error, OSError) and largest != resource.RLIM_INFINITY:  # some errors of it do not name it
        hint = f"(no file may have more than {largest} bytes here: ulimit -f)\n{hint}"
    if lines := from_own_code(error):
        print(f"{printable_lines(lines)}{hint}", file=sys.stderr)
        return 1
    if not isinstance(error, (ValueError, TypeError, OSError, MissingExtraError)):
        # Lightning's own complaint about settings; imported here only if something was raised
        from lightning.pytorch.utilities.exceptions import MisconfigurationException

        if not isinstance(error, MisconfigurationException):
            raise error
    told = "; ".join([str(error), *getattr(error, "__notes__", [])])  # which item of which client was being read
    print(f"fedgen: error: {printable_lines(told)}\n{hint}", file=sys.stderr)  # it may quote a stranger's file
    return 2


def _format_warning(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any) -> str:
    """Format a warning for text that may be a stranger's: the kit's as its errors are, all others as Python does."""
    if is_of_kit(filename):  # whose line of source says nothing to whoever trains
        return f"fedgen: warning: {printable_lines(str(message))}\n"
    return printable_lines(_python_format(message, category, filename, *rest, **more))


if __name__ == "__main__":
    sys.exit(main())
