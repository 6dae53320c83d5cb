"""What a worker keeps from one message of a run to the next changes no bit of them, and spares it no check."""

import logging
import os
import time
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fedgen.data import Examples
from fedgen.data.formats.image_folder import ImageFolder
from fedgen.flower.app import app_sides
from fedgen.flower.app.apps import client_app, worker_app
from fedgen.flower.client import local_data
from fedgen.flower.client.client_node import ClientNode
from fedgen.flower.client.local_data import KeptImages, LocalDataModule, state_of
from fedgen.flower.wire.serialization import from_bytes
from fedgen.images import save_png
from tests.flower.fine_tuning import fine_tuning
from tests.flower.forked import Forked
from tests.flower.loopback import Node
from tests.flower.runs import HIDDEN, deploy, learn_types, names_of, node_of, recipe, write_images
from tests.flower.test_conditional import DDPM

SIZES = {"a": 12, "b": 25, "c": 16}
SCORES = {"every_n_rounds": 1, "num_images": 20, "embeddings": ["pixels"]}
FID = {**SCORES, "every_n_rounds": 2, "scores": ["fid"]}
FAST = {**DDPM, "init_args": {**DDPM["init_args"], "sampler": {"steps": 2}}}
pytestmark = pytest.mark.filterwarnings("ignore:.*left out:UserWarning", "ignore:labels are drawn as if:UserWarning")


def stateful(name):
    return {"class_path": f"tests.flower.stateful.{name}"}


SIZE = {"image_size": 8, "channels": 1, "width": 4}
SNGAN = {
    "generator": {"class_path": "fedgen.models.networks.SNGANGenerator", "init_args": {"latent_dim": 3, **SIZE}},
    "critic": {"class_path": "fedgen.models.networks.SNGANCritic", "init_args": SIZE},
    "loss": {"class_path": "fedgen.models.Hinge"},
}


def of_federated(name, **options):
    return {"class_path": f"fedgen.federated.{name}", "init_args": options}


RUNS = {
    "spectral norm, averaged optimizers, control variates and schedules": (
        recipe(
            2,
            {**SCORES, "every_n_rounds": 2},
            {"class_path": "fedgen.models.GAN", "init_args": SNGAN},
            optimizer_state="average",
            client_algorithm=of_federated("Scaffold"),
            client_schedule=of_federated("ExponentialDecay", rate=0.5, rounds=1),
            cohort_size=2,
        ),
        (),
    ),
    "a GAN whose clients keep parts, models and optimizers, and compress updates": (
        recipe(
            3,
            client_algorithm=of_federated("Ditto"),
            personal=["critic.*"],
            optimizer_state="keep",
            compression=of_federated("compression.TopK"),
            cohort_size=2,
        ),
        (),
    ),
    "a turn that fails after it has trained, of a module with a counter, an average, a schedule and draws": (
        recipe(3, {**FID, "every_n_rounds": 3}, stateful("Failing"), personal=["shift"], optimizer_state="keep"),
        (),
    ),
    "a diffusion model under secure aggregation": (recipe(1, FID, FAST), HIDDEN),
    "a loss at the server": (fine_tuning("exact"), ()),
    "a loss at the server, in one message": (fine_tuning("message"), ()),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), SIZES)


@pytest.fixture
def trusting(monkeypatch):
    """Files that have just been written are not read again."""
    monkeypatch.setattr(local_data, "RECENT", 0.0)


@pytest.fixture
def work(monkeypatch):
    """The folders of images that have been read, in order."""
    found, load = [], ImageFolder.read

    def reading(self, split):
        found.append(self.roots["train"].name)
        return load(self, split)

    monkeypatch.setattr(ImageFolder, "read", reading)
    return found


class Working(Node):
    """A node whose messages one process answers, which keeps images from one to the next, as a worker does."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.kept = KeptImages()

    def answer(self, message, number):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalDataModule, "kept", self.kept)
            return super().answer(message, number)


def train(kind, settings, images, output, config, **options):
    """The last checkpoint, the scores' bytes, and what each client keeps, by its file."""
    names = dict(enumerate(names_of(images), 10))
    nodes = {
        number: node_of(kind, settings, images, output, name, config=config, **options)
        for number, name in names.items()
    }
    found, _ = deploy(settings, images, output, nodes, config)
    kept = {str(path.relative_to(path.parents[2])): path for path in output.parent.glob(f"{output.name}-?/*/round=*")}
    scores = output / "scores.jsonl"
    own = {name: from_bytes(path.read_bytes(), name, sealed=True) for name, path in kept.items()}
    return found, scores.read_bytes() if scores.exists() else b"", own


