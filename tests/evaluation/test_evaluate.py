"""The whole path from a sampler to records: the identities that must hold through it."""

import math

import pytest
import torch
from torch import nn

from fedgen.embeddings import FeatureCache, ModuleEmbedding, Pixels, embed
from fedgen.evaluation import Evaluator, Split, by_column, draw_images, evaluate
from fedgen.scores import FrechetReference, KernelReference
from tests.evaluation.samples import CLIENTS, dark_noise, grey_noise, pictures


def values(records):
    return {name: group[0].value for name, group in by_column(records).items()}


def evaluator(**options):
    defaults = {"embeddings": ["pixels"], "num_images": 80, "seed": 3, "chunk": 32}
    return Evaluator({"train": CLIENTS}, **{**defaults, **options})


def test_all_is_the_score_of_the_concatenated_features():
    found = values(evaluator().evaluate(grey_noise, round=4).records)
    images = draw_images(grey_noise, 80, 3, 4, "train", chunk=32)
    generated = embed(Pixels(), images)
    real = embed(Pixels(), torch.cat([client.inputs for client in CLIENTS]))
    for name, reference in (("fid_all", FrechetReference), ("kid_all", KernelReference)):
        alone = reference.from_features([real]).score(generated)
        assert found[name] == pytest.approx(alone.values["all"], rel=1e-10)


def test_kid_avg_minus_all_is_the_same_for_every_model():
    judge = evaluator()
    gaps = []
    for sample, round in ((grey_noise, 0), (dark_noise, 1)):
        found = values(judge.evaluate(sample, round).records)
        gaps.append(found["kid_avg"] - found["kid_all"])
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-9)
    assert values(judge.evaluate(grey_noise).records)["kid_avg"] != pytest.approx(found["kid_avg"], rel=0.1)


def test_avg_is_the_weighted_mean_over_clients_and_worst_the_largest():
    records = evaluator(scores=["fid"]).evaluate(grey_noise).records
    avg, all_, worst = records
    assert [r.aggregate for r in records] == ["avg", "all", "worst"]
    assert avg.value == pytest.approx((30 * avg.per_client[0] + 50 * avg.per_client[1] + 20 * avg.per_client[2]) / 100)
    assert worst.value == max(avg.per_client)
    assert avg.terms["mean"] + avg.terms["covariance"] == pytest.approx(avg.value)
    assert not all_.per_client
    assert avg.client_names == ["client 0", "client 1", "client 2"]


def test_uniform_and_given_weights_are_used_and_stored():
    uniform, given = evaluator(weights="uniform"), evaluator(weights=[1.0, 1.0, 1.0])
    a, b = uniform.evaluate(grey_noise).records, given.evaluate(grey_noise).records
    assert values(a) == pytest.approx(values(b), rel=1e-12)
    assert a[0].value == pytest.approx(sum(a[0].per_client) / 3)
    assert (a[0].weights, b[0].weights) == ("uniform", "given")


def test_records_carry_what_the_value_depends_on():
    record = evaluator().evaluate(grey_noise, 7, "round=00007.ckpt", ["vgg16"], "a note").records[0]
    assert record.reference == "noise/train, 3 clients, 100 images"
    assert (record.num_generated, record.num_clients, record.seed, record.round) == (80, 3, 3, 7)
    assert (record.checkpoint, record.optimised_on, record.note) == ("round=00007.ckpt", ["vgg16"], "a note")
    assert record.embedding_fingerprint == Pixels().fingerprint()
    assert record.standard_error > record.error_parts["generated"] > 0


def test_the_same_seed_gives_the_same_records():
    assert evaluator().evaluate(grey_noise, 2).records == evaluator().evaluate(grey_noise, 2).records


def test_splits_are_scored_on_independent_images_and_embeddings_on_the_same():
    drawn = []

    def counted(n, draws):
        drawn.append(n)
        return grey_noise(n, draws)

    twice = ModuleEmbedding(nn.Flatten(), name="twice")
    clients = {"train": CLIENTS, "report": CLIENTS}
    judge = Evaluator(clients, ["pixels", twice], num_images=64, seed=3, chunk=32)
    evaluation = judge.evaluate(counted)
    assert len(drawn) == 4  # two chunks a split
    found = values(evaluation.records)
    assert set(found) == set(judge.column_names())
    assert found["fid_avg"] != found["report/fid_avg"]
    assert torch.equal(evaluation.images, draw_images(grey_noise, 64, 3, 0, "train", chunk=32))


def test_the_floor_scores_other_real_images_as_if_generated():
    other = pictures(200, 9)
    split = Split.of_clients("train", CLIENTS, floor=other.inputs)
    judge = Evaluator([split], ["pixels"], num_images=50, seed=1)
    floor = judge.floor()
    assert all(record.is_floor and record.round is None and record.num_generated == 50 for record in floor)
    assert {record.name for record in floor} == {f"{s}_{a}" for s in ("fid", "kid") for a in ("avg", "all", "worst")}
    assert floor == Evaluator([split], ["pixels"], num_images=50, seed=1).floor()
    assert evaluator().floor() == []


def test_real_images_are_embedded_once_and_found_again_on_disk(tmp_path):
    calls = []

    class Counting(nn.Module):
        def forward(self, images):
            calls.append(len(images))
            return images.flatten(1)

    def judge():
        split = Split.of_clients("train", CLIENTS, floor=CLIENTS[0].inputs)
        embedding = ModuleEmbedding(Counting(), name="counting")
        return Evaluator([split], [embedding], num_images=10, cache=FeatureCache(tmp_path), batch_size=1000)

    first = judge()
    a = first.evaluate(grey_noise).records
    first.floor()
    assert calls == [100, 30, 10]
    b = judge().evaluate(grey_noise).records
    assert calls == [100, 30, 10, 10]
    assert values(a) == values(b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embeddings": ["identity"]}, r"identity takes points"),
        ({"scores": ["fdi"]}, "unknown score 'fdi'; known: fid, kid"),
        ({"num_images": 1}, "at least 2 generated images"),
        ({"embeddings": ["pixels", "pixels"]}, "'pixels' is given twice"),
        ({"embeddings": []}, "at least one embedding"),
        ({"weights": [1.0]}, "one number a client"),
        ({"embeddings": ["pixel"]}, "did you mean pixels"),
    ],
)
def test_errors_come_when_the_evaluator_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        evaluator(**options)


def test_splits_of_other_image_sizes_are_refused():
    with pytest.raises(ValueError, match=r"split 'report' has images \[1, 8, 8\], the first \[1, 4, 4\]"):
        Evaluator({"train": CLIENTS, "report": [pictures(5, 0, side=8)]}, ["pixels"])


def test_a_model_is_tried_out_before_any_work():
    judge = evaluator()
    judge.try_out(grey_noise)
    with pytest.raises(ValueError, match=r"samples images of shape \[1, 8, 8\], but the clients' are \[1, 4, 4\]"):
        judge.try_out(lambda n, draws: torch.zeros(n, 1, 8, 8))


def test_one_call_evaluates_a_model():
    class Model(nn.Module):
        def sample(self, num_images, generator=None):
            return grey_noise(num_images, generator)

    options = {"embeddings": ["pixels"], "num_images": 80, "seed": 3, "chunk": 32}
    records = evaluate(Model(), {"train": CLIENTS}, **options)
    assert records == evaluate(grey_noise, {"train": CLIENTS}, **options) == evaluator().evaluate(grey_noise).records
    assert all(math.isfinite(record.value) for record in records)
