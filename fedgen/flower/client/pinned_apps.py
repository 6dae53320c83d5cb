"""Apps that a SuperNode's owner named by the SHA-256 of their archives; no other is unpacked.

Flower's SuperNode runs what the SuperLink sends, or under `--trusted-entities` what one of those has signed; and a
SuperLink passes signatures on for apps of Flower's hub alone. So the node signs for itself: it trusts one key, made
anew at each start, whose private half never leaves this process, and puts its signature beside an archive that was
named. Should another release of Flower not come by here, nothing has such a signature, and nothing is run.

Such a node may also look for messages more often than Flower's own, which waits three seconds after it has found none.
"""

import argparse
import hashlib
import json
import logging
import os
import re
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.config import get_fab_config, get_metadata_from_config, parse_config_args
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supercore.run import Run
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from fedgen.flower.client.policy import Policy

NODE = "fpk_this_node"  # name of the key
STARTS = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds after which Flower looks for a process to start; by default 1
Pull = Callable[..., int | None]


def run_pinned(pins: Collection[str], options: Sequence[str], look: float | None = None) -> None:
    """Runs flower-supernode for apps of these SHA-256; None looks for messages as often as Flower does."""
    # in a folder of this process: Flower takes for an app what lies where the first eight digits of its hash say
    check_config(options)
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    with tempfile.TemporaryDirectory(prefix="fedgen-node-") as home:
        trusted = Path(home) / "trusted.yaml"
        trusted.write_text(json.dumps({NODE: public}))
        os.environ["FLWR_HOME"] = home
        pull = vouching(start_client_internal._pull_and_store_message, Vouch(pins, key))
        if look is not None:
            os.environ.setdefault(STARTS, str(look))
            pull = looking(pull, look)
        start_client_internal._pull_and_store_message = pull
        sys.argv = ["flower-supernode", *options, "--trusted-entities", str(trusted)]
        flower_supernode()


def check_config(options: Sequence[str]) -> None:
    """Reads a node's config and policy as they are read for each message: its owner sees a mistake's error at once."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--node-config", action="append", default=[])
    given, *others = parser.parse_known_args(options)[0].node_config or [""]
    if others:  # Flower takes the last
        raise ValueError(f"--node-config is given {1 + len(others)} times; give all keys in one")
    pairs = "" if given.endswith(".toml") else given
    if lost := re.sub(r"\S+?=('[^']*'|\"[^\"]*\"|\S+)", "", pairs).strip():  # Flower passes over it
        raise ValueError(f"--node-config: {lost!r} is no key=value; write no space around =")
    Policy.found(parse_config_args([given] if given else None))


def vouching(pull: Pull, vouch: "Vouch") -> Pull:
    """Flower's step that takes a message, and at a run's first its app: those that are named come with a signature."""

    @wraps(pull)
    def pulled(*, get_run: Callable[[int], Run], get_fab: Callable[[str, int], Fab], **rest: Any) -> int | None:
        runs: dict[int, Run] = {}

        def asked(number: int) -> Run:
            runs[number] = get_run(number)
            return runs[number]

        def signed(name: str, number: int) -> Fab:
            found = get_fab(name, number)
            return replace(found, verifications=vouch.of(found, runs[number]))

        return pull(get_run=asked, get_fab=signed, **rest)

    return pulled


def looking(pull: Pull, seconds: float) -> Pull:
    """Flower's step that takes a message, again and again until there is one."""

    @wraps(pull)
    def pulled(**options: Any) -> int | None:
        while (run := pull(**options)) is None:
            time.sleep(seconds)
        return run

    return pulled


class Vouch:
    """Signs archives."""

    def __init__(self, pins: Collection[str], key: Ed25519PrivateKey) -> None:
        self._pins, self._key = pins, key

    def of(self, fab: Fab, run: Run) -> dict[str, str]:
        """Return what Flower looks at beside an archive, in place of what came with it."""
        digest = hashlib.sha256(fab.content)
        found = {"valid_license": "of its owner"}
        if why := self._fault(digest.hexdigest(), fab, run):
            logging.getLogger("flwr").error("refused: %s", why)
            return found
        now = int(time.time())
        signature = self._key.sign(create_message_to_sign(digest.digest(), now))
        told = {"signed_at": now, "signature": urlsafe_b64encode(signature).decode()}
        return found | {NODE: json.dumps(told)}

    def _fault(self, own: str, fab: Fab, run: Run) -> str:
        if own not in self._pins:
            return f"this node runs --app {', '.join(sorted(self._pins))}, and the run's app has the SHA-256 {own}"
        name, version = get_metadata_from_config(get_fab_config(fab.content))
        told = {"hash": fab.hash_str, "run's hash": run.fab_hash, "name": run.fab_id, "version": run.fab_version}
        own_words = {"hash": own, "run's hash": own, "name": name, "version": version}
        wrong = [
            f"{what} {told[what]!r}, and it is {is_own!r}" for what, is_own in own_words.items() if told[what] != is_own
        ]
        return f"the SuperLink says of the app: {wrong[0]}" if wrong else ""
