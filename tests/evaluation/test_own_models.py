"""Clients' own models where only some tensors are personal: who is scored with which, and on what."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
from fedgen.evaluation import Evaluator, Run, append_records, evaluate_run, read_records, sampler_of
from fedgen.evaluation.own_models import OWN_NOTE, OwnModels
from fedgen.evaluation.tables.table import run_tables
from fedgen.federated import Ditto
from tests.evaluation.places import SCORES, Averaged, Criticised, Gated, Placed, federation, fit, judge
from tests.federated.modules import same, weights

PARTICIPATING = ("part_train", "part_val")


def by_place(folder, round=1):
    records = read_records(folder / "scores.jsonl")
    return {(r.split, r.score, r.aggregate): r for r in records if r.is_model and r.round == round}


def plain(data, **options):
    """An evaluator that knows nothing of clients' own models."""
    return Evaluator(data, ["identity"], **{"num_images": 40, "scores": SCORES, "seed": 3, **options})


def of_server(module, data, round=1, **options):
    """The records of the server's model alone."""
    evaluator = plain(data, **options)
    return evaluator.evaluate(sampler_of(module), round, **evaluator.asked_of(module)).records


def around(point):
    """The sampler of a model that has this point."""
    return lambda number, draws: point + torch.randn(number, 2, generator=draws) / 10


def own_parts(trainer):
    """What each client that has trained keeps, by its name."""
    clients, kept = trainer.datamodule.clients, trainer.strategy.personal_tensors
    return {clients[number].name: tensors["place.own"] for number, tensors in kept.items()}


def expected_losses(split, parts, common):
    """Each client's loss with its own point."""
    own = [(split.of_one(place).images, parts.get(name, 0)) for place, name in enumerate(split.client_names)]
    return [float((images - (common + part)).square().sum(1).mean()) for images, part in own]


