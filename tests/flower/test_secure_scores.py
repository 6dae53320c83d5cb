"""An evaluation under secure aggregation: the open one's avg and all, from sums over all clients alone."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.common import bytes_to_ndarray
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.evaluation import read_records
from fedgen.evaluation.names import AGGREGATES
from fedgen.federated.left_out import read_left_out
from fedgen.flower.evaluation.summed_answers import FIDOfSums, RoundedSum
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.serialization import from_bytes
from fedgen.scores import FrechetReference
from fedgen.scores.frechet.frechet import fid_message
from fedgen.statistics import MessageError, add, summarize
from fedgen.statistics.fixed_point import FixedPoint
from fedgen.statistics.statistic_messages import gaussian_to_sums
from tests.flower.loopback import Node, keep_replies
from tests.flower.runs import HIDDEN, deploy, node_of, recipe, write_images

SCORES = {"every_n_rounds": 2, "num_images": 70, "embeddings": ["pixels"], "scores": ["fid", "kid", "kid-rbf"]}
FID = {**SCORES, "every_n_rounds": 1, "scores": ["fid"]}
EXCHANGE = 4  # messages of SecAgg+ that a client answers


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


def records(folder):
    return {(r.round, r.split, r.name): r for r in read_records(folder / "scores.jsonl")}


@pytest.fixture(scope="module")
def runs(images, tmp_path_factory):
    """The records of an open and of a secure run of one round, and the second's grid and all replies in it."""
    folder = tmp_path_factory.mktemp("runs")
    settings = recipe(1, {**SCORES, "at_start": True})
    deploy(settings, images, folder / "open")
    with pytest.MonkeyPatch.context() as patch:
        heard = keep_replies(patch)
        _, grid = deploy(settings, images, folder / "secure", config=HIDDEN)
    return records(folder / "open"), records(folder / "secure"), grid, heard


@pytest.mark.slow
def test_scores_are_those_of_the_open_run(runs):
    """Statistics have about 60 bits, so of one model scores differ by float64's rounding alone.

    After a round the weights of the two runs differ by their own quantisation, and scores by what that does.
    """
    opened, secure, _, _ = runs
    assert secure.keys() == {key for key in opened if not key[2].endswith("_worst")}
    assert len(secure) == 2 * 2 * 3 * 2
    for key, record in secure.items():
        assert record.value == pytest.approx(opened[key].value, rel=1e-8 if key[0] == -1 else 2e-5), key


@pytest.mark.slow
def test_records_have_no_single_clients_scores_nor_errors_that_need_them(runs):
    opened, secure, _, _ = runs
    for record in secure.values():
        assert (record.per_client, record.client_names, record.per_client_errors) == ([], [], [])
        assert (record.standard_error, record.error_over_clients) == (None, None)
        assert "clients" not in record.note  # of few images the sums alone are said
        assert record.num_clients == 3
    found, expected = secure[0, "train", "fid_all"], opened[0, "train", "fid_all"]
    assert found.terms == pytest.approx(expected.terms, rel=1e-5)
    assert found.generated_error == pytest.approx(expected.generated_error, rel=1e-3)
    assert 0 <= found.error_parts["quantisation"] < 1e-9


@pytest.mark.slow
def test_every_score_has_its_error_by_quantisation(runs):
    """Of one model, open and secure scores differ by float64's rounding; the stated error lies far below."""
    _, secure, _, _ = runs
    for (_, _, name), record in secure.items():
        assert 0 <= record.error_parts["quantisation"] < 1e-9, name
        if name.endswith("avg"):
            assert record.error_parts["quantisation"] > 0
    for split in ("train", "report"):
        for kid in ("kid", "kid-rbf"):  # what is subtracted of avg adds to the error
            avg, all = (secure[0, split, f"{kid}_{name}"].error_parts["quantisation"] for name in ("avg", "all"))
            assert all > avg


@pytest.mark.slow
def test_a_run_asks_twice_before_training_and_once_an_evaluation(runs):
    """Moments; sketches around their mean; the round; twice all clients' own scores."""
    _, _, grid, _ = runs
    for node in grid.nodes.values():
        assert node.calls == ["query", *["train"] * 5 * EXCHANGE]


@pytest.mark.slow
def test_no_reply_holds_a_statistic_in_the_open(runs):
    _, _, _, heard = runs
    vectors, forms = [], []
    for reply in heard:
        assert all(len(record) == 0 for record in reply.content.array_records.values())
        for record in reply.content.config_records.values():
            vectors += [bytes_to_ndarray(part) for part in record.get("masked_params", [])]
            if isinstance(told := record.get("fedgen"), bytes):
                forms.append(from_bytes(told, "what is told"))
    asked = [form for form in forms if isinstance(form, list)]
    assert len(asked) == 3 * 4
    for message in (one for form in asked for one in form):  # names, shapes and remarks that all clients share
        assert message.keys() == {"shapes", "meta"}
        assert all(isinstance(size, int) for shape in message["shapes"].values() for size in shape)
        assert all(isinstance(value, str) for value in message["meta"].values())
    for form in asked:
        assert sum(form == other for other in asked) in (3, 6)
    long = [vector for vector in vectors if vector.ndim == 1 and len(vector) > 10_000]
    assert len(long) == 2 * 3  # moments and sketches
    for vector in long:  # uniform; the high limbs of statistics are all near the middle
        assert vector.mean() / 2**32 == pytest.approx(0.5, abs=0.02)
        assert np.histogram(vector, 8, (0, 2**32))[0].min() > len(vector) / 8 * 0.9


