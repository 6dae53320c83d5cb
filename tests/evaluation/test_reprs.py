"""What is printed of objects is one line with sizes, without tensors and addresses; notebooks show score tables."""

import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID, SavedPartition
from fedgen.data import GaussianMixture
from fedgen.evaluation import Evaluator, Run, append_records
from fedgen.evaluation.reference import Reference
from fedgen.evaluation.splits import Split
from fedgen.scores import (
    FrechetReference,
    KernelReference,
    LikelihoodReference,
    ManifoldReference,
    SlicedReference,
    UtilityReference,
    WassersteinReference,
)
from tests.evaluation.samples import CLIENTS, grey_noise

FEATURES = [torch.randn(12, 3, generator=torch.Generator().manual_seed(k)) for k in range(2)]
REFERENCES = [FrechetReference, KernelReference, ManifoldReference, WassersteinReference, SlicedReference]


@pytest.fixture(scope="module")
def evaluator():
    return Evaluator([Split.of_clients("train", CLIENTS)], ["pixels"], 20, ["fid", "kid"])


@pytest.mark.parametrize("kind", REFERENCES, ids=lambda kind: kind.__name__)
def test_references_say_how_many_clients_and_examples_they_hold(kind):
    assert repr(kind.from_features(FEATURES)) == f"{kind.__name__}(2 clients, 24 examples)"


def test_references_of_points_and_images_do_too():
    assert repr(LikelihoodReference.from_points(FEATURES)) == "LikelihoodReference(2 clients, 24 examples)"
    images, labels = [torch.zeros(4, 1, 8, 8, dtype=torch.uint8)], [torch.tensor([0, 1, 0, 1])]
    assert repr(UtilityReference(images, labels, 2)) == "UtilityReference(1 client, 4 examples)"
    assert repr(Reference(FEATURES, ["fid", "kid"])) == "Reference(2 clients, fid, kid)"


def test_scores_and_evaluations_show_their_values(evaluator):
    score = FrechetReference.from_features(FEATURES).score(FEATURES[0], errors=False)
    assert repr(score).startswith("FederatedScore(fid over 2 clients: avg ")
    found = evaluator.evaluate(grey_noise)
    assert repr(found).startswith("Evaluation(20 images: fid_avg ")
    assert repr(found).endswith("... (6 in all))")
    assert "\n" not in repr(found)


def test_evaluators_and_splits_show_sizes(evaluator):
    assert repr(evaluator) == ("Evaluator(noise/train, 3 clients, 100 images: fid, kid in pixels, 20 generated images)")
    assert repr(evaluator.splits[0]) == "Split('train', 3 clients, 100 images of noise/train)"


def test_clients_and_partitions_are_one_line_each(tmp_path):
    data = FederatedDataModule(GaussianMixture(20), IID(2))
    for client in data.clients:
        assert "tensor" not in repr(client)
        assert len(repr(client)) < 80
    assert repr(SavedPartition("clients.npz")) == "SavedPartition(path='clients.npz')"


def test_notebooks_show_runs_and_evaluations_as_tables(evaluator, tmp_path):
    found = evaluator.evaluate(grey_noise)
    assert Run(tmp_path)._repr_html_() == f"Run(&#x27;{tmp_path}&#x27;)"
    append_records(tmp_path / "scores.jsonl", found.records)
    for shown in (found._repr_html_(), Run(tmp_path)._repr_html_()):
        assert shown.startswith("<pre")
        assert "fid_avg" in shown
        assert "noise/train" in shown
    assert repr(Run(tmp_path)) == f"Run('{tmp_path}')"
