"""part_train, part_val and unpart: as many clients and images in each, and no gap where there is none."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedgen.clients import FederatedDataModule, ThreeWaySplit
from fedgen.clients.partitions import IID, BySize, Natural
from fedgen.data import Examples
from fedgen.evaluation import Evaluator, by_column, evaluate, splits_of
from fedgen.evaluation.marks import GAPS, interval
from fedgen.evaluation.records import FLOOR, MEMORISER, PARTICIPANTS
from fedgen.scores import KernelReference, PolynomialKernel, ScoreDefinition
from fedgen.scores.aggregate import combine, resolve_weights

LINEAR = {"name": "kid", "degree": 1, "gamma": 1.0, "coef0": 0.0}


def points(count=600, seed=0, dim=3):
    draws = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(count, dim, generator=draws), torch.zeros(count).long(), "points/train", ("0",))


def federation(partition=None, count=600, held_out=0.25, seed=0, **split):
    settings = {"unparticipating": 0.3, **split}
    return FederatedDataModule(
        points(count), partition or BySize(20, 0.5), held_out=held_out, seed=seed, split=ThreeWaySplit(**settings)
    )


def noise(count, draws):
    return torch.randn(count, 3, generator=draws) * 1.3


def evaluator(data, **options):
    return Evaluator(data, **{"embeddings": ["identity"], "num_images": 200, "seed": 0, **options})


def positions(data, images):
    """Where rows stand in the data."""
    places = {tuple(row): place for place, row in enumerate(data.examples.inputs.tolist())}
    return [places[tuple(row)] for row in images.tolist()]


def test_the_three_splits_have_as_many_clients_and_images():
    data = federation()
    train, val, unpart = splits_of(data)
    assert [split.name for split in (train, val, unpart)] == ["part_train", "part_val", "unpart"]
    assert train.counts == val.counts == unpart.counts
    assert len(train.counts) == 6
    assert train.client_names == val.client_names
    assert not set(train.client_names) & set(unpart.client_names)
    by_name = {client.name: client for client in data.everyone}
    for split, part in ((train, "train"), (val, "held_out"), (unpart, "held_out")):
        for name, images in zip(split.client_names, split.images.split(list(split.counts))):
            assert set(positions(data, images)) <= set(getattr(by_name[name], part).tolist())
    assert set(unpart.client_names) <= {client.name for client in data.unparticipating}
    again = splits_of(federation())
    assert all(torch.equal(one.images, other.images) for one, other in zip((train, val, unpart), again))


def test_controls_are_of_images_that_are_not_scored_but_for_the_memoriser():
    data = federation()
    splits = splits_of(data)
    scored = {place for split in splits for place in positions(data, split.images)}
    stand_ins = splits[0].stand_ins
    assert all(split.stand_ins is stand_ins for split in splits)
    floor, participants = (set(positions(data, stand_ins[name].images)) for name in (FLOOR, PARTICIPANTS))
    assert not scored & (floor | participants)
    unseen = {place for client in data.unparticipating for place in [*client.train.tolist(), *client.held_out.tolist()]}
    assert floor & unseen
    assert not participants & unseen
    assert torch.equal(stand_ins[MEMORISER].images, splits[0].images)


def test_both_of_a_pair_give_the_floor_as_many_images():
    data = federation(IID(4), count=400, unparticipating=0.5)
    train, _, unpart = splits_of(data)
    floor = set(positions(data, train.stand_ins[FLOOR].images))
    by_name = {c.name: {*c.train.tolist(), *c.held_out.tolist()} for c in data.everyone}
    shares = [len(floor & by_name[name]) for name in (*train.client_names, *unpart.client_names)]
    assert shares[:2] == shares[2:] == [50, 50]  # of 100 each, 25 + 25 of the first are scored
    for name in unpart.client_names:  # of 75 that are left: not the first 50 of data that may be sorted
        rest = sorted(by_name[name] - set(positions(data, unpart.images)))
        assert sorted(floor & by_name[name]) != rest[:50]


def test_the_number_of_scored_clients_can_be_asked_for_and_may_be_too_large():
    assert len(splits_of(federation(eval_clients=3))[2].counts) == 3
    with pytest.warns(UserWarning, match="eval_clients"):
        assert len(splits_of(federation(eval_clients=50))[0].counts) == 6


def test_clients_that_hold_out_too_little_are_left_out_and_none_is_an_error():
    with pytest.warns(UserWarning, match="participating"):
        assert min(splits_of(federation(BySize(20, 1.5)))[0].counts) >= 2
    with pytest.raises(ValueError, match="participating"):
        splits_of(federation(held_out=0.0))


def test_clients_that_are_left_out_are_named_a_few_of_them():
    owners = torch.cat([torch.full((3 if owner % 3 else 40,), owner) for owner in range(20)])  # of 3 none is held out
    examples = replace(points(len(owners)), owners=owners, owner_names=tuple(f"writer {owner}" for owner in range(20)))
    data = FederatedDataModule(examples, Natural(), held_out=0.25, seed=0, split=ThreeWaySplit(0.3))
    few = [client.name for client in data.clients if len(client.held_out) < 2]
    assert len(few) > 5
    said = f"{len(few)} of 14 participating .* against these: {', '.join(few[:5])} and {len(few) - 5} more$"
    with pytest.warns(UserWarning, match=said), pytest.warns(UserWarning, match="unparticipating"):
        splits_of(data)


def test_where_scored_clients_have_no_image_left_the_floor_is_of_the_others():
    data = federation(IID(20), held_out=0.5)  # 15 and 15 images: of the 6 that are scored all are
    splits = splits_of(data)
    scored = {*splits[0].client_names, *splits[2].client_names}
    others = {place for c in data.everyone if c.name not in scored for place in c.everything.tolist()}
    assert set(positions(data, splits[0].stand_ins[FLOOR].images)) == others


@pytest.mark.slow
def test_a_control_that_no_image_is_left_for_is_said_to_be_left_out_where_controls_are_asked_for():
    data = federation(IID(4), count=400, unparticipating=0.5, held_out=0.5)
    with pytest.warns(UserWarning, match="eval_clients"):
        judge = evaluator(data, scores=["fid"], controls=True)
    assert {record.generator for record in judge.floor()} == {MEMORISER}
    assert evaluator(data, scores=["fid"]).floor() == []  # nothing was asked for: no warning
    for remedy in ({"held_out": 0.4}, {"eval_clients": 2, "unparticipating": 0.25}):
        judge = evaluator(
            federation(IID(12), **{"count": 1200, "held_out": 0.5, **remedy}), scores=["fid"], controls=True
        )
        assert {record.generator for record in judge.floor()} == {FLOOR, PARTICIPANTS, MEMORISER}


def test_all_three_are_scored_on_the_same_generated_images():
    asked = []

    def sample(count, draws):
        asked.append(count)
        return noise(count, draws)

    judge = evaluator(federation(), scores=["fid"], chunk=50)
    records = judge.evaluate(sample).records
    assert asked == [50] * 4  # once, not once a split
    found = {name: group[0] for name, group in by_column(records).items()}
    assert found["gap/out_of_sample/fid_avg"].value == pytest.approx(
        found["part_val/fid_avg"].value - found["fid_avg"].value
    )
    assert found["gap/participation/fid_all"].value == pytest.approx(
        found["unpart/fid_all"].value - found["part_val/fid_all"].value
    )
    assert sorted(found) == sorted(judge.column_names())


def test_the_clients_distribution_comes_with_them():
    found = {name: group[0] for name, group in by_column(evaluator(federation()).evaluate(noise).records).items()}
    clients = torch.tensor(found["unpart/kid_avg"].per_client, dtype=torch.float64)
    assert found["unpart/kid_unweighted"].value == pytest.approx(float(clients.mean()))
    assert found["unpart/kid_var"].value == pytest.approx(float(clients.var(correction=0)))
    assert found["unpart/kid_pct95"].value == float(clients.max())  # the nearest of six
    assert found["unpart/kid_pct5"].value == float(clients.min())
    weights = torch.tensor(splits_of(federation())[2].counts).double()
    assert found["unpart/kid_avg"].value == pytest.approx(float(clients @ weights / weights.sum()))


def test_beyond_the_floor_kids_gap_is_one_number_in_avg_and_all():
    """What avg and all differ by is how far clients are apart: no generator's doing."""
    judge = evaluator(federation(), scores=["kid"], num_images=60, controls=True)
    found = {name: group[0].value for name, group in by_column(judge.evaluate(noise).records).items()}
    floor = {r.aggregate: r.value for r in judge.floor() if (r.generator, r.split) == (FLOOR, "gap/participation")}
    avg, of_all = (found[f"gap/participation/kid_{name}"] for name in ("avg", "all"))
    assert avg - floor["avg"] == pytest.approx(of_all - floor["all"], abs=1e-9)
    assert abs(avg - of_all) > 1e-6


