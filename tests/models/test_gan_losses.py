"""GANs that train on scores of their images, alone and over clients."""

import copy

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.evaluation.runs.rebuild import load_weights
from fedgen.federated import FedAvgStrategy, PrivateMean
from fedgen.losses import AdaptiveWeight, EMAMoments, EmbeddedLoss, FastFIDLoss, QueueMoments
from fedgen.models import WGANGP
from tests.losses.simple import MeanLoss, two_numbers
from tests.trainers import quiet_trainer


def embedded(aggregate="all", **options):
    return EmbeddedLoss(MeanLoss(aggregate), [two_numbers()], **options)


def federate(module, tmp_path, rounds=2, strategy=None, ckpt_path=None, partition=None, **options):
    data = FederatedDataModule(Digits(), partition or ByClass(classes_per_client=5), batch_size=8, seed=0)
    trainer = quiet_trainer(
        rounds,
        strategy=strategy or FedAvgStrategy(communication_interval=2, seed=0),
        num_sanity_val_steps=0,
        limit_val_batches=0,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.generator.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_the_score_pulls_the_generator_towards_the_clients(make_gan, tmp_path, separate):
    """With the adversarial loss drowned, the images' mean and mean square go to the digits'."""
    module = make_gan(
        n_critic=1,
        lr=0.02,
        generator_losses=[embedded(weight=1000.0, separate=separate, chunk=4 if separate else None)],
    )
    trainer = federate(module, tmp_path, rounds=1)
    before = trainer.callback_metrics["mean_loss/two-numbers"]
    trainer = federate(module, tmp_path, rounds=8)
    assert trainer.callback_metrics["mean_loss/two-numbers"] < before / 4
    assert trainer.callback_metrics["mean_loss/weight"] == 1000


def test_a_weight_of_zero_changes_nothing(make_gan, tmp_path):
    plain = make_gan(n_critic=1, lr=0.01)
    other = make_gan(n_critic=1, lr=0.01, generator_losses=[embedded(weight=0.0)])
    federate(plain, tmp_path)
    federate(other, tmp_path)
    assert torch.equal(weights(plain), weights(other))


def test_a_second_pass_may_have_more_images_than_the_batch(make_gan, tmp_path):
    module = make_gan(n_critic=1, generator_losses=[embedded(separate=True, num_images=20, chunk=8)])
    trainer = federate(module, tmp_path, rounds=1)
    seen = [float(slot["loss_modules.0.losses.0.seen"]) for slot in trainer.strategy.personal_tensors.values()]
    assert seen == [2 * 20] * 2


@pytest.mark.slow
def test_what_a_loss_remembers_is_each_clients_own_and_survives_resuming(make_gan, tmp_path):
    def build():
        return make_gan(n_critic=1, lr=0.01, generator_losses=[embedded(weight=AdaptiveWeight())])

    whole = build()
    trainer = federate(whole, tmp_path, rounds=2)
    memory = trainer.strategy.personal_tensors
    assert [float(slot["loss_modules.0.losses.0.seen"]) for slot in memory.values()] == [2 * 2 * 8] * 2
    assert len({float(slot["loss_modules.0.weight.magnitudes"][0]) for slot in memory.values()}) == 2
    first = build()
    path = tmp_path / "half.ckpt"
    federate(first, tmp_path, rounds=1).save_checkpoint(path)
    second = build()
    federate(second, tmp_path, rounds=2, ckpt_path=path)
    assert torch.equal(weights(second), weights(whole))


def test_own_means_the_client_whose_turn_it_is_and_nobody_in_pooled_training(make_gan, tmp_path):
    turns = []

    class Listening(MeanLoss):
        def start_turn(self, client):
            super().start_turn(client)
            turns.append(client)

    loss = EmbeddedLoss(Listening("own"), [two_numbers()])
    federate(make_gan(n_critic=1, generator_losses=[loss]), tmp_path, rounds=1)
    assert turns == [0, None, 1, None]
    turns.clear()
    data = FederatedDataModule(Digits(), ByClass(), batch_size=8, iterations=3, seed=0)
    trainer = quiet_trainer(limit_val_batches=0, default_root_dir=tmp_path)
    trainer.fit(make_gan(n_critic=1, generator_losses=[EmbeddedLoss(Listening("own"), [two_numbers()])]), data)
    assert turns == [None] * 6


@pytest.mark.slow
def test_a_private_mean_takes_no_loss_through_which_a_client_is_in_others_updates(make_gan, tmp_path):
    def fit(loss, **options):
        strategy = FedAvgStrategy(2, seed=0, client_weights="uniform", aggregator=PrivateMean(1.0, 1.0))
        federate(make_gan(n_critic=1, generator_losses=[loss], **options), tmp_path, rounds=1, strategy=strategy)

    for aggregate, options in (("all", {}), ("avg", {}), ("own", {"generator_trained_by": "server"})):
        with pytest.raises(MisconfigurationException, match="update"):
            fit(embedded(aggregate), **options)
    fit(embedded("own"))
    fit(embedded().set_references([torch.zeros(9, 1, 8, 8, dtype=torch.uint8)]))


def test_no_clients_turn_is_on_after_a_round(make_gan, tmp_path):
    module = make_gan(n_critic=1, generator_losses=[embedded("own")])
    federate(module, tmp_path, rounds=1)
    assert module.embedded_losses[0].losses[0].client is None


def test_two_losses_of_one_score_are_logged_apart(make_gan, tmp_path):
    losses = [embedded(weight=1.0), embedded("own", weight=3.0)]
    metrics = federate(make_gan(n_critic=1, generator_losses=losses), tmp_path, rounds=1).callback_metrics
    assert (metrics["mean_loss/weight"], metrics["mean_loss_2/weight"]) == (1.0, 3.0)
    assert metrics["mean_loss/two-numbers"] != metrics["mean_loss_2/two-numbers"]


@pytest.mark.slow
def test_fitting_again_takes_the_references_of_the_data_at_hand_but_keeps_those_set_before(make_gan, tmp_path):
    given = embedded()
    given.set_references([torch.zeros(4, 1, 8, 8, dtype=torch.uint8)])
    module = make_gan(n_critic=1, generator_losses=[embedded(), given])
    for classes, number in ((2, 5), (5, 2)):
        federate(module, tmp_path, rounds=1, partition=ByClass(classes_per_client=classes))
        assert [len(loss.losses[0].means) for loss in module.embedded_losses] == [number, 1]


def test_scores_know_what_was_trained_on(make_gan):
    assert make_gan().optimised_on == []
    assert make_gan(generator_losses=[embedded(), torch.nn.Identity()]).optimised_on == ["two-numbers"]


def test_a_loss_of_features_needs_an_embedding(make_gan):
    with pytest.raises(ValueError, match="EmbeddedLoss"):
        make_gan(generator_losses=[FastFIDLoss()])


def test_data_without_clients_need_references_set_before(make_gan, fit):
    with pytest.raises(ValueError, match="set_references"):
        fit(make_gan(n_critic=1, generator_losses=[embedded()]))
    loss = embedded()
    loss.set_references([torch.zeros(4, 1, 8, 8, dtype=torch.uint8)])
    fit(make_gan(n_critic=1, generator_losses=[loss]))
    assert loss.losses[0].seen == 8


def test_a_saved_model_samples_without_its_losses(make_gan, tmp_path):
    module = make_gan(n_critic=1, generator_losses=[embedded(weight=AdaptiveWeight())])
    path = tmp_path / "model.ckpt"
    federate(module, tmp_path, rounds=1).save_checkpoint(path)
    again = WGANGP.load_from_checkpoint(path, weights_only=True)
    draws = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(again.sample(4, draws[0]), module.sample(4, draws[1]))


@pytest.mark.parametrize("separate", [False, True])
def test_mixed_precision_trains_with_a_score_of_full_precision(make_gan, tmp_path, separate):
    loss = EmbeddedLoss(FastFIDLoss(), [two_numbers()], separate=separate, chunk=4 if separate else None)
    module = make_gan(n_critic=1, lr=0.01, generator_losses=[loss])
    before = weights(module).clone()
    trainer = federate(module, tmp_path, rounds=1, precision="bf16-mixed")
    assert not torch.equal(weights(module), before)
    assert torch.isfinite(weights(module)).all()
    assert trainer.callback_metrics["fid_loss/two-numbers"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("moments", [QueueMoments(40), EMAMoments(0.9)])
def test_a_queue_or_an_average_survives_resuming_to_the_bit(make_gan, tmp_path, moments):
    def build():
        loss = EmbeddedLoss(FastFIDLoss(copy.deepcopy(moments)), [two_numbers()], weight=AdaptiveWeight())
        return make_gan(n_critic=1, lr=0.01, generator_losses=[loss])

    whole, first, second = build(), build(), build()
    federate(whole, tmp_path, rounds=4)
    path = tmp_path / "half.ckpt"
    federate(first, tmp_path, rounds=2).save_checkpoint(path)
    federate(second, tmp_path, rounds=4, ckpt_path=path)
    assert torch.equal(weights(second), weights(whole))
    # rebuilt from its recipe, without references, a model takes the checkpoint as it is
    load_weights(build(), path)
