"""The grouped jackknife of the corrected Fréchet distance, by hand; the distance in a subspace."""

import pytest
import torch

from fedgen.evaluation import Evaluator
from fedgen.evaluation.score_choice import choose
from fedgen.evaluation.splits import Split
from fedgen.scores import ClientSide, FrechetReference, GeneratedSet, frechet_distance
from fedgen.scores.frechet.few_images import JackknifeFrechetScore, JackknifeReference, SubspaceFrechetScore
from fedgen.statistics import Projection, pool, summarize

DIM = 8


def drawn(count, seed, scale=1.0, tails=False):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, DIM, generator=generator, dtype=torch.float64) * scale
    if tails:  # Student's t of 5 degrees
        squares = torch.randn(5, count, DIM, generator=generator, dtype=torch.float64).square().mean(0)
        points = points / squares.sqrt()
    return points


CLIENTS, GENERATED = [drawn(30, 1), drawn(41, 2, 1.3)], drawn(50, 3, 1.2)
WEIGHTS = torch.tensor([30 / 71, 41 / 71], dtype=torch.float64)


def distance(a, b):
    return frechet_distance(a, b, bias="corrected")[0]


def by_hand(groups):
    """Values without each group: of clients, then of the pool; by pooled summaries of what is left."""

    def left(features):
        numbers = torch.arange(len(features)) % groups
        return [summarize(features[numbers != group]) for group in range(groups)]

    whole = [*map(summarize, CLIENTS), summarize(torch.cat(CLIENTS))]
    made = torch.tensor([[distance(one, other) for other in left(GENERATED)] for one in whole], dtype=torch.float64)
    parts = [*map(left, CLIENTS)]
    parts.append([pool([parts[0][group], parts[1][group]]) for group in range(groups)])
    real = torch.tensor([[distance(one, summarize(GENERATED)) for one in of] for of in parts], dtype=torch.float64)
    return torch.tensor([distance(one, summarize(GENERATED)) for one in whole], dtype=torch.float64), made, real


@pytest.mark.parametrize("groups", [2, 8])
def test_values_and_errors_are_those_of_the_formula(groups):
    centre, made, real = by_hand(groups)
    values = centre - (groups - 1) * (made.mean(1) + real.mean(1) - 2 * centre)
    score = JackknifeReference.from_features(CLIENTS, groups=groups).score(GENERATED)
    assert score.name == "fidj"
    assert score.per_client.tolist() == pytest.approx(values[:2].tolist(), rel=1e-7)
    assert score.values["all"] == pytest.approx(float(values[2]), rel=1e-7)
    assert score.values["avg"] == pytest.approx(float(WEIGHTS @ values[:2]), rel=1e-7)

    def variance(rows):
        return (groups - 1) / groups * (rows - rows.mean(-1, keepdim=True)).square().sum(-1)

    average = variance(WEIGHTS @ made[:2]) + WEIGHTS.square() @ variance(real[:2])
    jackknife = {"avg": float(average) ** 0.5, "all": float(variance(made[2]) + variance(real[2])) ** 0.5}
    influence = FrechetReference.from_features(CLIENTS, bias="corrected").score(GENERATED).errors
    for how, error in jackknife.items():
        assert score.errors[how] == pytest.approx(max(error, influence[how]), rel=1e-6)
        parts = sum(part[how] ** 2 for part in score.error_parts.values()) ** 0.5
        assert parts == pytest.approx(score.errors[how])


@pytest.mark.slow
def test_of_heavy_tails_it_takes_off_what_the_correction_leaves():
    left = {"fidc": [], "fidj": []}
    for seed in range(30):
        real, made = drawn(24, 2 * seed, tails=True), drawn(24, 2 * seed + 1, tails=True)
        left["fidc"].append(distance(summarize(real), summarize(made)))
        left["fidj"].append(JackknifeReference.from_features([real]).score(made, errors=False).values["all"])
    means = {name: sum(values) / len(values) for name, values in left.items()}
    error = torch.tensor(left["fidj"]).std() / 30**0.5
    assert means["fidc"] > 4 * error
    assert abs(means["fidj"]) < 2.5 * error


@pytest.mark.slow
def test_groups_sums_give_what_features_give():
    def groups(features):
        return [summarize(features[group::8]) for group in range(8)]

    ours = JackknifeReference.from_features(CLIENTS, "uniform").score(GENERATED, errors=False)
    theirs = JackknifeReference.from_features(map(groups, CLIENTS), "uniform").score(groups(GENERATED), errors=False)
    assert theirs.values == pytest.approx(ours.values, rel=1e-8)


TWICE = {"beside": lambda part: part.repeat_interleave(2, 0), "behind": lambda part: part.repeat(2, 1)}


@pytest.mark.parametrize("place", TWICE)
def test_copies_of_a_clients_images_lie_in_one_group_and_count_once(place):
    """In several groups a set would lose none of its images with a group, and yet be taken for a smaller one."""
    once = JackknifeReference.from_features([drawn(40, 1)]).score(drawn(40, 2))
    twice = JackknifeReference.from_features([TWICE[place](drawn(40, 1))]).score(drawn(40, 2))
    assert twice.values["all"] == pytest.approx(once.values["all"], rel=1e-6)
    assert twice.notes == ("images of 1 of 1 clients occur twice, and count once",)