def test_a_gap_has_the_error_of_the_pairs_differences():
    judge = evaluator(federation(), weights="uniform")
    found = {name: group[0] for name, group in by_column(judge.evaluate(noise).records).items()}
    gap = found["gap/participation/kid_avg"]
    seen, unseen = (torch.tensor(found[f"{split}/kid_avg"].per_client) for split in ("part_val", "unpart"))
    difference = (unseen - seen).double()
    assert gap.per_client == pytest.approx(difference.tolist())
    assert gap.error_over_clients == pytest.approx(float(difference.std() / 6**0.5), rel=1e-6)
    low, high = interval(gap)
    assert high - low == pytest.approx(2 * 2.5706 * gap.error_over_clients, rel=1e-4)  # Student, five degrees
    assert gap.num_clients == 6


def test_where_more_is_better_a_gap_is_still_how_much_worse():
    judge = evaluator(federation(IID(20)), scores=["recall"])
    found = {name: group[0] for name, group in by_column(judge.evaluate(noise).records).items()}
    gap = found["gap/out_of_sample/recall_all"]
    assert gap.value == pytest.approx(found["recall_all"].value - found["part_val/recall_all"].value)
    assert not gap.higher_is_better
    assert found["recall_all"].higher_is_better


@dataclass(frozen=True)
class Spread(ScoreDefinition):
    """The largest generated feature, which knows no clients."""

    name: ClassVar[str] = "spread"
    has_distribution: ClassVar[bool] = False

    def prepare(self, clients):
        return resolve_weights(clients.weights, clients.counts)

    def compare(self, prepared, generated, errors):
        value = float(generated.rows.abs().max())
        return combine("spread", torch.full_like(prepared, value), value, prepared)


