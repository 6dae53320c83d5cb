"""Checkpoints against images of one class."""

import json

import pytest
import torch

from fedgen.embeddings import load_embedding
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.rankings import ScoredRows
from fedgen.experiments.engine.scored_checkpoints import Scorers, Trained
from fedgen.experiments.engine.study import ScoredArmsChoice
from fedgen.experiments.engine.trainings import Series, runs_of
from fedgen.experiments.ranking.trained_checkpoints import (
    REAL,
    class_images,
    compare_groups,
    disagreements,
    expected,
    pair_table,
    perfect_generator,
)
from tests.experiments.tiny_runs import untrained, write_recipe

CLASS = "images of airplane"


def scored(fids, error=0.1):
    """Generators by (FID-avg, FID-all); KID with a gap of 1; a control in which nothing is inverted."""
    errors = {"errors": {"avg": error, "all": error}}
    return ScoredRows(
        {
            name: {
                "clients": {
                    "fid": {"avg": avg, "all": everyone, **errors},
                    **{kernel: {"avg": 2 + everyone, "all": 1 + everyone, **errors} for kernel in ("kid", "kid-rbf")},
                },
                "controls": [{"fid": {"avg": everyone, "all": everyone, **errors}}],
            }
            for name, (avg, everyone) in fids.items()
        }
    )


def found_in(fids, checkpoints, error=0.1):
    rows = scored({**fids, REAL: (1.0, 0.5)}, error)
    found = compare_groups(rows, checkpoints)
    return rows.clients, found, disagreements(rows.clients, found["fid"], checkpoints)


def test_the_papers_pair_is_found_and_goes_the_papers_way():
    fids = {"bad": (200, 150), "DDPM": (126.05, 63.99), "other": (140, 70), CLASS: (119.06, 72.13)}
    _, found, pair = found_in(fids, 3)
    assert (pair["checkpoint"], pair["class"], pair["way"], pair["clear"]) == ("DDPM", CLASS, "paper", True)
    assert pair["paper"] == {"pairs": 2, "beyond error": 2}
    assert pair["other"] == {"pairs": 0, "beyond error": 0}
    assert found["fid"]["pairs"] == 3
    assert [line.split(":")[0] for line in expected(found, pair)] == ["as expected"] * 2


def test_a_pair_beyond_errors_goes_before_one_that_is_not():
    # the second checkpoint disagrees with the class the paper's way within errors, the first the other way beyond them
    _, found, pair = found_in({"early": (5, 9), "late": (6.1, 6.9), CLASS: (6, 7)}, 2)
    assert (pair["checkpoint"], pair["way"], pair["clear"]) == ("early", "other", True)
    assert pair["paper"] == {"pairs": 1, "beyond error": 0}
    assert expected(found, pair)[1].startswith("not seen: as in the paper")


def test_without_disagreement_the_last_checkpoint_is_shown():
    _, found, pair = found_in({"early": (9, 9), "late": (5, 5), CLASS: (6, 6), "images of ship": (5.5, 7)}, 2)
    assert (pair["checkpoint"], pair["class"], pair["way"]) == ("late", "images of ship", "")
    assert expected(found, pair)[0].startswith("not seen: FID-avg and FID-all disagree")


def test_pairs_of_two_checkpoints_do_not_count():
    _, found, pair = found_in({"early": (5, 9), "late": (6, 8), CLASS: (20, 20)}, 2)
    assert found["fid"]["inverted"] == []
    assert pair["way"] == ""


def test_the_table_says_which_of_the_pair_each_score_prefers():
    rows, _, pair = found_in({"DDPM": (126.05, 63.99), CLASS: (119.06, 72.13)}, 1)
    table = pair_table(rows, pair)
    assert list(table.columns[0].cells)[:2] == ["FID all", "FID avg"]
    assert list(table.columns[3].cells)[:4] == ["A", "B", "A", "A"]
    assert table.caption.endswith("as many: a perfect generator's score")


def test_real_images_that_clients_train_on_are_no_perfect_generators_score():
    rows, _, pair = found_in({"DDPM": (126.05, 63.99), CLASS: (119.06, 72.13)}, 1)
    caption = pair_table(rows, pair, overlap=True).caption
    assert caption.endswith("as many: some of those that clients train on, below what new images score")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    choice = ScoredArmsChoice(seeds=1, runs=folder / "runs", recipes=write_recipe(folder / "recipes"))
    found = runs_of(Series("WGAN-GP", "quickstart.yaml", (2,)), 0.5, choice)
    for run in found:
        untrained(run.training)
    return found


@pytest.mark.parametrize("overlap", [False, True])
def test_class_images_are_of_one_class_as_many_each_and_disjoint_unless_asked(runs, overlap):
    trained = Trained(runs, load_embedding("pixels"))
    stored, images = class_images(trained, overlap)
    labels = trained.source.examples.labels
    assert len(stored) == 11
    assert {len(positions) for positions in stored.values()} == {images}
    shared = [
        set(stored[f"images of {client.name}"].tolist()) & set(client.train.tolist()) for client in trained.data.clients
    ]
    assert {len(one) for one in shared} == {images if overlap else 0}
    assert all(len(labels[positions].unique()) == 1 for name, positions in stored.items() if name != REAL)
    assert len(labels[stored[REAL]].unique()) == 10


@pytest.mark.slow
def test_a_kind_may_be_left_out_another_is_refused_and_a_lost_picture_comes_back(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainings.Training, "run", untrained)
    recipes = write_recipe(tmp_path / "r")  # without a DDPM's
    options = {"embedding": "pixels", "intervals": (2,), "seeds": 1, "dealings": 0, "recipes": recipes}
    perfect_generator(output=tmp_path / "out", kinds=("wgan-gp",), **options)
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert list(numbers["pairs"]) == ["WGAN-GP"]
    assert all(one["sampling"] == {} for one in numbers["checkpoints"].values())
    with pytest.raises(ValueError, match="kinds"):
        perfect_generator(output=tmp_path / "other", kinds=("gan",), **options)
    write_recipe(recipes, "ddpm_digits.yaml")
    with pytest.raises(ValueError, match="settings"):
        perfect_generator(output=tmp_path / "out", **options)
    (recipes / "ddpm_digits.yaml").unlink()
    (tmp_path / "out" / "wgan-gp-checkpoint.png").rename(tmp_path / "before.png")
    monkeypatch.setattr(trainings.Training, "run", lambda training: training.folder)
    monkeypatch.setattr(Scorers, "score", None)  # nothing is scored again
    perfect_generator(output=tmp_path / "out", kinds=("wgan-gp",), **options)
    assert (tmp_path / "out" / "wgan-gp-checkpoint.png").read_bytes() == (tmp_path / "before.png").read_bytes()


def test_a_client_of_several_classes_is_named(runs):
    trained = Trained(runs, load_embedding("pixels"))
    first, second = trained.data.clients[:2]
    object.__setattr__(first, "train", torch.cat([first.train, second.train]))
    with pytest.raises(ValueError, match="several"):
        class_images(trained, False)
