"""What a client holds to, whatever a server asks: its number and split, what it told once, and its owner's policy."""

import hashlib
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from flwr.app import Message as FlowerMessage

import fedgen
from fedgen.embeddings import load_embedding
from fedgen.flower.app.apps import client_app
from fedgen.flower.client import client_statistics as statistics
from fedgen.flower.client.pins import ASKED, PINNED
from fedgen.flower.client.policy import Policy, RefusedError
from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import Item, LossQuestion, Question, Told
from fedgen.io.tensor_files import hash_tensors
from fedgen.statistics.statistic_messages import Message, MessageError
from tests.flower.fine_tuning import fine_tuning
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import NOISE, app_of, deploy, node_of, recipe
from tests.flower.test_private_statistics import questioned

SCORES = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid", "kid"]}
CLASSES = tuple("0123456789")


def client(images, folder, config=(), policy=""):
    """Client a by itself, and what it says to a question; a restart loses what is not on its disk."""
    path = app_of(recipe(1, SCORES), folder / "app", 4)
    own = {"data-path": str(images / "a"), "state-path": str(folder / "a")}
    if policy:
        (folder / "policy.yaml").write_text(policy)
        own["policy-path"] = str(folder / "policy.yaml")

    def answer(question):
        grid = Loopback({10: Node(client_app(path), own, {"output": "first", **dict(config)})})
        message = FlowerMessage(to_records(question), 10, "evaluate")
        (reply,) = grid.send_and_receive([message])
        return from_records(Told, reply)

    return answer


def same(one, other):
    """Whether two answers say the same; the order of a header's entries is chance."""
    pairs = zip(*([Message.from_bytes(data) for data in told.messages] for told in (one, other)), strict=True)
    return [all(torch.equal(a.tensors[n], t) for n, t in b.tensors.items()) and a.meta == b.meta for a, b in pairs] == [
        True
    ]


def asking(ask, number=0, split="train", score="", **tensors):
    item = Item(ask, split, "pixels", load_embedding("pixels").fingerprint(), score)
    return Question(tensors, [tuple(item)], number, CLASSES)


@pytest.mark.filterwarnings("ignore:refused:UserWarning")
def test_a_client_keeps_the_number_that_it_was_first_told(images, tmp_path):
    """By another number other images are held out: 110 answers gave every image."""
    answer = client(images, tmp_path)
    first = answer(asking("statistics"))
    assert first.messages
    for number in (1, 2):
        assert f"under the number 0 in place of {number}" in answer(asking("statistics", number)).failure
    assert same(answer(asking("statistics")), first)


def test_a_client_tells_a_statistic_once(images, tmp_path, monkeypatch):
    """Asked again it says the same; around another centre a sketch would say more."""
    answer = client(images, tmp_path)
    centres = [torch.full((64,), value, dtype=torch.float64) for value in (0.0, 0.5)]
    sketch = [asking("sketch", score="kid", **{"0": centre}) for centre in centres]
    assert same(answer(sketch[0]), answer(sketch[0]))
    assert "that would be another release of the same images" in answer(sketch[1]).failure
    told = answer(asking("statistics"))
    monkeypatch.setattr(statistics, "summarize", lambda features: pytest.fail("told anew"))
    assert same(answer(asking("statistics")), told)


@pytest.mark.slow
def test_a_run_scores_as_many_sets_of_generated_images_as_its_recipe_does_and_as_many_again(images, tmp_path):
    """Each is another number of the client's images; one that it has scored before is none."""
    sets = torch.rand(5, 3, 64).double()
    asked = tmp_path / "a" / "first" / PINNED / ASKED / hash_tensors([], "kid/train/pixels/kid")
    asked.mkdir(parents=True)
    (asked / "..half-written.tmp").touch()  # of a kill
    answers = [
        client(images, tmp_path)(asking("kid", score="kid", **{"train/pixels": features}))
        for features in [*sets, sets[0]]
    ]
    assert [bool(told.messages) for told in answers] == [True, True, True, True, False, True]
    assert "its recipe has 4 at most" in answers[4].failure
    assert same(answers[0], answers[5])
    assert client(images, tmp_path)(asking("fid", score="fid", **{"train/pixels": sets[4]})).messages


