"""Discriminators trained by the clients and the generator by the server."""

import lightning
import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.flower.server.remote_data import RemoteTurn
from fedgen.losses import EmbeddedLoss
from fedgen.models import GAN, Hinge, WassersteinGP
from fedgen.models.networks import SmallCritic, SmallGenerator
from fedgen.seeds import seed_all
from tests.federated.rank_runs import pictures
from tests.losses.simple import MeanLoss, two_numbers
from tests.models.test_gan_games import make_conditional, train
from tests.quick import first_quick
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def make(**arguments):
    torch.manual_seed(0)
    networks = {"generator": SmallGenerator(latent_dim=3, width=4), "critic": SmallCritic(width=4)}
    options = {"loss": Hinge(), "n_critic": 2, "lr": 0.01, "generator_trained_by": "server", **arguments}
    return GAN(**networks, **options)


def federate(module, tmp_path, epochs, interval=4, ckpt_path=None, **options):
    strategy = FedAvgStrategy(interval, seed=0, **options)
    return train(module, tmp_path, epochs, strategy=strategy, ckpt_path=ckpt_path)


def copied(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("mode", first_quick(["reset", "keep", "average"]))
def test_clients_train_the_critic_and_the_server_its_generator_against_the_merged_one(tmp_path, mode):
    """A round of each turn is followed, after merging, by the plain steps of one Adam, whatever clients' Adams do."""
    module = make()
    rounds = []

    class Watching(ClientAlgorithm):
        def end_turn(self, client, model, iterations):
            rounds.append(copied(module))

    class Watched(type(module)):
        def on_round_end(self, iterations):
            rounds.append(copied(module))
            super().on_round_end(iterations)
            rounds.append(copied(module))

    module.__class__ = Watched
    before = copied(module)
    strategy = FedAvgStrategy(4, seed=0, optimizer_state=mode, client_algorithm=Watching())
    train(module, tmp_path, epochs=2, strategy=strategy)
    first = rounds[:5]
    for state in first:
        for name, value in state.items():  # weights, statistics and counters
            if name.startswith("generator."):
                assert torch.equal(value, before[name])
    assert len({tuple(state["critic.body.1.bias"].tolist()) for state in first}) == 5

    twin = make()
    stepping = torch.optim.Adam(twin.generator.parameters(), lr=0.01, betas=(0.0, 0.9))
    for round, (merged, done) in enumerate([(rounds[5], rounds[6]), (rounds[12], rounds[13])]):
        twin.critic.load_state_dict(
            {n.removeprefix("critic."): v for n, v in merged.items() if n.startswith("critic.")}
        )
        seed_all(0, "server", round)
        for _ in range(2):  # 4 iterations of a client, n_critic 2
            stepping.zero_grad()
            loss = -twin.critic(twin.generator(torch.randn(8, 3))).mean()
            loss.backward(inputs=list(twin.generator.parameters()))
            stepping.step()
        for name, value in twin.generator.state_dict().items():
            assert torch.equal(value, done[f"generator.{name}"]), name


def test_the_generator_does_not_travel(tmp_path):
    trainer = federate(make(), tmp_path, 1)
    assert trainer.strategy.exchange.shared.keys() == trainer.strategy.exchange.live.keys()
    assert all(name.startswith("critic.") for name in trainer.strategy.exchange.live)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
def test_a_resumed_run_ends_with_the_same_weights_and_the_same_adam(tmp_path, mode):
    def build():
        loss = EmbeddedLoss(MeanLoss(), [two_numbers()])
        return make(ema_decay=0.9, generator_losses=[loss])

    whole, first, second = build(), build(), build()
    trainer = federate(whole, tmp_path, 2, optimizer_state=mode)
    path = tmp_path / "half.ckpt"
    federate(first, tmp_path, 1, optimizer_state=mode).save_checkpoint(path)
    again = federate(second, tmp_path, 2, ckpt_path=path, optimizer_state=mode)
    found = copied(second)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, found[name]), name
    for ours, theirs in zip(trainer.optimizers[0].state.values(), again.optimizers[0].state.values()):
        assert int(ours["step"]) == 2 * 2
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_what_the_servers_losses_remember_is_the_servers(tmp_path):
    """Scores of the server's steps, on as many images as the clients' batches: 3 rounds of 2 steps of 8."""
    module = make(generator_losses=[EmbeddedLoss(MeanLoss("own"), [two_numbers()])])
    trainer = federate(module, tmp_path, 3)
    assert not trainer.strategy.exchange.personal
    assert float(module.embedded_losses[0].losses[0].seen) == 3 * 2 * 8
    assert module.embedded_losses[0].losses[0].client is None
    assert "mean_loss/two-numbers" in trainer.callback_metrics


