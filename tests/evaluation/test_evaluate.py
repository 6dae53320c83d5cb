"""The whole path from a sampler to records: the identities that must hold through it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedgen.embeddings import FeatureCache, ModuleEmbedding, Pixels, embed
from fedgen.evaluation import PRESETS, Evaluator, Split, by_column, draw_images, evaluate, score_table
from fedgen.evaluation.splits import StandIn
from fedgen.scores import FrechetReference, KernelReference, ManifoldReference, inception_score, memorisation
from fedgen.scores.aggregate import name_weights
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
    assert a[0].weights == "uniform"
    other = evaluator(weights=[1.0, 2.0, 1.0]).evaluate(grey_noise).records
    assert b[0].weights == name_weights([2, 2, 2]) == "given " + b[0].weights[-8:]
    assert b[0].identity != other[0].identity  # of which one replaced the other


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
    split = Split.of_clients("train", CLIENTS, stand_ins={"floor": StandIn(other.inputs)})
    judge = Evaluator([split], ["pixels"], num_images=50, seed=1)
    floor = judge.floor()
    assert all(record.is_floor and record.round is None and record.num_generated == 50 for record in floor)
    assert {record.name for record in floor} == {f"{s}_{a}" for s in ("fid", "kid") for a in ("avg", "all", "worst")}
    assert floor == Evaluator([split], ["pixels"], num_images=50, seed=1).floor()
    assert evaluator().floor() == []
    by_weights = Evaluator([split], ["pixels"], num_images=50, seed=1, weights="uniform").floor()
    assert all(record.note == "" for record in floor)
    assert all("real images count once, whatever clients' weights" in record.note for record in by_weights)


@pytest.mark.slow
def test_the_floor_of_fld_is_what_fresh_images_score_though_it_is_of_the_held_out_ones():
    held_out = [pictures(len(part), seed, level) for part, seed, level in zip(CLIENTS, (11, 12, 13), (80, 128, 180))]
    pool = StandIn(torch.cat([part.inputs for part in held_out]))
    splits = [Split.of_clients("train", CLIENTS, stand_ins={"floor": pool}), Split.of_clients("report", held_out)]
    judge = Evaluator(splits, ["pixels"], num_images=100, seed=3, chunk=100, scores=["fld", "memorisation"])
    floor = judge.floor()
    assert [record.name for record in floor] == ["fld_avg", "fld_all", "fld_worst"]  # memorisation has none
    fresh = torch.cat([pictures(*given).inputs for given in ((30, 31, 80), (50, 32, 128), (20, 33, 180))])
    found = values(judge.evaluate(lambda number, draws: fresh).records)
    for record in floor[:2]:
        assert abs(record.value - found[record.name]) < 4 * record.standard_error


def test_real_images_are_embedded_once_and_found_again_on_disk(tmp_path):
    calls = []

    class Counting(nn.Module):
        def forward(self, images):
            calls.append(len(images))
            return images.flatten(1)

    def judge():
        split = Split.of_clients("train", CLIENTS, stand_ins={"floor": StandIn(CLIENTS[0].inputs)})
        embedding = ModuleEmbedding(Counting(), name="counting")
        return Evaluator([split], [embedding], num_images=10, cache=FeatureCache(tmp_path), batch_size=1000)

    first = judge()
    a = first.evaluate(grey_noise).records
    first.floor()
    assert calls == [100, 10, 10]  # of 30 in a generator's place as many as are generated
    b = judge().evaluate(grey_noise).records
    assert calls == [100, 10, 10, 10]
    assert values(a) == values(b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embeddings": ["identity"]}, r"identity takes points"),
        ({"scores": ["fdi"]}, r"unknown score 'fdi'; known: .*fid, .*is, kid.*; did you mean 'fld'"),
        ({"scores": ["is"]}, "score is needs logits, which embedding pixels does not give"),
        ({"scores": ["ll"]}, "embedding pixels takes images"),
        ({"scores": ["memorisation"]}, "there is no such split 'report': let each client hold out"),
        ({"scores": [{"name": "recall", "k": 20}]}, r"client 'client 2' of split 'train' has 20 image\(s\)"),
        ({"scores": ["recall"], "num_images": 5}, r"the generated set \(num_images\) has 5 image\(s\)"),
        ({"aggregates": ["power"]}, "unknown aggregate 'power'"),
        ({"aggregates": ["power--1"]}, "power--1 applies to none of the scores fid, kid"),
        ({"presets": ["cmd"]}, "unknown preset 'cmd'"),
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
    with pytest.raises(ValueError, match="report"):
        Evaluator({"train": CLIENTS, "report": [pictures(5, 0, side=8)]}, ["pixels"])


def test_a_model_is_tried_out_before_any_work():
    judge = evaluator()
    judge.try_out(grey_noise)
    with pytest.raises(ValueError, match="samples"):
        judge.try_out(lambda n, draws: torch.zeros(n, 1, 8, 8))


def test_one_call_evaluates_a_model():
    class Model(nn.Module):
        def sample(self, num_images, generator=None):
            return grey_noise(num_images, generator)

    options = {"embeddings": ["pixels"], "num_images": 80, "seed": 3, "chunk": 32}
    records = evaluate(Model(), {"train": CLIENTS}, **options)
    assert records == evaluate(grey_noise, {"train": CLIENTS}, **options) == evaluator().evaluate(grey_noise).records
    assert all(math.isfinite(record.value) for record in records)


def test_many_scores_share_one_evaluation_and_their_columns_know_which_way_is_better():
    scores = ["precision", {"name": "recall", "k": 3}, "kid-rbf", {"name": "sw1", "projections": 20}]
    judge = evaluator(scores=scores, aggregates=["power-2"])
    records = judge.evaluate(grey_noise).records
    assert [record.name for record in records] == judge.column_names()
    assert {r.score for r in records if r.higher_is_better} == {"precision", "recall"}
    assert {r.score for r in records if r.aggregate == "power-2"} == {"sw1"}
    assert judge.directions() == {record.name: record.higher_is_better for record in records}
    generated = embed(Pixels(), draw_images(grey_noise, 80, 3, 0, "train", chunk=32))
    real = [embed(Pixels(), client.inputs) for client in CLIENTS]
    found = {record.name: record for record in records}
    for k, name in ((5, "precision"), (3, "recall")):
        expected = ManifoldReference.from_features(real, k=k).score(generated)[name]
        assert [found[f"{name}_{a}"].value for a in ("avg", "all", "worst")] == [*expected.values.values()]
        assert found[f"{name}_all"].standard_error == expected.errors["all"]
    assert found["recall_all"].score_settings == {"k": 3}
    assert found["recall_all"].conditions != replace(found["recall_all"], score_settings={}).conditions


def test_a_floor_of_few_images_leaves_out_the_scores_that_need_more():
    split = Split.of_clients("train", CLIENTS, stand_ins={"floor": StandIn(pictures(4, 9).inputs)})
    floor = Evaluator([split], ["pixels"], num_images=50, seed=1, scores=["fid", "coverage"]).floor()
    assert {record.score for record in floor} == {"fid"}
    assert Evaluator([split], ["pixels"], num_images=50, seed=1, scores="coverage").floor() == []


def test_a_score_that_needs_more_images_than_clients_held_out_is_left_out_there():
    clients = {"train": CLIENTS, "report": [pictures(5, k) for k in range(3)]}
    with pytest.warns(UserWarning, match="coverage"):
        judge = Evaluator(clients, ["pixels"], num_images=40, scores=["fid", "coverage"])
    assert judge.column_names() == [
        *(f"{score}_{how}" for score in ("fid", "coverage") for how in ("avg", "all", "worst")),
        *(f"report/fid_{how}" for how in ("avg", "all", "worst")),
    ]
    assert [*values(judge.evaluate(grey_noise).records)] == judge.column_names()
    with pytest.warns(UserWarning, match="left"):
        alone = Evaluator(clients, ["pixels"], num_images=40, scores="coverage")
    assert {record.split for record in alone.evaluate(grey_noise).records} == {"train"}


def test_memorisation_compares_training_with_held_out_images_of_the_same_clients():
    held_out = [pictures(20, 11, 80), pictures(20, 12, 128), pictures(10, 13, 180)]
    clients = {"train": CLIENTS, "report": held_out}
    judge = Evaluator(clients, ["pixels"], num_images=100, seed=3, chunk=100, scores=["memorisation", "fid"])
    assert judge.column_names()[:4] == ["memorisation_avg", "memorisation_all", "memorisation_worst", "fid_avg"]
    assert not any(name.startswith("report/memorisation") for name in judge.column_names())
    copies = torch.cat([client.inputs for client in CLIENTS])
    found = values(judge.evaluate(lambda number, draws: copies).records)
    assert found["memorisation_all"] == 1.0  # the training images themselves
    features = [[embed(Pixels(), part.inputs) for part in side] for side in (CLIENTS, held_out)]
    generated = embed(Pixels(), draw_images(grey_noise, 100, 3, 0, "train", chunk=100))
    expected = memorisation(*features, generated)
    records = judge.evaluate(grey_noise).records
    assert values(records)["memorisation_all"] == expected.values["all"]
    assert records[0].standard_error == expected.errors["avg"]
    with pytest.raises(ValueError, match="report"):
        Evaluator({"train": CLIENTS, "report": held_out[:2]}, ["pixels"], scores="memorisation")
    with pytest.raises(ValueError, match="compares"):
        Evaluator({"train": CLIENTS}, ["pixels"], scores="fld")


@pytest.mark.slow
def test_audits_tell_a_generator_that_memorises_from_one_that_cannot():
    held_out = [pictures(len(part), seed, level) for part, seed, level in zip(CLIENTS, (11, 12, 13), (80, 128, 180))]
    names = ["authenticity", "mifid", "fld", "memorisation"]
    judge = Evaluator(
        {"train": CLIENTS, "report": held_out}, ["pixels"], num_images=100, seed=3, chunk=100, scores=names
    )
    assert judge.column_names() == [
        *(f"{score}_{how}" for score in names for how in ("avg", "all", "worst")),
        *(f"report/{score}_{how}" for score in names[:2] for how in ("avg", "all", "worst")),
    ]
    copies = torch.cat([client.inputs for client in CLIENTS]).clamp(max=250)
    copies[:, :, :2] += 5  # else they would be the training images, whose FID is 0
    fresh = torch.cat([pictures(*given).inputs for given in ((30, 31, 80), (50, 32, 128), (20, 33, 180))])
    memory, none = (values(judge.evaluate(lambda number, draws, own=own: own).records) for own in (copies, fresh))
    assert memory["authenticity_all"] < 0.1 < none["authenticity_all"]
    assert memory["mifid_all"] > 2 * none["mifid_all"]
    assert memory["fld_all"] > none["fld_all"] + 50
    assert memory["authenticity_avg"] < none["authenticity_avg"]
    assert memory["mifid_avg"] > none["mifid_avg"]
    assert memory["fld_avg"] > none["fld_avg"]
    assert memory["report/authenticity_all"] > 0.1  # of images that are no copies of these


def test_the_inception_score_is_measured_on_logits_and_is_one_value():
    torch.manual_seed(0)
    logits = ModuleEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(16, 10)), name="noise-logits")
    judge = Evaluator({"train": CLIENTS}, [logits], num_images=60, seed=3, scores="is")
    records = judge.evaluate(grey_noise).records
    value, error = inception_score(embed(logits, draw_images(grey_noise, 60, 3, 0, "train")))
    assert [record.name for record in records] == ["is_avg", "is_all", "is_worst"]
    assert [record.value for record in records] == [pytest.approx(value)] * 3
    assert records[1].standard_error == pytest.approx(error)
    assert records[0].higher_is_better


def test_a_preset_is_scored_in_its_own_embedding(clip_weights):
    cmmd = {"name": "cmmd", "weights": clip_weights}
    judge = evaluator(scores="fid", presets=[cmmd])
    records = judge.evaluate(grey_noise).records
    assert [record.name for record in records] == judge.column_names()
    assert [r.embedding for r in records[::3]] == ["pixels", "clip-vit-l-14-336px-cmmd-unit"]
    preset = PRESETS["cmmd"]
    embedding = preset.load_embedding(clip_weights)
    real = [embed(embedding, client.inputs) for client in CLIENTS]
    generated = embed(embedding, draw_images(grey_noise, 80, 3, 0, "train", chunk=32))
    expected = preset.reference(real).score(generated)
    found = {record.name: record.value for record in records}
    assert found["cmmd_all"] == pytest.approx(expected.values["all"], rel=1e-6)
    assert {record.name: record.score_settings for record in records}["cmmd_avg"]["scale"] == 1000.0
    alone = Evaluator({"train": CLIENTS}, num_images=80, seed=3, chunk=32, presets=[cmmd])
    assert values(alone.evaluate(grey_noise).records)["cmmd_all"] == found["cmmd_all"]


def test_a_model_that_samples_in_0_to_1_is_told_once_and_scored_at_every_round():
    def unit(number, draws):
        return grey_noise(number, draws).float().sigmoid()

    judge = evaluator()
    with pytest.warns(UserWarning, match="samples"):
        judge.try_out(unit)
    assert [len(judge.evaluate(unit, round).records) for round in (0, 1)] == [6, 6]


def test_samples_in_another_range_are_noted_in_every_record():
    with pytest.warns(UserWarning, match=r"looks like \[0, 1\]"):
        records = evaluator().evaluate(lambda number, draws: torch.rand(number, 1, 4, 4, generator=draws)).records
    assert {record.note for record in records} == {"the model's samples look like [0, 1], not like [-1, 1]"}


def test_distances_of_fewer_images_than_features_say_so_in_their_records_and_tables():
    records = evaluator().evaluate(grey_noise).records  # 16 pixels
    assert {record.note for record in records} == {""}
    records = evaluator(num_images=12, scores=["fid", "kid"]).evaluate(grey_noise).records
    few = (
        "fid is biased upwards, as there are fewer samples than features (16): 12 generated. Compare by kid, or at"
        " equal numbers of samples"
    )
    assert {(record.score, record.note) for record in records} == {("fid", few), ("kid", "")}
    assert few in score_table(records).caption


@pytest.mark.parametrize(("score", "least"), [("fidc", 18), ("fidj", 21)])
def test_too_few_images_are_refused_before_the_others_are_embedded(score, least):
    seen = []

    class Flat(nn.Module):
        def forward(self, images):
            seen.append(len(images))
            return images.flatten(1)

    def judge(sizes, made=80):
        clients = [pictures(size, size) for size in sizes]
        return Evaluator({"train": clients}, [ModuleEmbedding(Flat())], made, [score])

    judge([60, least, 50], least).real.prepare()
    seen.clear()  # the module's copies hold the same list
    with pytest.raises(ValueError, match=r"client 'client 1' of split 'train'.* has 17 images.* 18 in 16 directions"):
        judge([60, least - 1, 50]).real.prepare()
    assert sum(seen) == least - 1
    seen.clear()
    with pytest.raises(ValueError, match=rf"generated set \(num_images\) of score {score} has {least - 1} images"):
        judge([60, least, 50], least - 1).real.prepare()
    assert sum(seen) <= least


def test_the_evaluation_of_one_client_scores_that_client_as_the_one_of_all_does():
    judge = evaluator(scores=["fid", {"name": "precision", "k": 3}])
    (avg,) = (record for record in judge.evaluate(grey_noise).records if record.name == "precision_avg")
    for place, name in enumerate(avg.client_names):
        alone = judge.of_one(judge.splits[0], place, judge.panels)
        assert (alone.num_images, alone.seed, alone.splits[0].client_names) == (80, 3, (name,))
        found = {record.name: record for record in alone.evaluate(grey_noise).records}
        assert found["precision_avg"].value == found["precision_all"].value == avg.per_client[place]
        assert found["precision_avg"].score_settings == {"k": 3}


def test_the_steps_that_were_public_work_and_warn():
    judge = evaluator()
    with pytest.warns(DeprecationWarning, match="embed_generated"):
        made = judge.generated(grey_noise, 0)
    with pytest.warns(DeprecationWarning, match="measured"):
        found = judge.measured(made)
    with pytest.warns(DeprecationWarning, match="records"):
        records = judge.records(found, "model", judge.num_images, round=0)
    expected = judge.evaluate(grey_noise).records
    assert [one.value for one in records] == [one.value for one in expected]
