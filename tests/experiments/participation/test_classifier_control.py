"""The classifier beside the published tables."""

import pytest
import torch

from fedgen import FedAvgStrategy, FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from fedgen.evaluation import evaluate
from fedgen.experiments.engine.gaps import GapScores
from fedgen.experiments.participation.group_norm_classifier import GroupNormClassifier
from fedgen.experiments.participation.participation_gap import (
    CENTRAL,
    PLAIN,
    ClassifierChoice,
    classifier_outcomes,
    natural_tails,
    verdicts,
)
from tests.trainers import quiet_trainer


def halves(count=400, seed=0):
    """Images of 4 x 4 pixels whose left (class 0) or right half (class 1) is brighter, plainly."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = torch.randint(0, 100, (count, 1, 4, 4), generator=draws, dtype=torch.uint8)
    images[labels == 0, :, :, :2] += 100
    images[labels == 1, :, :, 2:] += 100
    return Examples(images, labels, "halves", ("left", "right"))


def test_the_classifier_learns_by_federated_averaging_and_its_loss_is_the_error_rate():
    torch.manual_seed(0)
    model = GroupNormClassifier(image_size=4, num_classes=2, widths=(4,), lr=0.1)
    data = FederatedDataModule(halves(), IID(4), batch_size=20, held_out=0.2, seed=0)
    strategy = FedAvgStrategy(communication_interval=4, cohort_size=2)
    quiet_trainer(10, strategy=strategy).fit(model, data)
    after = evaluate(model, data, embeddings=["pixels"], num_images=10, scores=["loss"])
    assert after[0].value < 0.02
    images, labels = torch.zeros(4, 1, 4, 4), torch.tensor([0, 1, 1, 0])
    guess = int(model(images[:1]).argmax())
    assert model.example_losses(images, labels).tolist() == [float(guess != label) for label in labels.tolist()]


@pytest.mark.parametrize("wrong", [{"widths": (3,)}, {"image_size": 2}, {"num_classes": 1}])
def test_sizes_that_leave_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="halves"):
        GroupNormClassifier(**{"image_size": 4, "widths": (4, 8), **wrong})


def test_errors_need_labels():
    with pytest.raises(ValueError, match="labels"):
        GroupNormClassifier(image_size=4).example_losses(torch.zeros(2, 1, 4, 4), None)


@pytest.mark.slow
def test_arms_are_four_partitions_and_two_controls():
    arms = {arm.name: arm for arm in ClassifierChoice().arms}
    assert list(arms) == ["natural", "semantic", "Dirichlet", "random", PLAIN, CENTRAL]
    assert arms[PLAIN].settings == {"trainer.strategy.init_args.server_optimizer": None}
    assert arms[CENTRAL].control == "centralised"


def curves(train, val, unpart, step=0.0):
    """Two seeds' curves of one arm: the second has `step` more on clients that train, and twice that on others."""
    found = {}
    for seed in (0, 1):
        by_split = {"part_train": train, "part_val": val + seed * step, "unpart": unpart + 2 * seed * step}
        values = {split: [value] for split, value in by_split.items()}
        values |= {"gap/out_of_sample": [values["part_val"][0] - train]}
        values |= {"gap/participation": [values["unpart"][0] - values["part_val"][0]]}
        errors = {gap: [0.001] for gap in ("gap/out_of_sample", "gap/participation")}
        found[str(seed)] = {"loss avg": {"rounds": [9], "values": values, "errors": errors, "clients": 8}}
    return found


def test_what_the_paper_says_is_held_against_what_was_found():
    found = {
        "natural": curves(0.0, 0.1, 0.2),
        "semantic": curves(0.0, 0.1, 0.1, 0.001),
        "Dirichlet": curves(0.0, 0.1, 0.2),
        "random": curves(0.0, 0.1, 0.1),
        PLAIN: curves(0.1, 0.2, 0.3, 0.001),
        CENTRAL: curves(0.0, 0.2, 0.3, 0.001),
    }
    said = "\n".join(verdicts(GapScores(found), classifier_outcomes))
    for line in (
        "as expected: natural: the participation gap in loss avg is +0.1",
        "cannot be told from 0: semantic: the participation gap in loss avg is +0.0005",
        "not seen: Dirichlet: the participation gap in loss avg is +0.1",
        "cannot be told from 0, where none was expected: random: the participation gap in loss avg is +0",
        "as expected: natural: the out of sample gap in loss avg is +0.1",
        "not seen: centralised, fewer errors on part_val: +0.1",
        "as expected: FedAvgM, fewer errors than FedAvg on unpart: -0.1",
        "as expected: a larger participation gap of natural clients than of random ones: +0.1",
        "cannot be told from these 2 seeds: a larger participation gap of semantic clients than of random ones",
        "FedAvgM: the participation gap beside FedAvg cannot be told apart: -0.0005",
    ):
        assert line in said


def test_tails_compare_seen_and_unseen_clients():
    own = {"part_val": {"pct95": [0.2], "pct50": [0.1]}, "unpart": {"pct95": [0.5], "pct50": [0.1]}}
    spread = {arm: {"0": {"loss": own}, "1": {"loss": own}} for arm in ("natural", CENTRAL)}
    said = natural_tails(spread, "errors")
    assert said[0].startswith("as expected: natural: the 95th percentile")
    assert said[1].startswith("not seen: natural: the median")
