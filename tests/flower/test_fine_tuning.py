"""Fine-tuning towards clients elsewhere trains the generator that its simulation trains, in all three forms."""

import csv
import logging
import re
import shutil
from functools import cache

import pytest
import torch
from flwr.app import Message as FlowerMessage

from fedgen.embeddings.base import Pixels
from fedgen.federated.left_out import read_left_out
from fedgen.flower.app.apps import client_app
from fedgen.flower.app.recipe import deployable, for_client, for_server
from fedgen.flower.client.local_data import NodeData
from fedgen.flower.server.asked_clients import TooFewAnswersError
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import LossQuestion, Told
from fedgen.statistics.statistic_messages import Message
from tests.flower.connected import connection_to
from tests.flower.fine_tuning import FORMS, SIZES, fine_tuning
from tests.flower.loopback import Loopback, Node, keep_replies
from tests.flower.runs import HIDDEN, IMAGES, app_of, deploy, node_of, same_weights, scores_of, simulate, write_images
from tests.flower.scripted import hello_of

LOSS = "query.loss"
BYTES = 8  # a masked number
pytestmark = pytest.mark.filterwarnings("ignore:client 'b' does not answer and is left out:UserWarning")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), SIZES)


@pytest.fixture(scope="module")
def simulated(images, tmp_path_factory):
    """The checkpoint of a round of the simulation's two, by form and rounds."""

    @cache
    def folder(form):
        settings, found = fine_tuning(form, 2), tmp_path_factory.mktemp(form)
        keeping = {"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 1}}
        settings["trainer"]["callbacks"].append(keeping)
        simulate(settings, images, found)
        return found

    return lambda form, rounds=1: torch.load(folder(form) / f"round=0000{rounds - 1}.ckpt", weights_only=True)


@pytest.fixture
def heard(monkeypatch):
    """Every reply that reaches the server."""
    return keep_replies(monkeypatch)


# ---- the same numbers ----


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_generator_and_the_bytes_are_those_of_the_simulation_also_of_a_run_that_goes_on(
    form, simulated, images, tmp_path
):
    deployed, grid = deploy(fine_tuning(form), images, tmp_path / "deployed")
    same_weights(simulated(form), deployed)
    assert deployed["traffic"] == simulated(form)["traffic"]
    assert deployed["traffic"]["up"] > 0
    asked = {"exact": [LOSS] * 2, "message": [LOSS] * 3, "local": ["train"]}[form]
    assert all(node.calls == ["query", *asked] for node in grid.nodes.values())
    kept = sorted(path.suffix for path in (tmp_path / "deployed-b").rglob("*.*"))
    own = {"exact": [".json"], "message": [], "local": [".safetensors"]}[form]  # a mean kernel; a turn's outcome
    assert kept == sorted([".json", ".safetensors", *own])  # the number and split that it holds to, features
    resumed, _ = deploy(fine_tuning(form, 2), images, tmp_path / "deployed")
    same_weights(simulated(form, 2), resumed)
    assert resumed["traffic"]["up"] == 2 * deployed["traffic"]["up"]  # "message" asks once in each process


FID = {"class_path": "fedgen.losses.FastFIDLoss"}
AVG = {**FID, "init_args": {"aggregate": "avg"}}
SINGLE = {"class_path": "fedgen.losses.DistributedLoss", "init_args": {"precision": "torch.float32"}}
SCORES = {"num_images": 60, "embeddings": ["pixels"]}
VARIANTS = {
    "fid avg, weights, scores": ("exact", AVG, SCORES, {"client_weights": [1.0, 2.0, 0.5]}),
    "fid, uniform": ("message", FID, None, {"client_weights": "uniform"}),
    "single precision": ("exact", SINGLE, None, {}),
    "local fid": ("local", AVG, None, {}),
    "labels": ("exact", None, None, {}),
    "local, labels": ("local", None, None, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_other_objectives_weights_and_the_servers_labels(name, images, tmp_path):
    """Scores, too, are those of the simulation."""
    form, loss, evaluation, objective = VARIANTS[name]
    settings = fine_tuning(form, loss=loss, evaluation=evaluation, **objective)
    if "labels" in name:
        sizes = {"image_size": 8, "channels": 1, "width": 4, "num_classes": 10}
        for part, own in (("Generator", {"latent_dim": 3, **sizes}), ("Critic", sizes)):
            network = {"class_path": f"fedgen.models.networks.SNGAN{part}", "init_args": own}
            settings["model"]["init_args"]["model"]["init_args"][part.lower()] = network
    simulated = simulate(settings, images, tmp_path / "simulated")
    runs = {"deployed": {}, "hidden": HIDDEN}
    if "labels" in name:  # biases before a BatchNorm have gradients of rounding alone, and Adam makes them large
        del runs["hidden"]
    for run, config in runs.items():
        deployed, _ = deploy(settings, images, tmp_path / run, config=config)
        # in single precision what is masked is more exact than what is sent
        same_weights(simulated, deployed, atol=1e-5 if "labels" in name or name == "single precision" else 2e-6)
        if evaluation is None:
            continue
        found, expected = (scores_of(tmp_path / place) for place in (run, "simulated"))
        assert found.keys() == {key for key in expected if not (config and key[1].endswith("_worst"))}
        for (split, kind), value in found.items():
            close = pytest.approx(expected[split, kind], rel=2e-2 if kind == "kid_all" else 1e-4)
            assert value == close, (run, split, kind)


# ---- only sums ----


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_under_secure_aggregation_the_generator_is_the_same_and_the_server_sees_sums(
    form, simulated, images, tmp_path, heard
):
    deployed, grid = deploy(fine_tuning(form), images, tmp_path / "deployed", config=HIDDEN)
    same_weights(simulated(form), deployed, atol=2e-6)
    exchanges = {"exact": 2, "message": 3, "local": 1}[form]
    assert all(node.calls == ["query", *["train"] * 4 * exchanges] for node in grid.nodes.values())
    masked = [reply for reply in heard if "masked_params" in str(reply.content.config_records)]
    assert len(masked) == 3 * exchanges
    for reply in heard:
        assert LOSS not in reply.metadata.message_type
        for record in reply.content.array_records.values():
            assert sum(tensor.numel() for tensor in record.to_torch_state_dict().values()) == 0
    if form == "exact":
        # an entry of value and gradient is two numbers, and each has 128 marks
        assert deployed["traffic"]["up"] == 2 * 3 * BYTES * (2 * (1 + 8 * 64) + 2 * 128)
    if form == "local":
        counters = 3 * 2 * 8  # of three clients' batch norms, which do not travel under masks
        assert deployed["traffic"]["up"] == 2 * (simulated(form)["traffic"]["up"] - counters)  # of float32


@pytest.mark.slow
def test_a_range_that_cuts_off_is_asked_again(simulated, images, tmp_path, monkeypatch):
    monkeypatch.setattr("fedgen.flower.server.asked_clients.FIRST", 1e-9)
    deployed, grid = deploy(fine_tuning("exact"), images, tmp_path / "deployed", config=HIDDEN)
    same_weights(simulated("exact"), deployed)
    assert all(node.calls.count("train") == 4 * 3 for node in grid.nodes.values())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["exact", "message"])
def test_a_loss_that_asks_for_more_than_noisy_statistics_is_refused(form, images, tmp_path):
    noisy = {"statistics-epsilon": 1.0, "statistics-delta": 1e-5, "statistics-radius": 1.0}
    with pytest.raises(ValueError, match="nothing"):
        deploy(fine_tuning(form), images, tmp_path / "run", config=noisy)


# ---- clients that fail ----


class Broken(Node):
    """A node that answers questions of a loss by what `breaks` makes of the answer, from one on."""

    def __init__(self, app, config, run, breaks, since=0, until=1000):
        super().__init__(app, config, run)
        self.breaks, self.questions, self.asked = breaks, range(since, until), 0

    def answer(self, message, number):
        hidden = "fitins.parameters" in message.content.array_records
        if message.metadata.message_type != LOSS and not hidden:
            return super().answer(message, number)
        self.asked += 1
        if self.asked - 1 not in self.questions:
            return super().answer(message, number)
        return self.breaks(message, lambda: super(Broken, self).answer(message, number))


def raises(message, answer):
    raise MemoryError("the client's machine is full")


def vanishes(message, answer):
    return None


def changed(change):
    """An answer with other tensors."""

    def breaks(message, answer):
        reply = answer()
        told = from_records(Told, reply)
        found = Message.from_bytes(told.messages[0])
        reply.content = to_records(Told([Message(found.kind, change(dict(found.tensors)), found.meta).to_bytes()]))
        return reply

    return breaks


def garbage(message, answer):
    reply = answer()
    reply.content = to_records(Told([b"no message"]))
    return reply


def another_embedding(message, answer):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pixels, "fingerprint", lambda self: "another")
        return answer()


FAULTS = {
    "raises": (raises, "MemoryError: the client's machine is full"),
    "vanishes": (vanishes, "it did not answer within 0.5 seconds"),
    "garbage": (garbage, "no readable message"),
    "shape": (
        changed(lambda t: t | {"gradient": t["gradient"][1:]}),
        r"its gradient is \[7, 64\] and should be \[8, 64\]",
    ),
    "weight": (changed(lambda t: t | {"weight": t["weight"] * 9}), "it weighs 36 and should weigh 4"),
    "another embedding": (another_embedding, "embedding pixels is another one here"),
}


def with_broken(settings, images, folder, breaks, config=(), **when):
    """Deploys with client b's node broken; the last checkpoint."""
    broken = node_of(Broken, settings, images, folder, "b", breaks, config=config, **when)
    return deploy(settings, images, folder, {11: broken}, config)[0]


@pytest.fixture(scope="module")
def expected(images, tmp_path_factory):
    """Of the simulation without b; nobody holds images out, which would depend on the clients' numbers."""
    others, found = tmp_path_factory.mktemp("others") / "clients", {}
    shutil.copytree(images, others, ignore=lambda folder, names: ["b"] if "b" in names else [])
    for form in ("exact", "message"):
        found[form] = simulate(fine_tuning(form, held_out=0.0), others, tmp_path_factory.mktemp(form))
    return found


@pytest.mark.slow
def test_the_objective_is_the_mean_over_the_clients_that_answer(expected, tmp_path):
    """Others fail, each in its own way; together they have the images that client b has elsewhere."""
    broken = dict(zip("bdefgh", FAULTS, strict=True))
    images = write_images(tmp_path / "clients", {"a": 12, **dict.fromkeys(broken, 4), "h": 5, "c": 16})
    settings, run, config = fine_tuning("exact", held_out=0.0), tmp_path / "run", {"round-deadline": 0.5}
    nodes = {
        10 + "abcdefgh".index(name): node_of(Broken, settings, images, run, name, FAULTS[fault][0], config=config)
        for name, fault in broken.items()
    }
    with pytest.warns(UserWarning, match="does not answer") as warned:
        found, _ = deploy(settings, images, run, nodes, config)
    said = [str(one.message) for one in warned]
    for name, fault in broken.items():
        (of_client,) = [text for text in said if f"client '{name}'" in text]  # of two questions
        assert re.match(f"client '.' does not answer and is left out.*{FAULTS[fault][1]}", of_client)
    same_weights(expected["exact"], found)


@pytest.mark.slow
def test_hidden_answers_of_the_others_are_summed_without_one_that_fails(images, expected, tmp_path):
    settings = fine_tuning("exact", held_out=0.0)
    same_weights(expected["exact"], with_broken(settings, images, tmp_path / "run", raises, HIDDEN))


@pytest.mark.slow
def test_a_client_comes_back_and_the_log_has_the_part_that_answered(images, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path / "logs")}}
    settings = fine_tuning("exact", rounds=2, held_out=0.0, logger=logger)
    with_broken(settings, images, tmp_path / "run", raises, since=1, until=2)
    with next((tmp_path / "logs").rglob("metrics.csv")).open() as file:
        parts = [float(row["clients_answered"]) for row in csv.DictReader(file) if row["clients_answered"]]
    of_all = sum(len(list((images / name).rglob("*.png"))) for name in SIZES)
    assert parts == pytest.approx([1 - SIZES["b"] / of_all / 2, 1])
    (entry,) = read_left_out(tmp_path / "run")
    assert (entry["round"], entry["client"], entry["name"], entry["kind"]) == (0, 1, "b", "objective")
    assert "MemoryError: the client's machine is full" in entry["reason"]
    assert "left out of the objective: 1 client, 1 time" in caplog.text