# ---- what is left out, reported and refused ----


class Failing(Node):
    """A node that cannot answer the n-th exchange, from 0."""

    def __init__(self, app, config, run, exchange):
        super().__init__(app, config, run)
        self.exchange, self.asked = exchange, 0

    def answer(self, message, number):
        if "fitins.parameters" in message.content.array_records:
            self.asked += 1
            if self.asked - 1 == self.exchange:
                raise MemoryError("full")
        return super().answer(message, number)


def failing(images, folder, exchange):
    return {11: node_of(Failing, recipe(1, FID), images, folder / "run", "b", exchange, config=HIDDEN)}


@pytest.mark.slow
def test_a_client_that_does_not_answer_leaves_its_sum_out(images, tmp_path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        deploy(recipe(1, FID), images, tmp_path / "run", failing(images, tmp_path, 2), config=HIDDEN)
    text = [str(one.message) for one in said]
    assert "fid_avg are left out of this evaluation: client 'b': MemoryError: full" in text
    assert {name for _, _, name in records(tmp_path / "run")} == {"fid_all"}
    (entry,) = read_left_out(tmp_path / "run")
    assert (entry["round"], entry["client"], entry["name"], entry["kind"]) == (0, 1, "b", "evaluation")
    assert "MemoryError: full" in entry["reason"]


@pytest.mark.slow
def test_a_client_that_does_not_tell_its_moments_ends_the_run_before_training(images, tmp_path):
    with pytest.raises(MessageError, match="MemoryError"):
        deploy(recipe(1, FID), images, tmp_path / "run", failing(images, tmp_path, 0), config=HIDDEN)


@pytest.mark.slow
def test_what_is_beyond_a_range_is_cut_off_and_said(images, tmp_path):
    small = {**HIDDEN, "range.second-moment": 0.25, "range.fid": 1e-3}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        deploy(recipe(1, FID), images, tmp_path / "run", config=small)
    text = [str(one.message) for one in said]
    assert any("% of the clients' entries of second-moment were beyond range.second-moment=0.25" in one for one in text)
    assert any(
        "train/pixels: 100.00% of the clients' entries of fid were beyond range.fid=0.001" in one for one in text
    )
    found = records(tmp_path / "run")
    # the range bounds the sum of the largest client: 20 of the 42 images that train
    assert found[0, "train", "fid_avg"].value == pytest.approx(3 * 20 * 1e-3 / 42)
    assert "second-moment" in found[0, "train", "fid_all"].note
    # three clients' rounding of the sum, to the finest step under which it stays below 2^63
    step = 2.0 ** -FixedPoint.for_ranges(3, {"score": 20 * 1e-3}).bits["score"]
    expected = step * (3 / 12) ** 0.5 / 42
    assert found[0, "train", "fid_avg"].error_parts == {"quantisation": pytest.approx(expected)}


@pytest.mark.slow
def test_a_cut_where_no_clients_entries_can_be_cut_off_is_said(images, tmp_path, monkeypatch):
    """How many entries were cut off is what clients say, behind masks: it may be of numbers that have no range."""
    add_up = RemoteClients.add_up

    def spoilt(*args):
        return [replace(one, cut={"count": 0.25}) for one in add_up(*args)]

    monkeypatch.setattr(RemoteClients, "add_up", spoilt)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        deploy(recipe(1, FID), images, tmp_path / "run", config=HIDDEN)
    text = "train/pixels: 25.00% of the clients' entries of count were beyond 20, which no client's are, and cut off"
    assert text in [str(one.message) for one in said]
    assert "entries of count" in records(tmp_path / "run")[0, "train", "fid_all"].note


REFUSED = {
    "aggregates": ({**FID, "aggregates": ["power-2"]}, {}, "power-2 needs single clients' scores"),
    "ranges": (FID, {"range.fid": -1.0}, "range.fid=-1.0 in the run's config: give a number from 0"),
    "names": (FID, {"range.vid": 1.0}, "range.vid=1.0 .* no such key; did you mean range"),
    "weights": ({**FID, "weights": "uniform"}, {}, "weigh by examples"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_at_start(name, images, tmp_path):
    scores, config, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        deploy(recipe(1, scores), images, tmp_path / "run", config={**HIDDEN, **config})


@pytest.mark.slow
def test_the_worst_cannot_be_monitored(images, tmp_path):
    settings = recipe(1, FID)
    monitor = {"monitor": "fid_worst", "save_top_k": 1}
    settings["trainer"]["callbacks"].append(
        {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": monitor}
    )
    assert "worst" in AGGREGATES
    with pytest.raises((ValueError, MisconfigurationException), match="fid_worst"):
        deploy(settings, images, tmp_path / "run", config=HIDDEN)


def test_corrected_distances_come_of_sums_too():
    draws = torch.randn(3, 40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clients, made = [draws[0], 1.2 * draws[1][:30]], summarize(draws[2])
    sums = add(*(gaussian_to_sums(summarize(client)) for client in clients))
    own = add(*(fid_message(client, made, bias="corrected") for client in clients))
    found = FIDOfSums(RoundedSum(sums, {}), 1, "corrected").score(RoundedSum(own, {"score": 0.0}), made, errors=False)
    expected = FrechetReference.from_features(clients, bias="corrected").score(made, errors=False)
    assert found.name == "fidc"
    assert found.values == pytest.approx({how: expected.values[how] for how in ("avg", "all")}, rel=1e-9)