def test_a_score_that_knows_no_clients_has_no_gaps():
    judge = evaluator(federation(), scores=["kid", Spread()])
    evaluation = judge.evaluate(noise)
    assert sorted(by_column(evaluation.records)) == sorted(judge.column_names())
    own = [record for record in evaluation.records if record.score == "spread"]
    assert {record.split for record in own} == {"part_train", "part_val", "unpart"}
    assert {record.score for record in evaluation.records if record.split in GAPS} == {"kid"}


def test_the_memoriser_has_an_out_of_sample_gap_and_the_floor_has_none():
    data = federation(IID(40), count=2400, held_out=0.1)  # six images of each are scored
    records = evaluator(data, scores=["fid"], controls=True).floor()
    found = {(r.generator, r.split, r.aggregate): r for r in records}
    assert found[MEMORISER, "part_train", "all"].value == pytest.approx(0, abs=1e-9)
    memory = found[MEMORISER, "gap/out_of_sample", "all"]
    assert memory.value > 0.05
    low, high = interval(found[MEMORISER, "gap/participation", "all"])
    assert low < 0 < high
    for gap in GAPS:
        low, high = interval(found[FLOOR, gap, "all"])
        assert low < 0 < high
    assert {record.generator for record in evaluator(data, scores=["fid"]).floor()} == {FLOOR}


def test_features_that_are_not_finite_name_the_client():
    data = federation()
    unpart = splits_of(data)[2]
    place = positions(data, unpart.images)[unpart.counts[0]]  # the first image of the second client
    data.examples.inputs[place] = float("nan")
    name = unpart.client_names[1]
    with pytest.raises(ValueError, match=rf"unpart, 6 clients, .* points, client '{name}': .* holds NaN or infinity"):
        evaluator(data).floor()


def test_a_mixture_of_local_models_is_of_all_clients_that_train():
    data = federation()
    weights = evaluator(data).client_weights()
    counts = torch.tensor([len(client.train) for client in data.clients]).double()
    assert len(weights) == 14  # six of them are scored
    assert torch.allclose(weights, counts / counts.sum())


def test_controls_without_clients_that_never_train_are_refused():
    data = FederatedDataModule(points(), IID(5), seed=0)
    with pytest.raises(ValueError, match="module"):
        evaluator(data, controls=True)


def test_memorisation_takes_part_val_for_the_held_out_images():
    names = evaluator(federation(), scores=["fid", "memorisation"]).column_names()
    assert "memorisation_avg" in names
    assert not any(name.startswith(("unpart/memorisation", "gap/participation/memorisation")) for name in names)


# ---------------------------------------------------------- losses, which are linear


class Loss(torch.nn.Module):
    """The squared length of points, plus what is drawn for each place."""

    num_classes = None

    def sample(self, count, generator=None):
        return noise(count, generator)

    def example_losses(self, inputs, labels=None, seed=0):
        assert labels is None
        draws = torch.Generator().manual_seed(seed)
        return inputs.square().sum(1) + torch.randn(len(inputs), generator=draws)