def expected_kids(split, parts, common, round=1):
    """Each client's KID with its own point."""
    kids = []
    for place, name in enumerate(split.client_names):
        alone = Evaluator([split.of_one(place)], ["identity"], 40, ["kid"], seed=3)
        records = alone.evaluate(around(common + parts.get(name, 0)), round).records
        kids.append(next(r.value for r in records if r.aggregate == "avg"))
    return kids


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder, module, data and trainer of a training of each kind of model; trained once."""

    @cache
    def train(kind):
        folder, module, data = tmp_path_factory.mktemp(kind.__name__), kind(), federation()
        return folder, module, data, fit(folder, module, data)

    return train


@pytest.mark.slow
def test_participating_clients_are_scored_with_their_own_models_and_others_with_the_servers(trained):
    folder, module, data, trainer = trained(Placed)
    found, parts, common = by_place(folder), own_parts(trainer), module.place.common.detach()
    assert torch.equal(module.place.own, torch.zeros(2))
    assert len({tuple(part.tolist()) for part in parts.values()}) == 6
    for split in plain(data).splits:
        own = parts if split.name in PARTICIPATING else {}
        for score, expected in (
            ("loss", expected_losses(split, own, common)),
            ("kid", expected_kids(split, own, common)),
        ):
            record = found[split.name, score, "avg"]
            assert record.per_client == pytest.approx(expected, rel=1e-5)
            assert record.value == pytest.approx(sum(expected) / len(expected), rel=1e-5)
            assert found[split.name, score, "worst"].value == pytest.approx(max(expected), rel=1e-5)
            assert record.num_generated == 40
            assert ((split.name, score, "all") in found) == (split.name == "unpart")
    server = [r for r in of_server(module, data) if r.split == "unpart"]
    assert [replace(r, note="", checkpoint=None) for r in found.values() if r.split == "unpart"] == server
    assert {record.note for record in found.values()} == {OWN_NOTE}
    for score in SCORES:
        gap, worse, better = (found[p, score, "avg"].value for p in ("gap/participation", "unpart", "part_val"))
        assert gap == pytest.approx(worse - better)
        assert ("gap/participation", score, "all") not in found
        assert ("gap/out_of_sample", score, "avg") in found
    assert "part_val/kid_pct95" in trainer.callback_metrics
    assert len(run_tables(read_records(folder / "scores.jsonl"))) > 3


@pytest.mark.slow
def test_a_private_critic_leaves_images_one_models_and_has_its_own_loss(trained):
    folder, module, data, trainer = trained(Criticised)
    found, parts, common = by_place(folder), own_parts(trainer), module.place.common.detach()
    server = of_server(module, data)
    images = [replace(r, checkpoint=None) for r in found.values() if r.score == "kid"]
    assert images == [r for r in server if r.score == "kid"]
    assert ("part_train", "kid", "all") in found
    for split in plain(data).splits:
        losses = expected_losses(split, parts if split.name in PARTICIPATING else {}, common)
        assert found[split.name, "loss", "avg"].per_client == pytest.approx(losses, rel=1e-5)
        assert ((split.name, "loss", "all") in found) == (split.name == "unpart")
    assert {r.note for r in found.values() if r.score == "loss"} == {OWN_NOTE}
    assert ("gap/participation", "loss", "avg") in found
    assert "kid_all" in trainer.callback_metrics
    assert "loss_all" not in trainer.callback_metrics


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Placed, Criticised, Averaged])
def test_a_stored_checkpoint_is_scored_as_during_training(trained, kind):
    folder, _, data, _ = trained(kind)
    before = [r for r in read_records(folder / "scores.jsonl") if r.is_model]
    wrong = [replace(r, aggregate="all") for r in before if r.aggregate == "avg" and r.note]
    append_records(folder / "scores.jsonl", wrong)  # as of a release that scored the server's model
    assert evaluate_run(folder, kind(), plain(data)) == before
    assert [r for r in Run(folder).records if r.is_model] == before


@pytest.mark.slow
def test_models_that_an_algorithm_trains_for_clients_are_scored_as_theirs(tmp_path):
    """Of Ditto: each client's point is its own, in training and of a checkpoint, and the server's if so asked."""
    module, data, rule = Criticised(), federation(), Ditto(0.1)
    trainer = fit(tmp_path, module, data, personal=[], client_algorithm=rule)
    names = [client.name for client in trainer.datamodule.clients]
    points = {names[number]: own["place.common"] + own["place.own"] for number, own in rule.clients.items()}
    commons = {names[number]: own["place.common"] for number, own in rule.clients.items()}
    server = module.place().detach()
    found = by_place(tmp_path)
    for split in plain(data).splits:
        takes_part = split.name in PARTICIPATING
        own = {name: point - server for name, point in points.items()} if takes_part else {}
        losses = expected_losses(split, own, server)
        assert found[split.name, "loss", "avg"].per_client == pytest.approx(losses, rel=1e-5)
        common = module.place.common.detach()
        parts = {name: point - common for name, point in commons.items()} if takes_part else {}
        assert found[split.name, "kid", "avg"].per_client == pytest.approx(
            expected_kids(split, parts, common), rel=1e-5
        )
    before = [r for r in read_records(tmp_path / "scores.jsonl") if r.is_model]
    assert evaluate_run(tmp_path, Criticised(), plain(data)) == before
    other = Criticised()
    fit(tmp_path / "server", other, data, personal=[], client_algorithm=Ditto(0.1, scored="server"))
    assert same(weights(module), weights(other))
    found = by_place(tmp_path / "server").values()
    assert [replace(r, checkpoint=None) for r in found] == of_server(other, data)
    assert evaluate_run(tmp_path / "server", Criticised(), plain(data)) == list(found)


@pytest.mark.slow
def test_clients_tensors_stand_in_a_moving_average_too(trained):
    folder, module, data, trainer = trained(Averaged)
    average, parts = module.place_ema.network, own_parts(trainer)
    assert not torch.equal(average.common, module.place.common)
    assert torch.equal(average.own, torch.zeros(2))
    found = by_place(folder)
    for split in plain(data).splits:
        given = split, parts if split.name in PARTICIPATING else {}, average.common.detach()
        assert found[split.name, "loss", "avg"].per_client == pytest.approx(expected_losses(*given), rel=1e-5)
        assert found[split.name, "kid", "avg"].per_client == pytest.approx(expected_kids(*given), rel=1e-5)


@pytest.mark.slow
def test_without_a_split_all_clients_have_their_own_models_but_who_had_no_turn_yet(tmp_path):
    module, data = Placed(), federation(4, unparticipating=None)
    trainer = fit(tmp_path, module, data, [judge(at_start=True)], 1, cohort_size=2)
    found, parts, common = by_place(tmp_path, 0), own_parts(trainer), module.place.common.detach()
    assert len(parts) == 2
    assert {aggregate for _, _, aggregate in found} == {"avg", "worst"}
    for split in plain(data).splits:
        losses, kids = expected_losses(split, parts, common), expected_kids(split, parts, common, 0)
        assert found[split.name, "loss", "avg"].per_client == pytest.approx(losses, rel=1e-5)
        assert found[split.name, "kid", "avg"].per_client == pytest.approx(kids, rel=1e-5)
    untrained = by_place(tmp_path, -1)  # when all still have one model
    assert list(untrained.values()) == of_server(Placed(), data, -1)


@pytest.mark.slow
def test_training_does_not_notice(trained, tmp_path):
    alone, (_, watched, _, trainer) = Averaged(), trained(Averaged)
    fit(tmp_path, alone, federation(), [])
    assert same(weights(alone), weights(watched))
    assert len(trainer.strategy.personal_tensors) == 6


def test_a_grid_shows_the_clients_images_in_turn(tmp_path):
    module, data = Placed(), federation()
    trainer = fit(tmp_path, module, data, [])
    models, personal = OwnModels(plain(data, num_images=6)), trainer.strategy.personal_tensors
    found = models.evaluate(module, sampler_of(module), personal, models.check(module, personal), 1)
    assert len(found.images) == 6  # of the 2 scored clients 3 each
    points = [module.place.common + own_parts(trainer)[name] for name in plain(data).splits[0].client_names]
    assert torch.allclose(found.images, torch.stack(points * 3), atol=0.5)


@pytest.mark.slow
def test_monitors_find_the_columns_that_are_there(tmp_path):
    best = ModelCheckpoint(tmp_path / "best", monitor="kid_avg", filename="{epoch}")
    unseen = ModelCheckpoint(tmp_path / "unseen", monitor="unpart/kid_all")
    kept = fit(tmp_path, Placed(), federation(), [judge(every_n_rounds=1), best, unseen])
    assert "unpart/kid_all" in kept.callback_metrics
    values = [by_place(tmp_path, round)["part_train", "kid", "avg"].value for round in (0, 1)]
    assert float(best.best_model_score) == pytest.approx(min(values), rel=1e-5)
    module = Placed()
    before = weights(module)
    with pytest.raises(ValueError, match="kid_worst"):
        fit(tmp_path / "all", module, federation(), [judge(), ModelCheckpoint(tmp_path / "all", monitor="kid_all")])
    assert same(before, weights(module))


def test_what_only_training_shows_ends_the_first_evaluation(tmp_path):
    module = Gated()
    watching = [judge(), ModelCheckpoint(tmp_path, monitor="kid_all")]
    with pytest.raises(ValueError, match="kid_all"):
        fit(tmp_path, module, federation(), watching, 4)
    assert module.gate.item() == pytest.approx(0.2)  # of two rounds


@pytest.mark.slow
def test_scores_that_need_one_model_are_refused_before_training_and_before_scoring_a_checkpoint(trained, tmp_path):
    module, (folder, _, data, _) = Placed(), trained(Placed)
    before = weights(module)
    message = "memorisation needs one model's images beside two sets of each client's, and where clients keep"
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, module, data, [judge(scores=["memorisation"])])
    assert same(before, weights(module))
    scored = Run(folder).scores_path.read_bytes()
    with pytest.raises(ValueError, match=message):
        evaluate_run(folder, Placed(), plain(data, scores=["memorisation"]))
    assert Run(folder).scores_path.read_bytes() == scored
    fit(tmp_path / "critic", Criticised(), data, [judge(scores=["memorisation", "loss"])])
    assert ("part_train", "memorisation", "all") in by_place(tmp_path / "critic")


def test_it_must_be_known_which_clients_tensors_are_of(tmp_path):
    data = federation()
    fit(tmp_path, Placed(), data, [RoundCheckpoint()])
    with pytest.raises(ValueError, match="evaluate"):
        evaluate_run(tmp_path, Placed(), Evaluator(plain(data).splits, ["identity"], 40, ["kid"]))
    with pytest.raises(ValueError, match="knows"):
        evaluate_run(tmp_path, Placed(), plain(federation(4)))


class Elsewhere(FederatedEvaluation):
    """As in a job of several processes, each of which has some clients."""

    def _remote_tensors(self, trainer):
        return "are on 2 processes: pass Trainer(devices=1, num_nodes=1), share them"


@pytest.mark.slow
def test_own_models_in_other_processes_are_refused_before_training_unless_no_score_needs_them(tmp_path):
    options = {"every_n_rounds": 2, "embeddings": ["identity"], "num_images": 40, "seed": 3}
    options |= {"report": False, "page": False}
    for kind, scores in ((Placed, ["kid"]), (Criticised, ["loss"])):
        module = kind()
        before = weights(module)
        with pytest.raises(MisconfigurationException, match="processes"):
            fit(tmp_path, module, federation(), [Elsewhere(scores=scores, **options)])
        assert same(before, weights(module))
    fit(tmp_path, Criticised(), federation(), [Elsewhere(scores=["kid"], **options)])
    assert ("part_train", "kid", "all") in by_place(tmp_path)
    with pytest.raises(MisconfigurationException, match="processes"):
        fit(tmp_path / "gated", Gated(), federation(), [Elsewhere(scores=["kid"], **options)])
