"""Truncated generators over clients around their own centres: a linear network's closed form, a tiny StyleGAN2."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedgen.embeddings import load_embedding
from fedgen.experiments.engine.rankings import RankingStudy, ScoredRows
from fedgen.experiments.engine.scored_checkpoints import Scorers, title_of
from fedgen.experiments.ranking import truncation as experiment
from fedgen.experiments.ranking.truncation import StyleFederation, TruncatedStyles, TruncationChoice, read_styles
from fedgen.models.stylegan2.network_file import NetworkFile
from tests.experiments.ranking.tiny_network import network
from tests.experiments.tiny_runs import draw_unwritten

FILE = Path("tiny.safetensors")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def numbers_of(folder="out"):
    return json.loads((Path(folder) / "results.json").read_text())["numbers"]


class LinearNetwork(nn.Module):
    """Points instead of images: styles are N(mean, I) and a point is its style."""

    latent_dim = num_styles = 2
    num_classes = None
    settings = {"image_size": 1, "channels": 2}  # noqa: RUF012
    synthesis = SimpleNamespace(noise_dim=16)

    def __init__(self):
        super().__init__()
        self.mapping = nn.Module()
        self.mapping.register_buffer("w_avg", torch.tensor([0.5, -0.2]))

    def styles(self, latents):
        return (latents + self.mapping.w_avg)[:, None].expand(-1, self.num_styles, -1)

    def synthesize(self, styles, noise):
        return styles[:, 0]


@pytest.mark.slow
def test_a_linear_network_gives_the_u_of_the_closed_form():
    taus = (0.05, 0.25, 0.5, 0.8, 1.0)
    choice = TruncationChoice(
        taus=taus, num_images=1500, clients=40, client_images=40, components=2, controls=1, embedding="identity"
    )
    styles = TruncatedStyles(LinearNetwork())
    places = StyleFederation(styles, load_embedding("identity"), choice, Path("features"))
    scorers = Scorers(places.federation(), 1, 0, projection=places.projection())
    rows = ScoredRows({f"{tau:g}": scorers.score(places.generated(tau)) for tau in taus})
    centres = torch.stack(places.centres).double() - styles.mean
    means, own = 0.75 * centres, 0.25
    pooled = means.T.cov(correction=0) + own**2 * torch.eye(2)
    root = torch.linalg.eigvalsh(pooled).sqrt().sum()
    for tau in taus:
        avg = means.square().sum(1).mean() + 2 * (own - tau) ** 2
        everyone = means.mean(0).square().sum() + pooled.trace() + 2 * tau**2 - 2 * tau * root
        found = rows.clients[f"{tau:g}"]["fid"]
        assert found["avg"] == pytest.approx(float(avg), rel=0.05)
        assert found["all"] == pytest.approx(float(everyone), rel=0.1, abs=0.04)
    found = experiment.summarise(rows, taus)
    ranking = RankingStudy(rows, {score: title_of(score) for score in rows.scores})
    least = {how: found["valleys"]["fid"][how]["least at"] for how in ("avg", "all")}
    assert least == {"avg": 0.25, "all": 0.8}
    assert choice.pooled_truncation == pytest.approx(0.7906, abs=1e-4)
    assert found["valleys"]["kid"]["all"]["least at"] == found["valleys"]["kid"]["avg"]["least at"] == 0.8
    assert all(line.startswith("as expected") for line in experiment.expected(found, ranking, choice))
    floor = scorers.score(places.floor())["clients"]["fid"]
    assert floor["all"] < 0.04 < rows.clients["0.25"]["fid"]["all"]
    assert floor["avg"] > rows.clients["0.25"]["fid"]["avg"]  # avg prefers the mode-dropping one to the clients' own


def test_an_outcome_that_does_not_appear_is_reported_as_such():
    low = {"least at": 0.1, "place": 0, "least": 1.0, "left": [0.0, 0.1], "right": [2.0, 0.1], "inside": False}
    valleys = {"avg": low, "all": low}
    lines = experiment.valley_lines("FID", valleys, [valleys], TruncationChoice())
    assert [line.split(":")[0] for line in lines] == ["not seen", "as expected", "not seen", "not seen"]


def test_truncation_to_the_mean_is_the_networks_own():
    made = network()
    styles = TruncatedStyles(made)
    latents = styles.latents(5, torch.Generator().manual_seed(1))
    ours = styles.make(styles.mean, 0.4, latents, torch.Generator().manual_seed(2))
    noise = torch.randn(5, made.synthesis.noise_dim, generator=torch.Generator().manual_seed(2))
    theirs = made(latents, truncation=0.4, noise=noise)
    assert ours.dtype == torch.uint8
    assert torch.equal(ours, (theirs * 127.5 + 128).clamp(0, 255).floor().to(torch.uint8))


def test_images_lie_around_their_centre_and_noise_is_each_images_own():
    styles = TruncatedStyles(network())
    first, second = (styles.centre(0, client) for client in (0, 1))
    assert not torch.allclose(first, second)
    assert torch.equal(first, styles.centre(0, 0))
    latents, draws = styles.latents(40, torch.Generator().manual_seed(1)), torch.Generator()
    alone = styles.make(first, 0.0, latents, draws.manual_seed(0)).double()
    assert alone.std(dim=0).max() > 0  # one style, and noise besides
    near, far = (styles.make(first, pull, latents, draws.manual_seed(0)).double() for pull in (0.25, 1.0))
    assert (near - alone).abs().mean() < (far - alone).abs().mean()
    batches = list(styles.batches(first, 0.25, 100, 0, "a"))
    assert [len(batch) for batch in batches] == [64, 36]
    assert torch.equal(torch.cat(batches), torch.cat(list(styles.batches(first, 0.25, 100, 0, "a"))))
    assert not torch.equal(batches[0], next(styles.batches(first, 0.25, 100, 0, "b")))


def test_a_mean_that_the_file_lacks_is_estimated():
    made = network(mean=False)
    assert not made.mapping.w_avg.any()
    styles = TruncatedStyles(made)
    assert styles.mean_estimated
    fresh = styles.styles(torch.randn(10_000, 8))
    assert torch.allclose(styles.mean, fresh.mean(dim=0), atol=6 * float(fresh.std()) / 100)
    assert not TruncatedStyles(network()).mean_estimated


def test_features_are_computed_once_and_kept_by_network_and_draws(monkeypatch):
    choice = TruncationChoice(num_images=20, clients=3, client_images=4, components=2, embedding="pixels")
    styles, pixels = TruncatedStyles(network()), load_embedding("pixels")

    def places(**changes):
        return StyleFederation(styles, pixels, replace(choice, **changes), Path("features"))

    first = places()
    federation, floor = first.federation(), first.floor()
    assert federation.counts == (4, 4, 4)
    assert federation.names[2] == "client 2"
    assert len(floor) == 21  # seven of each, at least as many as a generator's
    assert not any((floor == row).all(1).any() for row in federation.features)
    kept = first.generated(0.5)
    made = []
    whole = TruncatedStyles.batches
    monkeypatch.setattr(TruncatedStyles, "batches", lambda self, *args: made.append(args) or whole(self, *args))
    again = places()
    assert torch.equal(again.federation().features, federation.features)
    assert torch.equal(again.generated(0.5), kept)
    assert made == []
    assert not torch.equal(places(seed=1).generated(0.5), kept)
    assert len(made) == 1


RUN = {"network": FILE, "embedding": "pixels", "output": Path("out"), "quick": True}


@pytest.mark.slow
def test_another_network_in_the_same_file_is_refused_and_a_stopped_run_goes_on(monkeypatch, capsys):
    draw_unwritten(monkeypatch)
    NetworkFile(generator=network(mean=False)).write(FILE)
    whole, known = Scorers.score, []

    def stopped(self, features):
        if len(known) == 3:
            raise KeyboardInterrupt
        known.append(len(features))
        return whole(self, features)

    monkeypatch.setattr(Scorers, "score", stopped)
    with pytest.raises(KeyboardInterrupt):
        experiment.truncation(**RUN)
    assert len(numbers_of()["scores"]) == 2  # and the real floor
    monkeypatch.setattr(Scorers, "score", whole)
    NetworkFile(generator=network(seed=1)).write(FILE)
    with pytest.raises(ValueError, match=r"holds results of other settings(.|\n)*network: "):
        experiment.truncation(**RUN)
    NetworkFile(generator=network(mean=False)).write(FILE)
    experiment.truncation(**RUN)
    assert len(numbers_of()["scores"]) == 7
    assert "the file keeps no mean of styles: tau pulls to that of 10,000 styles" in capsys.readouterr().out


def test_a_missing_network_says_how_to_make_one():
    with pytest.raises(FileNotFoundError, match="stylegan2_fashion_mnist"):
        experiment.truncation(output=Path("out"))
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"taus": (0.5, 0.1, 1.0)}, r"taus=\[0.5, 0.1, 1.0\]: give 3 or more numbers from 0, rising"),
        ({"clients": 1}, "clients=1: give at least 2"),
        ({"controls": 0}, "controls=0: give at least 1"),
        ({"components": 5000}, "components=5000: at least 1, of 5000 public images"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
    ],
)
def test_impossible_numbers_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        TruncationChoice(**changes)


def test_networks_that_cannot_be_truncated_are_refused():
    NetworkFile(generator=network(num_classes=3, mean=False)).write(FILE)
    with pytest.raises(ValueError, match="network"):
        read_styles(FILE, "cpu")
