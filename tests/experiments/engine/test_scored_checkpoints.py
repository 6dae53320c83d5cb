"""Checkpoints over the clients they were trained with."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedgen.embeddings import load_embedding
from fedgen.embeddings.base import ModuleEmbedding
from fedgen.evaluation.image_sampling import draw_images, sampler_of
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.experiments.engine.features import PCA, FeatureFederation
from fedgen.experiments.engine.rankings import ScoredRows
from fedgen.experiments.engine.scored_checkpoints import Scorers, Trained, checkpoints_of, title_of
from fedgen.experiments.engine.study import ScoredArmsChoice
from fedgen.experiments.engine.trainings import Series, runs_of
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.federation_state import CHECKPOINT_KEY, CHECKPOINT_VERSION
from fedgen.images import to_uint8
from fedgen.scores import FrechetReference, mmd2
from fedgen.statistics import Projection
from tests.experiments.tiny_runs import untrained, write_recipe

SERIES = Series("WGAN-GP", "quickstart.yaml", (2,))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    choice = ScoredArmsChoice(seeds=2, runs=folder / "runs", recipes=write_recipe(folder / "recipes"))
    found = runs_of(SERIES, 0.5, choice)
    for run in found:
        untrained(run.training)
    return found


@pytest.fixture
def trained(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the features' cache
    return Trained(runs, load_embedding("pixels"))


def test_checkpoints_have_names_with_rounds_from_one(runs):
    found = checkpoints_of(runs)
    assert list(found)[:2] == ["WGAN-GP, interval 2, seed 0, round 2", "WGAN-GP, interval 2, seed 0, round 4"]
    assert len(found) == 4
    last = found["WGAN-GP, interval 2, seed 1, round 4"]
    assert (last.round, last.described()["iterations"]) == (3, 8)


def test_a_run_without_checkpoints_is_named(runs, tmp_path):
    empty = replace(runs[0], training=replace(runs[0].training, folder=tmp_path))
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        checkpoints_of([empty])


def test_the_federation_is_what_each_client_trains_on(trained):
    federation = trained.federation()
    labels = trained.source.examples.labels
    for number, (client, positions) in enumerate(zip(trained.data.clients, federation.positions)):
        assert torch.equal(positions, client.train)
        assert (labels[positions] == number).all()
        assert not set(positions.tolist()) & set(client.held_out.tolist())


@pytest.mark.slow
def test_at_most_so_many_images_of_a_client_are_taken(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = Trained(runs, load_embedding("pixels"), client_images=11)
    assert few.federation().counts == (11,) * 10
    whole = Trained(runs, load_embedding("pixels")).federation()
    assert all(set(a.tolist()) <= set(b.tolist()) for a, b in zip(few.federation().positions, whole.positions))


def test_images_are_those_that_an_evaluation_draws_from_the_checkpoint(trained, runs):
    first, second = list(checkpoints_of(runs).values())[:2]
    images = trained.images(first, 7)
    model, _ = rebuild(first.run.folder)
    model.load_state_dict(torch.load(first.path, weights_only=True)["state_dict"])
    assert torch.equal(images, draw_images(sampler_of(model), 7, 0, first.round))
    assert not torch.equal(images, trained.images(second, 7))
    assert torch.equal(trained.images(first, 9)[:7], images)


@pytest.mark.filterwarnings("ignore:the model's samples")  # of one grey level each, none below 0
def test_of_training_without_exchange_the_clients_own_models_are_mixed(trained, runs):
    first = next(iter(checkpoints_of(runs).values()))
    saved = torch.load(first.path, weights_only=True)
    model, _ = rebuild(first.run.folder)
    names = Exchange(model, model.parameters(), ["*"]).personal  # nothing is shared, running statistics neither
    own = {}  # client k's images are grey of one level, tanh(k / 10)
    for client in range(10):
        own[client] = {name: torch.zeros_like(saved["state_dict"][name]) for name in names}
        own[client]["generator.body.6.bias"] += client / 10
    path = first.path.parent / "mixture" / first.path.name
    path.parent.mkdir()
    kept = {"iterations": {}, "left_out": [], "local": {"clients": {}}, "server_optimizer": {}, "algorithm": {}}
    torch.save({**saved, CHECKPOINT_KEY: {"version": CHECKPOINT_VERSION, "personal": own, **kept}}, path)
    drawn = trained.images(replace(first, path=path), 500).flatten(1)
    levels, counts = drawn[:, 0].unique(return_counts=True)
    assert levels.tolist() == to_uint8((torch.arange(10) / 10).tanh().view(10, 1, 1, 1)).flatten().tolist()
    assert (drawn == drawn[:, :1]).all()
    sizes = torch.tensor([len(client.train) for client in trained.data.clients])
    assert (counts - 500 * sizes / sizes.sum()).abs().max() <= 1
    plain = trained.images(first, 500)
    assert len(plain[:, 0, 0, 0].unique()) > 10  # the client's own are gone from the model


def test_runs_whose_clients_keep_what_images_hang_on_are_refused_and_others_are_not(trained, runs):
    first = next(iter(checkpoints_of(runs).values()))
    saved = torch.load(first.path, weights_only=True)
    path = first.path.parent / "personal" / first.path.name
    path.parent.mkdir()
    kept = {"iterations": {}, "left_out": [], "local": {"clients": {}}, "server_optimizer": {}, "algorithm": {}}
    for network in ("critic", "generator"):
        own = {n: t + 1.0 for n, t in saved["state_dict"].items() if n.startswith(f"{network}.") and n.endswith("bias")}
        state = {"version": CHECKPOINT_VERSION, "personal": {0: own}, **kept}
        torch.save({**saved, CHECKPOINT_KEY: state}, path)
        if network == "critic":
            assert torch.equal(trained.images(replace(first, path=path), 7), trained.images(first, 7))
        else:
            with pytest.raises(ValueError, match="generator"):
                trained.images(replace(first, path=path), 7)
    assert len(trained.images(first, 7)) == 7


def test_the_same_runs_are_scored_in_another_embedding_and_over_held_out_images(trained):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).requires_grad_(False)
    other = trained.with_embedding(ModuleEmbedding(network))
    assert other.source.features.shape == (1797, 3)
    assert trained.source.features.shape == (1797, 64)
    held_out = other.federation("held_out")
    for client, positions in zip(trained.data.clients, held_out.positions):
        assert torch.equal(positions, client.held_out)


def test_settings_of_sampling_are_told_of_models_that_have_some(trained, runs):
    first = next(iter(checkpoints_of(runs).values()))
    assert trained.described({"a": first})["a"]["sampling"] == {}
    trained._models[first.run.name].sampling = {"solver": "ddim", "steps": 5}
    assert trained.described({"a": first})["a"]["sampling"] == {"solver": "ddim", "steps": 5}
    del trained._models[first.run.name].sampling


@pytest.mark.slow
def test_runs_of_other_clients_are_refused(runs, tmp_path):
    choice = ScoredArmsChoice(seeds=1, seed=9, runs=tmp_path / "runs", recipes=runs[0].training.recipe.parent)
    (other,) = runs_of(SERIES, 0.5, choice)
    untrained(other.training)
    with pytest.raises(ValueError, match="had other clients than"):
        Trained([*runs, other], load_embedding("pixels"))


def test_scores_are_those_of_the_library_over_clients_and_iid_splits():
    draws = torch.Generator().manual_seed(0)
    features, generated = torch.randn(60, 4, generator=draws), torch.randn(30, 4, generator=draws) + 0.5
    federation = FeatureFederation(features, (torch.arange(20), torch.arange(20, 60)), ("a", "b"))
    projection = Projection.fit(torch.randn(50, 4, generator=draws), 2)
    found = Scorers(federation, 2, seed=3, projection=projection).score(generated)
    parts = federation.parts()
    direct = FrechetReference.from_features(parts).score(generated)
    assert found["clients"]["fid"]["avg"] == pytest.approx(direct.values["avg"], rel=1e-12)
    assert found["clients"]["kid"]["all"] == pytest.approx(mmd2(features, generated), rel=1e-9)
    small = FrechetReference.from_features([projection.project(part) for part in parts])
    expected = small.score(projection.project(generated)).values["all"]
    assert found["clients"][PCA]["all"] == pytest.approx(expected, rel=1e-12)
    control = FrechetReference.from_features(federation.iid(3, 1).parts()).score(generated)
    assert found["controls"][1]["fid"]["avg"] == pytest.approx(control.values["avg"], rel=1e-12)
    rows = ScoredRows({"g": found})
    assert [len(rows.controls(score)) for score in rows.scores] == [2, 0, 2]
    assert [title_of(score) for score in rows.scores] == ["FID", "KID", "FID, PCA-64"]


def test_digits_have_no_public_images_for_components(trained):
    assert trained.projection(64) is None