def test_a_run_asks_as_many_questions_of_a_loss_as_its_recipe_has_steps_and_as_many_again(images, tmp_path):
    path = app_of(fine_tuning("exact"), tmp_path / "app", 3)
    own = {"data-path": str(images / "a"), "state-path": str(tmp_path / "a")}
    grid = Loopback({10: Node(client_app(path), own, {"output": "first"})})
    fingerprint, answers = load_embedding("pixels").fingerprint(), []
    for features in torch.rand(7, 8, 64):
        asked = Message("features", {"features": features}, {"gradient": "no"})
        question = LossQuestion(asked.to_bytes(), "pixels", fingerprint, 1.0, "float64", 0, CLASSES)
        (reply,) = grid.send_and_receive([FlowerMessage(to_records(question), 10, "query.loss")])
        answers.append(from_records(Told, reply))
    assert [bool(told.messages) for told in answers] == [True] * 6 + [False], answers
    assert "its recipe has 6 at most" in answers[6].failure


def test_an_exit_in_a_clients_code_is_its_answer(images, tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "summarize", lambda features: sys.exit("no more"))
    assert "SystemExit: no more" in client(images, tmp_path)(asking("statistics")).failure


POLICIES = {
    "questions": ("most_questions: 0", asking("kid", score="kid"), "than 0"),
    "statistics": ("statistics: [kid, fid]", asking("statistics"), "statistics=kid, fid, and the run asks for"),
    "embeddings": ("embeddings: [lite0]", asking("statistics"), "embeddings=lite0, and the run asks for 'pixels'"),
    "bytes": ("most_bytes: 100", asking("statistics"), "most_bytes=100, and the run asks for an answer of"),
    "no noise": ("most_epsilon: 10", asking("statistics"), "'statistics', which has no noise"),
    "epsilon": ("most_epsilon: 7.5", questioned(), "most_epsilon=7.5, and the run asks for epsilon 8 over all"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_what_goes_beyond_the_policy_is_refused_and_named_on_both_sides(name, images, tmp_path):
    text, question, said = POLICIES[name]
    with pytest.warns(UserWarning, match="refused"):
        told = client(images, tmp_path, NOISE if name == "epsilon" else (), text)(question)
    assert said in told.failure


RUNS = {
    "runs": ("runs: [second, third]", "allows runs=second, third, and the run asks for the run 'first'"),
    "recipe": (f"recipe: {'ab' * 32}", f"allows recipe={'ab' * 32}, and the run asks for the recipe of SHA-256"),
    "masking": ("masking: true", "allows masking=true, and the run asks for a run without secure aggregation"),
    "a key": ("colour: red", "cannot be read"),
    "a value": ("masking: 1", "cannot be read"),
    "no keys": ("- 3", "cannot be read"),
    "no runs": ("runs: []", "allows runs=nothing, and the run asks for the run 'first'"),
}


@pytest.mark.filterwarnings("ignore:refused:UserWarning", "ignore:this node's policy cannot be read:UserWarning")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_the_policy_does_not_allow_is_refused_before_its_client_says_who_it_is(name, images, tmp_path):
    text, said = RUNS[name]
    with pytest.raises(MessageError, match=said):
        client(images, tmp_path, policy=text)(asking("statistics"))
    assert not (tmp_path / "a" / "first").exists()


def test_the_policy_may_be_named_by_the_environment_and_the_recipe_by_its_hash(images, tmp_path, monkeypatch):
    path = app_of(recipe(1, SCORES), tmp_path / "app", 4)
    (tmp_path / "policy.yaml").write_text(f"recipe: {hashlib.sha256(path.read_bytes()).hexdigest()}\nruns: [first]\n")
    monkeypatch.setenv("FEDGEN_POLICY", str(tmp_path / "policy.yaml"))
    assert client(images, tmp_path)(asking("statistics")).messages
    with pytest.raises(RefusedError, match="read"), pytest.warns(UserWarning, match="nothing"):
        Policy.of_node({"policy-path": str(tmp_path / "missing")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs:\n# - first", r"policy.yaml: runs is empty; give \[\] to allow none, or leave the key out"),
        ("statistics: null", r"statistics is empty; give \[\] to allow none"),
        ("masking:", "masking is empty; give a value"),
        ("recipe: ''", "recipe is '' and is not of 64 printable"),
        ("runs: first", r"runs is 'first', which is no list\[str\], nor 'all'"),
        ("statistics: [fids]", r"where one is 'fids', none of 'statistics', .*, nor 'all'"),
        ("most_epsilom: 3", "there is no key 'most_epsilom'; did you mean 'most_epsilon'"),
        ("least_clients: 010", "line 1 has 010, which YAML reads as 8; write decimal digits"),
        ("# nothing yet", "is no policy: it has no keys"),
    ],
)
def test_a_policy_whose_key_is_empty_or_unknown_or_whose_number_is_octal_allows_nothing(tmp_path, text, said):
    """A list whose lines are all commented out was null, and allowed everything."""
    (tmp_path / "policy.yaml").write_text(text + "\n")
    with pytest.raises(ValueError, match=said):
        Policy.read(tmp_path / "policy.yaml")


def test_null_in_place_of_a_list_allows_nothing(tmp_path):
    (tmp_path / "recipe.yaml").touch()
    with pytest.warns(UserWarning, match="refused"), pytest.raises(RefusedError, match="statistics"):
        Policy(statistics=None).check_asked("fid", "pixels")
    with pytest.warns(UserWarning, match="refused"), pytest.raises(RefusedError, match="nothing"):
        Policy(runs=None).check_run("first", tmp_path / "recipe.yaml", False)


@pytest.mark.parametrize("key", ["policy_path", "policy-pth", "policy", "data_path"])
def test_an_unknown_key_of_a_nodes_config_allows_nothing(tmp_path, key):
    with (
        pytest.warns(UserWarning, match=f"this node's config has no key '{key}'; did you mean '{key[:4]}"),
        pytest.raises(RefusedError, match="owner"),
    ):
        Policy.of_node({key: str(tmp_path), "name": "a"})


@pytest.mark.parametrize("name", ["FEDGEN_POLICY", "FEDGEN_POLICY_PATH", "FEDGEN_POLICIES", "fedgen_policy"])
def test_a_variable_that_names_no_policy_or_nearly_allows_nothing(monkeypatch, name):
    monkeypatch.setenv(name, "" if name == "FEDGEN_POLICY" else "/etc/fedgen.yaml")
    with pytest.raises(ValueError, match="FEDGEN_POLICY"):
        Policy.found({})


def test_epsilon_adds_up_over_a_nodes_runs(images, tmp_path):
    """A run that asks again is given the same, and nothing more is counted."""
    text = "most_epsilon: 20"
    for run in ("first", "first", "second"):
        assert client(images, tmp_path, {**NOISE, "output": run}, text)(questioned()).messages
    with pytest.warns(UserWarning, match="refused"):
        told = client(images, tmp_path, {**NOISE, "output": "third"}, text)(questioned())
    assert "asks for epsilon 24 over all releases" in told.failure


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'a' is left out:UserWarning", "ignore:refused:UserWarning")
@pytest.mark.parametrize("text", ["least_clients: 5", "most_norm: 1.0e-6", "most_norm: 1.0e-6 # compressed"])
def test_a_turn_that_the_policy_does_not_allow_is_left_out_by_name(text, images, tmp_path):
    (tmp_path / "policy.yaml").write_text(text)
    compression = {"class_path": "fedgen.federated.compression.TopK"} if "compressed" in text else None
    rules = {"*running_*": "server", "*tracked": "server"}  # nothing but what trains is sent
    settings, run = recipe(1, compression=compression, rules=rules), tmp_path / "run"
    node = node_of(Node, settings, images, run, "a")
    node.config["policy-path"] = str(tmp_path / "policy.yaml")
    found, _ = deploy(settings, images, run, {10: node})
    ((name, reason),) = [(one["name"], one["reason"]) for one in found["fedavg"]["left_out"]]
    assert name == "a"
    assert f"this node's policy allows {text.split(':')[0]}=" in reason


def test_the_docs_policy_is_one(tmp_path):
    page = (Path(fedgen.__file__).parent.parent / "docs/deployment-policy.md").read_text()
    (tmp_path / "policy.yaml").write_text(page.split("```")[1].removeprefix("yaml\n"))
    found = Policy.read(tmp_path / "policy.yaml")
    assert (found.least_clients, found.masking, found.most_epsilon, len(found.recipe)) == (5, True, 8.0, 64)
    assert all(getattr(found, one.name) != one.default for one in fields(Policy))