class FailsLarge(lightning.Callback):
    """Ends the turn of the client with 13 images after its first batch."""

    def __init__(self):
        self.iterations = 0

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.strategy.in_turns and trainer.strategy.round.turn.num_examples == 13:
            self.iterations += 1
            if self.iterations == 2:
                raise RuntimeError("this turn fails")


@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 0:UserWarning")
@pytest.mark.parametrize(("fails", "largest"), [(False, 13), (True, 7)])
def test_the_servers_batches_are_as_large_as_those_of_the_clients_that_took_part(fails, largest, tmp_path):
    """Clients of 4, 13 and 7 images, each a batch; a round has two steps of the server."""
    module = make(generator_losses=[EmbeddedLoss(MeanLoss("own"), [two_numbers()])])
    trainer = quiet_trainer(
        strategy=FedAvgStrategy(4, seed=0), limit_val_batches=0, default_root_dir=tmp_path,
        callbacks=[FailsLarge()] if fails else [],
    )  # fmt: skip
    trainer.fit(module, FederatedDataModule(pictures(), Natural(), 100, held_out=0.0, seed=1))
    assert [one["name"] for one in trainer.strategy.left_out] == ["b"] * fails
    assert float(module.embedded_losses[0].losses[0].seen) == 2 * largest


def test_a_turn_that_is_refused_after_its_end_does_not_count():
    """What a hook changed may be refused: then a turn's end is told twice, the second time as not completed."""
    module = make()
    for number, images in enumerate((7, 13)):
        turn = RemoteTurn(number, "a", 0, images, 100)
        turn.is_first = number == 0
        module.on_turn_start(turn)
        module.on_turn_end(True)
    assert module._largest_batch == 13
    module.on_turn_end(False)
    assert module._largest_batch == 7


def test_without_a_federation_an_epoch_is_the_round(tmp_path):
    module, before = make(loss=WassersteinGP(), ema_decay=0.5), copied(make(ema_decay=0.5))
    trainer = train(module, tmp_path, iterations=5)
    assert {"critic_loss", "critic_gap", "generator_loss"} <= trainer.callback_metrics.keys()
    state = trainer.optimizers[0].state[module.generator.body[0].weight]
    assert int(state["step"]) == 5 // 2
    assert not torch.equal(module.generator.body[0].weight, before["generator.body.0.weight"])
    average = module.generator_ema.network.body[0].weight
    expected = 0.5**5 * before["generator.body.0.weight"] + (1 - 0.5**5) * module.generator.body[0].weight
    assert torch.allclose(average, expected, atol=1e-6)


@pytest.mark.slow
def test_a_conditional_generator_is_trained_on_the_datas_labels(tmp_path):
    module = make_conditional(n_critic=2, generator_trained_by="server")
    before = copied(module)
    train(module, tmp_path, strategy=FedAvgStrategy(4, seed=0))
    assert not torch.equal(module.generator.start[0].bias, before["generator.start.0.bias"])


def test_private_critics_have_no_merged_one(tmp_path):
    with pytest.raises(ValueError, match="personal"):
        federate(make(), tmp_path, 1, personal=["critic.*"])


def test_rounds_too_short_for_a_step_are_refused(tmp_path):
    with pytest.raises(ValueError, match="n_critic"):
        federate(make(n_critic=5), tmp_path, 1)
    with pytest.raises(ValueError, match="n_critic"):
        train(make(), tmp_path, iterations=1)
