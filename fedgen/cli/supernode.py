"""`fedgen supernode --app SHA256`: Flower's SuperNode, which runs the apps that its owner named and no others."""

import re
from collections.abc import Sequence

from fedgen.flags import PlainCommandParser

SHORTEST, LONGEST = 0.01, 60  # seconds between two looks, as Flower's own setting takes them
DESCRIPTION = """\
Starts flower-supernode, which then runs only apps whose archive has one of these SHA-256: another one, changed by a
bit, is not unpacked, and the server is told so. An app's archive is what `flwr build` writes in its folder, on the
machine that starts runs: unzip it, read it, then `sha256sum` it. Further options are flower-supernode's."""


def supernode(arguments: Sequence[str]) -> None:
    """The command; what it does not know are options of flower-supernode.

    Raises:
        ValueError: for what is no SHA-256, and beside --trusted-entities.
        ImportError: without Flower, naming the extra that brings it.
    """
    parser = PlainCommandParser(prog="fedgen supernode", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--app", action="append", required=True, metavar="SHA256", help="of an app; may be repeated")
    parser.add_argument(
        "--look", type=float, metavar="SECONDS", help="between two looks for a message (by default 3, as Flower's)"
    )
    own, rest = parser.parse_known_args(arguments)
    for pin in own.app:
        if not re.fullmatch("[0-9a-fA-F]{64}", pin):
            raise ValueError(f"--app {pin}: a SHA-256 has 64 hexadecimal digits, as `sha256sum` prints them")
    if own.look is not None and not SHORTEST <= own.look <= LONGEST:
        raise ValueError(f"--look {own.look:g}: give seconds from {SHORTEST} to {LONGEST}")
    if any(one.split("=")[0] == "--trusted-entities" for one in rest):
        raise ValueError(
            "--app and --trusted-entities: an app is run by its hash or by whose signature it has; start one SuperNode"
            " for each, or give one of them"
        )
    try:
        from fedgen.flower.client.pinned_apps import run_pinned
    except ModuleNotFoundError as error:
        raise ImportError("a SuperNode is Flower's: pip install 'fedgen[flower]'") from error
    run_pinned({pin.lower() for pin in own.app}, rest, own.look)