def assert_equal(one, other, where=""):
    """Compares values of checkpoints to the bit."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other)):
            assert_equal(*pair, f"{where}/{place}")
    else:
        assert one == other, where


def assert_same(fresh, kept):
    """Compares two runs' weights, states, scores and clients' files to the bit."""
    for part in ("state_dict", "fedavg", "optimizer_states", "lr_schedulers"):
        assert_equal(fresh[0].get(part), kept[0].get(part), part)
    assert fresh[1] == kept[1]
    assert_equal(fresh[2], kept[2])


@pytest.mark.slow
@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_is_that_of_a_new_process_for_each_message(name, tmp_path, work):
    """Of two clients, or of three where two have turns."""
    settings, config = RUNS[name]
    sizes = {client: SIZES[client] for client in ("abc" if "cohort_size" in repr(settings) else "ab")}
    images = write_images(tmp_path / "clients", sizes)
    learn_types(settings, images, tmp_path)
    fresh = train(Forked, settings, images, tmp_path / "fresh" / "run", config)
    work.clear()
    kept = train(Working, settings, images, tmp_path / "kept" / "run", config)
    assert_same(fresh, kept)
    assert fresh[0]["state_dict"]
    assert [work.count(one) for one in sizes] == [1] * len(sizes)
    left_out = [one["reason"].split(": ")[-1] for one in kept[0].get("fedavg", {}).get("left_out", [])]
    assert left_out == ["no more of this"] * name.startswith("a turn that fails")


def nothing(node):
    """No change."""


class Changed:
    """A node whose second turn is preceded by a change of its own."""

    def __init__(self, *arguments, change=nothing):
        super().__init__(*arguments)
        self.change = change

    def answer(self, message, number):
        if message.metadata.message_type == "train" and self.calls.count("train") == 1:
            self.change(self)
        return super().answer(message, number)


class Changing(Changed, Working):
    """One that keeps images."""


class ChangingForked(Changed, Forked):
    """One each of whose messages has a process of its own."""


def folder_of(node):
    return Path(node.config["data-path"])


def darken(node):
    """Puts another image of the same name in a file's place."""
    save_png(min(folder_of(node).rglob("*.png")), torch.zeros(1, 8, 8, dtype=torch.uint8))


def remove(node):
    """Takes an image away."""
    min(folder_of(node).rglob("*.png")).unlink()


def move(node):
    """Has another folder in its config."""
    node.config = {**node.config, "data-path": str(folder_of(node).with_name("b"))}


def allow(text):
    """Writes another policy."""
    return lambda node: Path(node.config["policy-path"]).write_text(text)


@pytest.mark.slow
@pytest.mark.usefixtures("trusting")
def test_an_image_that_changes_at_one_node_is_read_again(tmp_path, work):
    settings, found, sizes = recipe(2, None, stateful("Restless")), [], {"a": 12, "b": 25}
    for kind, change in ((ChangingForked, darken), (Changing, darken), (Changing, nothing)):
        images, output = write_images(tmp_path / f"{len(found)}", sizes), tmp_path / f"{len(found)}-run" / "run"
        changes = dict(enumerate(zip("ab", (change, nothing)), 10))
        nodes = {n: node_of(kind, settings, images, output, name, change=own) for n, (name, own) in changes.items()}
        work.clear()
        found.append(deploy(settings, images, output, nodes)[0]["state_dict"])
        assert kind is ChangingForked or [work.count(one) for one in sizes] == [1 + (change is darken), 1]
    assert_equal(found[0], found[1])
    assert not torch.equal(found[0]["image"], found[2]["image"])