@pytest.mark.slow
def test_too_few_answers_end_the_run_naming_who_is_missing_and_it_goes_on(simulated, images, tmp_path):
    settings = fine_tuning("exact", rounds=2)
    with pytest.raises(TooFewAnswersError, match="MemoryError"):
        with_broken(settings, images, tmp_path / "run", raises, {"least-answers": 0.9}, since=3)
    found, _ = deploy(settings, images, tmp_path / "run")
    same_weights(simulated("exact", 2), found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nothing came from any client:UserWarning")
def test_a_question_that_nobody_answers_is_asked_again(simulated, images, tmp_path, monkeypatch):
    settings, pull, cut = fine_tuning("exact"), Loopback.pull_messages, []

    def lost(self, message_ids):
        """The line is cut while the first batch is asked about."""
        replies = pull(self, message_ids)
        if len(cut) < len(SIZES) and any(reply.metadata.message_type == LOSS for reply in replies):
            cut.extend(replies)
            return []
        return replies

    monkeypatch.setattr(Loopback, "pull_messages", lost)
    monkeypatch.setattr("fedgen.flower.server.connection.AGAIN", 0.01)
    found, grid = deploy(settings, images, tmp_path / "run", config={"round-deadline": 0.3, "wait": 20.0})
    assert all(node.calls.count(LOSS) == 3 for node in grid.nodes.values())
    same_weights(simulated("exact"), found)


@pytest.mark.slow
@pytest.mark.parametrize("since", [0, 1, 2])
def test_one_message_is_of_the_clients_that_answer_all_of_it(since, images, expected, tmp_path):
    settings = fine_tuning("message", held_out=0.0)
    same_weights(expected["message"], with_broken(settings, images, tmp_path / "run", raises, since=since))
    assert [(one["name"], one["kind"]) for one in read_left_out(tmp_path / "run")] == [("b", "objective")]


def test_who_was_left_out_before_is_kept_by_checkpoints():
    before, after = (RemoteClients(_connection=connection_to()) for _ in range(2))
    for data, reason in ((before, "no answer"), (after, "not connected")):
        for _ in range(2):
            data.note_left_out("objective", 0, reason)  # of each round once
    after.load_state_dict({**before.state_dict(), "round": 4})
    found = [(one["round"], one["name"], one["reason"]) for one in after.left_out]
    assert found == [(0, "a", "no answer"), (5, "a", "not connected")]


def test_of_a_great_many_that_did_not_answer_the_latest_are_listed(monkeypatch):
    monkeypatch.setattr("fedgen.flower.server.remote_data.KEPT_TURNS", 3)
    data = RemoteClients(_connection=connection_to(*map(hello_of, "abcde")))
    for client in range(5):
        data.note_left_out("objective", client, "no answer")
    assert [one["name"] for one in data.left_out] == ["c", "d", "e"]


@pytest.mark.slow
@pytest.mark.parametrize("since", [0, 1])
def test_a_hidden_message_is_of_all_clients_or_none(since, images, tmp_path):
    """Sums with and without a client would show its statistics."""
    why = "'a', 'c': not all of these clients answered for their sum to be unmasked; 'b': .*full"
    with pytest.raises(TooFewAnswersError, match=why):
        with_broken(fine_tuning("message"), images, tmp_path / "run", raises, HIDDEN, since=since)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' is left out of round:UserWarning")
def test_a_turn_on_another_embedding_is_refused(images, tmp_path):
    class Other(Node):
        def answer(self, message, number):
            return another_embedding(message, lambda: super(Other, self).answer(message, number))

    settings, run = fine_tuning("local"), tmp_path / "run"
    found, _ = deploy(settings, images, run, {11: node_of(Other, settings, images, run, "b")})
    assert [(one["name"], one["reason"]) for one in found["fedavg"]["left_out"]] == [
        (
            "b",
            "MessageError: MisconfigurationException: frozen network pixels is another one here;"
            " install the same release and weights",
        )
    ]


def test_an_open_question_is_refused_where_answers_are_hidden(images, tmp_path):
    path = app_of(fine_tuning("exact"), tmp_path / "app", 3)
    node = Node(client_app(path), {"data-path": str(images / "a"), "state-path": str(tmp_path / "a")}, HIDDEN)
    question = LossQuestion(b"", "pixels", "", 1.0, "float64", 0, ())
    with pytest.raises(ValueError, match="nothing"):
        node.answer(FlowerMessage(to_records(question), 1, LOSS), 1)


# ---- the two halves of a recipe ----


def test_a_client_has_neither_the_servers_data_nor_the_game(tmp_path):
    for form in FORMS:
        settings = deployable(fine_tuning(form), IMAGES)
        model = for_client(settings, NodeData(tmp_path), "a", tmp_path / "features")["model"]
        if form == "local":
            assert model["init_args"]["server_data"] is None
        else:
            assert model["class_path"] == "fedgen.flower.Answering"
            assert model["init_args"].keys() == {"objective", "form", "batch"}
        assert for_server(settings, tmp_path)["model"]["init_args"]["server_data"] == {
            "class_path": "fedgen.data.Digits"
        }


@pytest.mark.slow
def test_a_task_has_no_tensor_of_the_game(images, tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(
        "fedgen.flower.server.connection.to_records",
        lambda message, arrays: sent.append(message) or to_records(message, arrays),
    )
    deploy(fine_tuning("local"), images, tmp_path / "run")
    names = {name.split(".")[1] for task in sent for name in task.weights if name.startswith("model.")}
    assert names == {"generator"}


def test_a_seed_that_every_process_draws_anew_is_refused():
    with pytest.raises(ValueError, match="train"):
        deployable({**fine_tuning("local"), "seed_everything": True}, IMAGES)


def test_what_cannot_be_deployed_is_refused(images, tmp_path):
    settings = fine_tuning("exact")
    settings["trainer"]["strategy"] = fine_tuning("local")["trainer"]["strategy"]
    with pytest.raises(ValueError, match="DistributedFineTuning"):
        deployable(settings, IMAGES)
    settings = fine_tuning("local")
    settings["trainer"]["strategy"] = "auto"
    with pytest.raises(ValueError, match="FedAvgStrategy"):
        deployable(settings, IMAGES)
    with pytest.raises(ValueError, match="answers"):
        deploy(fine_tuning("exact"), images, tmp_path / "run", config={"least-answers": 0})
