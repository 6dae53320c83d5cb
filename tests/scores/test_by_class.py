"""Scores of one class: those of its images alone, against the clients that hold it."""

import pytest
import torch

from fedgen.evaluation import Evaluator, evaluate, sampler_of
from fedgen.evaluation.score_choice import choose
from fedgen.scores import ClientSide, FrechetReference, GeneratedSet, KernelReference
from fedgen.scores.frechet.corrected import FewImagesError
from tests.evaluation.conditional import TRAINED, Conditional


def draw(count, seed):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


PARTS = [draw(n, seed=n) for n in (20, 30, 25)]
LABELS = [torch.arange(len(part)) % 2 for part in PARTS[:2]] + [torch.zeros(25, dtype=torch.int64)]
SIDE = ClientSide(PARTS, "examples", labels=LABELS, num_classes=2, classes=("cat", "dog"))
GENERATED, ASKED = draw(40, seed=7), torch.arange(40) % 2
SCORE = {"name": "fid", "of_class": "b"}  # of the data of evaluations
HELD = [part[own == 1] for part, own in zip(PARTS[:2], LABELS)]  # dogs, of which the last client has none


def score_of(score, side=SIDE, asked=ASKED, errors=True):
    fitted = choose(score).definition.fit(side)
    return fitted.score(GeneratedSet(GENERATED, labels=asked), errors)["of_class"]


@pytest.mark.parametrize(("name", "reference"), [("fid", FrechetReference), ("kid", KernelReference)])
def test_it_is_the_score_of_the_classs_images_against_those_who_hold_it(name, reference):
    found, expected = score_of({"name": name, "of_class": "dog"}), reference.from_features(HELD).score(GENERATED[1::2])
    for aggregate in ("avg", "all"):
        assert found.values[aggregate] == expected.values[aggregate]
        assert found.errors[aggregate] == expected.errors[aggregate]
    assert found.values.keys() == {"avg", "all"}
    assert len(found.per_client) == 0  # whose places would not be those of all clients
    assert "20 images of class dog, which 2 of 3 clients hold" in found.notes


def test_given_weights_are_those_of_the_clients_that_hold_the_class():
    side = ClientSide(PARTS, [1, 3, 4], labels=LABELS, num_classes=2, classes=("cat", "dog"))
    expected = FrechetReference.from_features(HELD, [1, 3]).score(GENERATED[1::2])
    found = score_of({"name": "fid", "of_class": "dog"}, side)
    assert found.values["avg"] == pytest.approx(expected.values["avg"], rel=1e-12)
    assert found.values["all"] == pytest.approx(expected.values["all"], rel=1e-12)


def test_what_cannot_be_scored_says_why():
    with pytest.raises(ValueError, match="cat, dog"):
        score_of({"name": "fid", "of_class": "cow"})
    with pytest.raises(ValueError, match="1 of 40 images are of class 'dog'"):
        score_of({"name": "fid", "of_class": "dog"}, asked=torch.arange(40) == 3)
    with pytest.raises(ValueError, match="utility is none"):
        choose({"name": "utility", "of_class": "dog"})


def test_a_client_with_too_few_images_of_the_class_is_the_one_that_is_named():
    labels = [torch.zeros(20, dtype=torch.int64), LABELS[1][:8]]  # the first has no dog, the second four
    side = ClientSide([PARTS[0], PARTS[1][:8]], "examples", labels=labels, num_classes=2, classes=("cat", "dog"))
    with pytest.raises(FewImagesError) as raised:
        score_of({"name": "fidc", "of_class": "dog"}, side)
    assert "second has 4 images" in str(raised.value.of_client(["first", "second"]))


def test_an_evaluation_asks_a_model_for_its_classes_and_names_a_column_by_the_class():
    evaluator, sample = Evaluator({"train": TRAINED}, ["pixels"], 60, ["fid", SCORE]), sampler_of(Conditional())
    records = {record.name: record for record in evaluator.evaluate(sample, 3).records}
    assert {"fid_all", "fid_of_b_avg", "fid_of_b_all"} <= records.keys()
    assert records["fid_of_b_all"].score_settings == {"of_class": "b"}
    assert records["fid_of_b_all"].per_client == []
    ((rows, asked),) = next(evaluator.embed_generated(sample, 3)).features.values()
    own = [evaluator.embeddings[0](one.inputs[one.labels == 1]) for one in TRAINED]
    expected = FrechetReference.from_features(own).score(rows[asked == 1])
    assert records["fid_of_b_all"].value == pytest.approx(expected.values["all"], rel=1e-9)
    floor = {record.name for record in evaluator.floor()}
    assert not floor or "fid_of_b_all" in floor


def test_a_model_without_classes_is_refused_before_training():
    with pytest.raises(ValueError, match="needs images of given classes"):
        evaluate(
            Conditional(num_classes=None), {"train": TRAINED}, embeddings=["pixels"], num_images=20, scores=[SCORE]
        )
