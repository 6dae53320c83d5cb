"""Utility through the whole evaluation: which images, which labels, which errors."""

import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Digits
from fedgen.evaluation import Evaluator, draw_images, evaluate, sampler_of
from fedgen.evaluation.image_sampling import drawn_labels
from fedgen.evaluation.splits import Split, StandIn
from tests.evaluation.conditional import CLIENTS, HELD_OUT, TRAINED, Conditional
from tests.evaluation.samples import CLIENTS as UNLABELLED
from tests.evaluation.samples import grey_noise

UTILITY = {"name": "utility", "epochs": 3, "batch_size": 16}
OPTIONS = {"embeddings": ["pixels"], "num_images": 120, "seed": 3, "chunk": 50}


def values(records):
    return {(record.split, record.name): record.value for record in records if not record.is_floor}


def test_a_model_that_draws_the_asked_classes_is_told_from_one_that_mixes_them_up():
    options = {**OPTIONS, "scores": [UTILITY]}
    good, bad = (values(evaluate(Conditional(wrong=wrong), CLIENTS, **options)) for wrong in (False, True))
    assert set(good) == {("report", f"utility_{how}") for how in ("avg", "all", "worst")}
    assert good["report", "utility_all"] > 0.95
    assert bad["report", "utility_all"] < 0.1  # the classes are learnt, under wrong names


def test_the_record_says_what_was_measured():
    records = evaluate(Conditional(), CLIENTS, round=4, **{**OPTIONS, "scores": ["fid", UTILITY]})
    first = next(record for record in records if record.score == "utility")
    assert (first.split, first.embedding, first.num_generated, first.round) == ("report", "own-classifier", 120, 4)
    assert first.higher_is_better
    assert first.score_settings == {"epochs": 3, "batch_size": 16}
    assert first.value == pytest.approx((40 * first.per_client[0] + 50 * first.per_client[1]) / 90)
    assert {record.embedding for record in records if record.score == "fid"} == {"pixels"}
    assert all(record.sampling == {"solver": "fast", "steps": 25} for record in records)


def test_columns_name_no_embedding_and_the_evaluation_knows_them_before():
    judge = Evaluator(CLIENTS, scores=["fid", UTILITY], **OPTIONS)
    utility = [name for name in judge.column_names() if "utility" in name]
    assert utility == [f"report/utility_{how}" for how in ("avg", "all", "worst")]
    assert judge.directions()["report/utility_all"]
    records = judge.evaluate(sampler_of(Conditional())).records
    assert sorted(judge.plan.columns.name(record) for record in records) == sorted(judge.column_names())


def test_the_floor_is_a_classifier_of_the_clients_own_training_images():
    judge = Evaluator(CLIENTS, scores=[UTILITY], **OPTIONS)
    assert judge.floor() == []  # these splits bring none
    train, held_out = (Split.of_clients(name, CLIENTS[name]) for name in ("train", "report"))
    report = Split.of_clients("report", HELD_OUT, stand_ins={"floor": StandIn(train.images, train.labels)})
    floor = Evaluator([train, report], scores=[UTILITY], **OPTIONS).floor()
    assert {record.name for record in floor} == {f"utility_{how}" for how in ("avg", "all", "worst")}
    assert floor[0].num_generated == 120
    assert floor[1].value > 0.95
    assert held_out.labels is not None


def test_a_federation_splits_images_and_labels_alike():
    data = FederatedDataModule(Digits(), IID(3), held_out=0.3, seed=1)
    judge = Evaluator(data, scores=["fid", UTILITY], embeddings=["pixels"], num_images=50)
    for split, part in zip(judge.splits, ("train", "held_out")):
        assert split.classes == tuple("0123456789")
        assert torch.equal(split.labels, torch.cat([getattr(c, f"{part}_examples").labels for c in data.clients]))
    assert torch.equal(judge.splits[0].stand_ins["floor"].labels, judge.splits[1].labels)


def test_classes_are_asked_for_as_often_as_they_occur_and_from_each_chunks_generator():
    split = Split.of_clients("train", TRAINED)
    frequencies = split.label_frequencies
    model = Conditional()
    draws = {"seed": 0, "round": 1, "stream": "train", "chunk": 500, "frequencies": frequencies}
    images = draw_images(sampler_of(model), 2000, **draws)
    labels = drawn_labels(2000, **draws)
    assert len(model.asked) == 4
    shares = split.labels.bincount(minlength=3) / len(split.labels)
    assert (labels.bincount(minlength=3) / 2000).tolist() == pytest.approx(shares.tolist(), abs=0.04)
    again = draw_images(sampler_of(model), 700, **draws)
    same = drawn_labels(700, **draws)
    assert torch.equal(images[:700], again)
    assert torch.equal(labels[:700], same)


def test_a_model_without_classes_draws_what_it_drew_on_clients_without_labels():
    asked = []

    class Plain(Conditional):
        def sample(self, num_images, generator=None, labels=None):
            asked.append(labels)
            return torch.randn(num_images, 1, 6, 6, generator=generator) * 0.3

    judge = Evaluator(CLIENTS, **OPTIONS)
    images = judge.evaluate(sampler_of(Plain(num_classes=None)), 2).images
    assert set(asked) == {None}
    expected = draw_images(lambda n, g: torch.randn(n, 1, 6, 6, generator=g) * 0.3, 120, 3, 2, "train", chunk=50)
    assert torch.equal(images, expected)


def test_clients_without_labels_let_a_conditional_model_choose_its_classes():
    model = Conditional()
    sampler = sampler_of(model)
    unlabelled = {"train": [type(c)(c.inputs, c.labels * 0, c.name, ()) for c in TRAINED]}
    Evaluator(unlabelled, **OPTIONS).evaluate(sampler)
    assert set(model.asked) == {None}


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"train": TRAINED}, "there is no split 'report': let each client hold out at least two images"),
        ({"train": UNLABELLED, "report": UNLABELLED}, r"split 'train' \(noise/train\) have no labels"),
    ],
)
def test_missing_held_out_images_and_labels_are_errors_when_the_evaluator_is_made(clients, message):
    with pytest.raises(ValueError, match=message):
        Evaluator(clients, scores=["utility"], **OPTIONS)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (grey_noise, "this model is unconditional: use one with num_classes"),
        (sampler_of(Conditional(num_classes=None)), "this model is unconditional"),
        (sampler_of(Conditional(num_classes=2)), "needs a model of the data's 3 classes, and this one has 2"),
    ],
)
def test_a_model_that_cannot_be_asked_for_classes_is_refused_before_anything_is_drawn(sample, message):
    with pytest.raises(ValueError, match=message):
        Evaluator(CLIENTS, scores=["utility"], **OPTIONS).try_out(sample)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"epochs": 0}, "score utility: epochs must be a whole number of at least 1"),
        ({"batch_size": 1}, "batch_size must be a whole number of at least 2"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number"),
        ({"depth": 3}, "score utility has no option 'depth'; its options: epochs, seed, batch_size, learning_rate"),
    ],
)
def test_options_are_checked(option, message):
    with pytest.raises(ValueError, match=message):
        Evaluator(CLIENTS, scores=[{"name": "utility", **option}], **OPTIONS)