CHANGES = {
    "clients": (allow("least_clients: 9"), "least_clients=9"),
    "damaged": (allow("damaged: 1"), "policy cannot be read"),
    "an image less": (remove, "other images of this client were held out"),
    "another folder": (move, "other images of this client were held out"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("trusting")
@pytest.mark.filterwarnings("ignore:refused:UserWarning", "ignore:this node's policy cannot be read:UserWarning")
@pytest.mark.parametrize("name", list(CHANGES))
def test_what_a_nodes_owner_changes_in_a_run_holds_at_once(name, tmp_path):
    """The policy and the split that a client holds to are looked at for every message."""
    images = write_images(tmp_path / "clients", {"a": 12, "b": 25})
    settings, (change, refused) = recipe(2), CHANGES[name]
    node = node_of(Changing, settings, images, tmp_path / "run", "a", change=change)
    node.config["policy-path"] = str(tmp_path / "policy.yaml")
    allow("least_clients: 2")(node)
    found, _ = deploy(settings, images, tmp_path / "run", {10: node})
    left_out = [(one["round"], refused in one["reason"]) for one in found["fedavg"]["left_out"]]
    assert left_out == [(1, True)]


def test_messages_leave_the_generators_as_they_were(images, tmp_path):
    """Without a seed a module draws what it draws in a new process."""
    node = node_of(Node, recipe(2, None, stateful("Restless")), images, tmp_path / "run", "a")
    before = torch.get_rng_state()
    node.app(Message(RecordDict(), 10, "query"), Context(0, 10, node.config, RecordDict(), node.run))
    assert torch.equal(torch.get_rng_state(), before)


# ---- what is kept, and what is not ----


def test_files_that_have_just_been_changed_are_not_trusted(tmp_path):
    """Within a tick of the file system's clock one may change again and look the same."""
    path = tmp_path / "images" / "one.png"
    path.parent.mkdir()
    path.write_bytes(b"1")
    assert state_of([path.parent]) is None
    later = time.time() + 10
    before = state_of([path.parent], later)
    assert before == state_of([path.parent], later)
    os.utime(path, (0, 0))
    touched = state_of([path.parent], later)
    path.write_bytes(b"2")
    os.utime(path, (0, 0))
    assert len({before, touched, state_of([path.parent], later), state_of([path], later)}) == 4
    assert state_of([tmp_path / "missing"], later) is None


def test_files_behind_links_are_looked_at_and_circles_end(tmp_path):
    inside, outside, later = tmp_path / "in", tmp_path / "out", time.time() + 10
    inside.mkdir(), outside.mkdir()
    (outside / "one.png").write_bytes(b"1")
    (inside / "link").symlink_to(outside)
    (outside / "back").symlink_to(inside)
    before = state_of([inside], later)
    (outside / "one.png").write_bytes(b"22")
    assert state_of([inside], later) not in (None, before)


@pytest.mark.usefixtures("trusting")
def test_images_that_were_written_to_are_read_again(images):
    kept, data = KeptImages(), ImageFolder(images / "a", channels=1)
    first = kept.read("", data.read_from(), data.load)
    assert kept.read("", data.read_from(), data.load) is first
    first.inputs[3:5].view(-1)[0] = 7
    again = kept.read("", data.read_from(), data.load)
    assert again is not first
    again.labels[0] = 1
    assert kept.read("", data.read_from(), data.load) is not again


def test_a_worker_alone_keeps_images(tmp_path, monkeypatch):
    """Actors of Flower's simulation answer for many nodes."""
    monkeypatch.setattr(LocalDataModule, "kept", None)
    client_app(tmp_path / "recipe.yaml")
    assert LocalDataModule.kept is None
    worker_app(tmp_path / "recipe.yaml")
    assert isinstance(LocalDataModule.kept, KeptImages)


@pytest.mark.usefixtures("trusting")
def test_images_are_read_again_with_other_settings(images, monkeypatch):
    monkeypatch.setattr(LocalDataModule, "kept", KeptImages())
    first = LocalDataModule(ImageFolder(images / "a", channels=1)).read
    assert LocalDataModule(ImageFolder(images / "a", channels=1), batch_size=3).read is first
    assert LocalDataModule(ImageFolder(images / "a", channels=3)).read.inputs.shape[1] == 3
    monkeypatch.setattr(LocalDataModule, "kept", None)
    plain = LocalDataModule(ImageFolder(images / "a", channels=1)).read
    assert plain is not LocalDataModule(ImageFolder(images / "a", channels=1)).read


class Elsewhere(ImageFolder):
    """Reads what nobody knows."""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ImageFolder, {"labels": len}),
        (ImageFolder, {"images_of": len}),
        (ImageFolder, {"collate_fn": len}),
        (ImageFolder, {"evaluation_data": ImageFolder("elsewhere")}),
        (Elsewhere, {}),
    ],
)
def test_what_somebodys_own_code_reads_is_read_for_each_message(kind, options, images, monkeypatch):
    counted, kept = [], KeptImages()
    kept.read = lambda settings, places, load: counted.append(places) or load()
    monkeypatch.setattr(LocalDataModule, "kept", kept)
    monkeypatch.setattr(
        local_data,
        "load_source",
        lambda *arguments: Examples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), "", ()),
    )
    for data, own in ((kind(images / "a"), options), (ImageFolder(images / "a"), {})):
        assert len(LocalDataModule(data, **own).read) == 0
    assert counted == [[images / "a"]]


class Heard(logging.Handler):
    """Keeps what is said."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.mark.slow
def test_what_a_trainer_says_of_each_message_is_said_once_in_a_process(images, tmp_path, monkeypatch):
    monkeypatch.setattr(app_sides, "_SAID", set())
    loggers, heard = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")], Heard()
    take = ClientNode.take

    def taking(client_node, task):
        rank_zero_info("a notice")
        return take(client_node, task)

    monkeypatch.setattr(ClientNode, "take", taking)
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(heard)
    try:
        deploy(recipe(2), images, tmp_path / "run")
        assert [logger.level for logger in loggers] == [logging.INFO] * 2
    finally:
        for logger, level in zip(loggers, levels):
            logger.removeHandler(heard)
            logger.setLevel(level)
    said = {start: sum(text.startswith(start) for text in heard.texts) for start in app_sides._OF_EACH}
    assert heard.texts.count("a notice") == 2 * len(SIZES)
    of_server = 1
    assert said.pop("💡") <= 1 + of_server
    assert set(said.values()) == {1 + of_server}