def test_losses_are_means_over_images_at_common_draws():
    data = federation()
    records = evaluate(Loss(), data, embeddings=["identity"], num_images=50, seed=7, scores=["fid", "loss"])
    found = {name: group[0] for name, group in by_column(records).items()}
    train, val, unpart = splits_of(data)
    drawn = torch.randn(len(train.images), generator=torch.Generator().manual_seed(7))
    for split, column in ((train, "loss"), (val, "part_val/loss"), (unpart, "unpart/loss")):
        own = (split.images.square().sum(1) + drawn).double()
        assert found[f"{column}_all"].value == pytest.approx(float(own.mean()), rel=1e-6)
        assert found[f"{column}_avg"].value == found[f"{column}_all"].value
        means = [float(part.mean()) for part in own.split(list(split.counts))]
        assert found[f"{column}_avg"].per_client == pytest.approx(means)
    assert found["gap/participation/loss_avg"].value == pytest.approx(
        float((unpart.images.square().sum(1) - val.images.square().sum(1)).mean()), abs=1e-6
    )  # draws drop out
    assert found["loss_avg"].embedding == "own-model"


def test_a_model_without_losses_is_refused_before_anything_is_sampled():
    with pytest.raises(TypeError, match=r"Linear has no method .*example_losses|has no method sample"):
        evaluate(torch.nn.Linear(1, 1), federation(), scores=["loss"])

    class Silent(Loss):
        example_losses = None

        def sample(self, count, generator=None):
            raise AssertionError

    with pytest.raises(TypeError, match="example_losses"):
        evaluate(Silent(), federation(), embeddings=["identity"], scores=["fid", "loss"])


def test_where_losses_alone_are_scored_a_model_needs_no_sampler():
    class Judge(Loss):
        sample = None

    data = federation()
    both = evaluate(Loss(), data, embeddings=["identity"], num_images=50, seed=7, scores=["loss", "fid"])
    alone = evaluate(Judge(), data, embeddings=["identity"], num_images=50, seed=7, scores=["loss"])
    want = {name: group[0].value for name, group in by_column(both).items() if "loss" in name}
    assert {name: group[0].value for name, group in by_column(alone).items()} == want
    assert {record.num_generated for record in alone} == {0}
    with pytest.raises(TypeError, match="method"):
        evaluate(Judge(), data, embeddings=["identity"], num_images=50, scores=["loss", "fid"])


def test_losses_of_another_number_are_refused():
    class Short(Loss):
        def example_losses(self, inputs, labels=None, seed=0):
            return inputs[:1].sum(1)

    with pytest.raises(ValueError, match="example_losses"):
        evaluate(Short(), federation(), scores=["loss"])


# ---------------------------------------------------------- what unmatched pools invent


def clients_of_a_population(seed, clients=100, images=20, dim=8):
    """Images around each client's own mean, which varies over clients by the identity: tr(Cov) = 8."""
    draws = torch.Generator().manual_seed(seed)
    means = torch.randn(clients, dim, generator=draws).repeat_interleave(images, 0)
    owners = torch.arange(clients).repeat_interleave(images)
    names = tuple(map(str, range(clients)))
    inputs = means + torch.randn(clients * images, dim, generator=draws)
    return Examples(inputs, torch.zeros(len(inputs)).long(), "population", ("0",), owners, names)


def population(count, draws):
    return torch.randn(count, 8, generator=draws) * 2**0.5


@pytest.mark.slow
def test_unmatched_pools_show_a_gap_that_is_none_and_matched_ones_do_not():
    unmatched, matched, beyond_floor = [], [], []
    kernel = PolynomialKernel(1, 1.0, 0.0)
    for seed in range(12):
        data = FederatedDataModule(
            clients_of_a_population(seed), Natural(), held_out=0.5, seed=seed, split=ThreeWaySplit(0.2)
        )
        generated = population(1000, torch.Generator().manual_seed(1000 + seed))
        scores = [
            KernelReference.from_features([data.examples.inputs[c.held_out] for c in kind], kernel).score(generated)
            for kind in (data.clients, data.unparticipating)
        ]
        unmatched.append(scores[1].values["all"] - scores[0].values["all"])
        judge = evaluator(data, scores=[LINEAR], num_images=1000, seed=seed, controls=True)
        found = {name: group[0].value for name, group in by_column(judge.evaluate(population).records).items()}
        matched.append(found["gap/participation/kid_all"])
        gap = (FLOOR, "gap/participation", "avg")
        (floor,) = (r for r in judge.floor() if (r.generator, r.split, r.aggregate) == gap)
        beyond_floor.append(found["gap/participation/kid_avg"] - floor.value)  # the draw of clients scatters it sixfold
    means, errors = zip(*((t.mean(), t.std() / 12**0.5) for t in map(torch.tensor, (unmatched, matched, beyond_floor))))
    assert float(means[0]) == pytest.approx(8 * (1 / 20 - 1 / 80), abs=4 * float(errors[0]))  # 0.3
    assert float(means[0]) > 5 * float(errors[0])
    for mean, error in zip(means[1:], errors[1:]):
        assert abs(float(mean)) < 3 * float(error)
