"""A SuperLink that passes signatures on for any app, as Flower's own does for apps of its hub: `SCRIPT FILE OPTIONS`.

FILE has in JSON, by an archive's SHA-256, what comes with it.
"""

import json
import sys
from pathlib import Path

from flwr.superlink.cli import flower_superlink
from flwr.superlink.servicer.control import control_handlers

plain, path = control_handlers.Fab, Path(sys.argv.pop(1))


def signed(sha256, content, verifications):
    return plain(sha256, content, json.loads(path.read_text()).get(sha256, verifications))


if __name__ == "__main__":
    control_handlers.Fab = signed
    flower_superlink()
