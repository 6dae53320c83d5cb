"""Apps that clients' owners named or somebody signed whom they trust, on real SuperNodes: others are not run."""

import hashlib
import json
import sys
import time
from base64 import urlsafe_b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supercore.run import Run
from flwr.supernode.start_client_internal import _verify_fab

from fedgen.cli.deploy import supernode
from fedgen.flower.app.apps import ONE_MESSAGE
from fedgen.flower.client.pinned_apps import NODE, Vouch, looking
from tests.flower.federation import Federation
from tests.flower.runs import app_of, recipe

REVIEWER = "fpk_reviewer"
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of Flower's archives
NODES = ("open", "pinned", "signed")
CLIENT = """
import os, sys
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def run(message, context):
    parent = Path(f"/proc/{{os.getppid()}}/cmdline").read_text()
    Path(context.node_config["data-path"], "{mark}").write_text(sys.argv[0] + " of " + parent)
    return Message(RecordDict(), reply_to=message)
"""
SERVER = """
import time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 3:
        time.sleep(0.1)
    for reply in grid.send_and_receive([Message(RecordDict(), node, "query") for node in nodes], timeout=100):
        print("a node:", reply.error.reason if reply.has_error() else "ran")
"""


def app(folder, mark):
    """An app that leaves a mark where it runs; its folder, and its archive's SHA-256 and bytes."""
    path = app_of(recipe(1), folder / mark, 3).parent
    (path / "client.py").write_text(CLIENT.format(mark=mark))
    (path / "server.py").write_text(SERVER)
    content = build_fab_from_disk(path.parent)
    return path.parent, hashlib.sha256(content).hexdigest(), content


def signature(key, sha256):
    """What a SuperLink passes on of an archive that somebody has signed."""
    now = int(time.time())
    made = key.sign(create_message_to_sign(bytes.fromhex(sha256), now))
    told = json.dumps({"signed_at": now, "signature": urlsafe_b64encode(made).decode()})
    return {"valid_license": "Valid", REVIEWER: told}


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    return app(tmp_path_factory.mktemp("apps"), "agreed")


@pytest.fixture(scope="module")
def apps(agreed):
    return {"agreed": agreed} | {mark: app(agreed[0].parent, mark) for mark in ("changed", "unsigned")}


@pytest.fixture(scope="module")
def federation(apps, tmp_path_factory):
    """Three nodes: one that runs what comes, one that names an app, and one that trusts a reviewer."""
    folder, key = tmp_path_factory.mktemp("federation"), Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (folder / "trusted.yaml").write_text(f"{REVIEWER}: {public}\n")
    own = signature(key, apps["agreed"][1])
    told = {apps["agreed"][1]: own, apps["changed"][1]: own}  # another app's
    (folder / "signatures.json").write_text(json.dumps(told))
    for name in NODES:
        (folder / name).mkdir()
    nodes = {
        "pinned": (sys.executable, "-m", "fedgen", "supernode", "--app", apps["agreed"][1], "--look", "0.2"),
        "signed": ("flower-supernode", "--trusted-entities", folder / "trusted.yaml"),
    }
    link = ("signing-superlink", folder / "signatures.json")
    with Federation(folder, {name: folder / name for name in NODES}, nodes, link) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "ran"), [("agreed", NODES), ("changed", ("open",)), ("unsigned", ("open",))], ids=lambda one: one
)
def test_an_app_is_run_where_it_is_named_or_signed_and_no_other_is(federation, apps, mark, ran):
    said = federation.run(apps[mark][0], timeout=200)
    assert said.count("a node: ran") == len(ran), (said, *map(federation.log, ("superlink", *NODES)))
    assert said.count("a node: The FAB could not be verified.") == 3 - len(ran)
    assert tuple(name for name in NODES if (federation.folder / name / mark).exists()) == ran
    if "pinned" in ran:  # by which a run's messages are forwarded to a worker, which ends with the parent
        process, parent = (federation.folder / "pinned" / mark).read_text().split(" of ")
        assert (Path(process).name, "flower-superexec" in parent) == (ONE_MESSAGE, True)
    if mark != "agreed":
        assert f"--app {apps['agreed'][1]}, and the run's app has the SHA-256 {apps[mark][1]}" in federation.log(
            "pinned"
        )


@pytest.mark.slow
def test_a_node_signs_an_archive_that_it_names_under_the_names_that_are_its_own(agreed):
    """Flower runs the folder of the name, version and hash that the SuperLink says, which may be elsewhere."""
    _, own, content = agreed
    key = Ed25519PrivateKey.generate()
    run = replace(Run.create_empty(1), fab_id="fedgen/agreed", fab_version="1.0.0", fab_hash=own)
    vouch = Vouch({own}, key)

    def is_run(content, hash_said, run):
        """Whether Flower takes it; with what came beside it gone."""
        fab = Fab(hash_said, content, {NODE: "[", "fpk_other": "no JSON"})
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        return _verify_fab(replace(fab, verifications=vouch.of(fab, run)), {NODE: public})

    assert is_run(content, own, run)
    assert not is_run(content + b" ", own, run)
    assert not is_run(content, "0" * 64, run)
    for name, said in {"fab_id": "../x", "fab_version": "/../../tmp/x", "fab_hash": "0" * 64}.items():
        assert not is_run(content, own, replace(run, **{name: said}))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--app", "12"], "--app 12"),
        (["--app", "0" * 64, "--trusted-entities=x.yaml"], "--trusted-entities"),
        (["--app", "0" * 64, "--look", "0"], "--look 0: give seconds from 0.01 to 60"),
        (["--app", "0" * 64, "--look", "nan"], "--look nan"),
        (["--app", "0" * 64, "--node-config", "policy_path='p.yaml'"], "no key 'policy_path'; did you mean 'policy-"),
        (["--app", "0" * 64, "--node-config=policy-path = 'p.yaml'"], "policy-path = .* is no key=value"),
        (["--app", "0" * 64, "--node-config=policy-path='p.yaml'", "--node-config", "name='a'"], "given 2 times"),
    ],
)
def test_what_a_node_cannot_be_started_with_is_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        supernode(arguments)


def test_a_policy_with_a_mistake_keeps_a_node_from_starting(tmp_path):
    (tmp_path / "policy.yaml").write_text("statistics:\n# - fid\n")
    with pytest.raises(ValueError, match="statistics"):
        supernode(["--app", "0" * 64, "--insecure", f"--node-config=policy-path='{tmp_path / 'policy.yaml'}'"])


def test_a_node_may_look_for_messages_more_often():
    """Flower's own waits three seconds after a look that found none, whatever it looked with."""
    found, asked = iter([None, None, 7]), []

    def pull(**options):
        asked.append(options)
        return next(found)

    start = time.monotonic()
    assert looking(pull, 0.05)(state="a state") == 7
    assert asked == [{"state": "a state"}] * 3
    assert 0.1 <= time.monotonic() - start < 2