def test_images_that_two_clients_share_lie_in_one_group():
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    once = JackknifeReference.from_features([drawn(40, 1)]).score(drawn(40, 2), errors=False)
    shared = JackknifeReference.from_features([drawn(40, 1), drawn(40, 1)[order]]).score(drawn(40, 2), errors=False)
    assert shared.values["all"] == pytest.approx(once.values["all"], rel=1e-6)


def test_a_generator_that_repeats_itself_has_about_the_value_without_the_jackknife():
    chosen = torch.randint(20, (400,), generator=torch.Generator().manual_seed(0))
    real, made = drawn(400, 1), drawn(20, 2)[chosen]
    found = JackknifeReference.from_features([real]).score(made, errors=False)
    assert found.values["all"] == pytest.approx(distance(summarize(real), summarize(made)), rel=0.01)


@pytest.mark.parametrize(
    ("clients", "generated", "said"),
    [
        ([drawn(10, 1)], drawn(50, 2), "client 0 without 1 / 8 has 8 images"),
        ([drawn(50, 1)], drawn(10, 2), "generated set without 1 / 8"),
        ([drawn(5, 1)], drawn(50, 2), "5 images cannot be cut into 8 groups"),
    ],
)
def test_too_few_images_are_refused_with_their_name(clients, generated, said):
    with pytest.raises(ValueError, match=said):
        JackknifeReference.from_features(clients).score(generated)


def test_the_score_is_asked_for_by_name_with_its_groups():
    with pytest.raises(ValueError, match="groups"):
        choose({"name": "fidj", "groups": 1})
    found = JackknifeFrechetScore(groups=4).fit(ClientSide(CLIENTS, "examples")).score(GeneratedSet(GENERATED), False)
    assert found["fidj"].values == JackknifeReference(CLIENTS, groups=4).score(GENERATED, False).values


def test_a_subspace_is_chosen_by_held_out_images_and_named():
    held_out = [drawn(60, 5), drawn(60, 6)]
    projection = Projection.fit(torch.cat(held_out), 3)
    few = [client[:9] for client in CLIENTS]
    expected = FrechetReference.from_features(map(projection.project, few), bias="corrected")
    side = ClientSide(few, "examples", held_out)
    found = SubspaceFrechetScore(dim=3).fit(side).score(GeneratedSet(GENERATED), True)["fidc_d64"]
    assert found.values == expected.score(projection.project(GENERATED)).values
    assert choose({"name": "fidc_d64", "dim": 3}).name == "fidc_d3"
    with pytest.raises(ValueError, match="held-out"):
        SubspaceFrechetScore().prepare(ClientSide(few, "examples"))


def test_evaluations_have_all_of_them_beside_each_other():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 60, 1, 2, 2), generator=generator, dtype=torch.uint8)
    train, report = (
        Split(name, images[place : place + 2].flatten(0, 1), (60, 60), "noise")
        for place, name in ((0, "train"), (2, "report"))
    )
    scores = ["fid", "fidc", {"name": "fidj", "groups": 4}, {"name": "fidc_d64", "dim": 2}]
    judge = Evaluator([train, report], ["pixels"], num_images=80, scores=scores, seed=0)

    def sample(number, draws):
        return torch.rand(number, 1, 2, 2, generator=draws) * 2 - 1

    records = judge.evaluate(sample).records
    named = {judge.columns.name(record): record for record in records}
    assert sorted(named) == sorted(judge.column_names())
    assert {"fid_all", "fidc_all", "fidj_avg", "fidc_d2_all", "report/fidc_avg"} <= named.keys()
    assert "report/fidc_d2_all" not in named
    assert named["fidc_d2_all"].score_settings == {"dim": 2}
    assert all(
        abs(named[name].value) < 4 * named[name].standard_error for name in ("fidc_all", "fidj_all", "fidc_d2_all")
    )
    assert named["fid_all"].value > named["fidc_all"].value


def noise_of(name, counts, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (sum(counts), 1, 2, 2), generator=generator, dtype=torch.uint8)
    return Split(name, images, counts, "noise")


def test_a_split_of_small_clients_is_left_out_and_the_first_is_refused():
    splits = [noise_of("train", (40, 50), 0), noise_of("report", (40, 5), 1)]
    judge = Evaluator(splits, ["pixels"], num_images=30, scores=["fidc", "kid"], seed=0)
    with pytest.warns(
        UserWarning, match="left out on split 'report': client 'client 1' of split 'report' has 5 images"
    ):
        records = judge.evaluate(lambda number, draws: torch.rand(number, 1, 2, 2, generator=draws) * 2 - 1).records
    assert {(one.split, one.score) for one in records} >= {("train", "fidc"), ("report", "kid")}
    assert ("report", "fidc") not in {(one.split, one.score) for one in records}
    with pytest.raises(ValueError, match="client 'client 1' of split 'train' has 5 images"):
        Evaluator([noise_of("train", (40, 5), 1)], ["pixels"], num_images=30, scores=["fidc"]).prepare()
    with pytest.raises(ValueError, match="num_images"):
        Evaluator([noise_of("train", (40, 50), 1)], ["pixels"], num_images=5, scores=["fidc"]).prepare()
