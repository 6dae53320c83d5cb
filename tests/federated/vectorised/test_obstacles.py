"""What has turns taken one by one, and that it is said."""

import logging

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from fedgen import Digits
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.federated import ClientSpeeds, FedAvgStrategy, FedBuffStrategy, FedProx
from fedgen.losses import EmbeddedLoss, MMD2Loss
from fedgen.models import DDPM, GAN, WGANGP, FlowMatching
from fedgen.models.adversarial import Hinge, WassersteinGP
from fedgen.models.networks import SmallCritic, SmallGenerator
from fedgen.models.optional_hooks import overridden_below
from tests.federated.modules import Automatic, Contiguous, make_trainer
from tests.federated.vectorised.modules import ALWAYS, Alone, Field, Pair, at_once, fit, make_data
from tests.quick import first_quick


class OwnStep(Alone):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


class OwnHook(Alone):
    def on_before_optimizer_step(self, optimizer):
        self.net.layers[0].weight.grad.zero_()


class OwnTurn(Alone):
    def on_turn_start(self, turn):
        super().on_turn_start(turn)


class Dropout(Alone):
    def __init__(self):
        super().__init__()
        self.net.layers.append(nn.Dropout(0.1))


class Scheduled(Alone):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": StepLR(optimizer, 2), "interval": "step"}]


class Hooked(Alone):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.register_step_pre_hook(lambda *_: None)
        return optimizer


class Chooses(Alone):
    """Decides by a value."""

    def noted_loss(self, batch, drawn):
        loss, noted = super().noted_loss(batch, drawn)
        return (loss if float(loss.detach()) > 0 else -loss), noted


class DrawsLate(Alone):
    def noted_loss(self, batch, drawn):
        loss, noted = super().noted_loss(batch, drawn)
        return loss + 0 * torch.rand(()), noted


class Gradients(Callback):
    def on_after_backward(self, trainer, pl_module):
        pass


MODULES = {
    "no functions": (Automatic, {}, "Automatic does not give its steps as functions"),
    "own step": (OwnStep, {}, "OwnStep overrides training_step, and not functional_steps"),
    "own hook": (OwnHook, {}, "OwnHook overrides on_before_optimizer_step"),
    "own turn": (OwnTurn, {}, "OwnTurn overrides on_turn_start"),
    "dropout": (Dropout, {}, "net.layers.4 draws within the network"),
    "schedule": (Scheduled, {}, "a learning rate has a schedule by the step"),
    "hooked": (Hooked, {}, "Adam has hooks around its steps"),
    "optimizer": (lambda: Alone("RMSprop"), {}, "RMSprop has no form for many clients"),
    "by values": (Chooses, {}, "vmap"),
    "late draws": (DrawsLate, {}, "random"),
    "algorithm": (Alone, {"client_algorithm": FedProx(0.1)}, "FedProx acts on each step"),
    "accumulation": (Alone, {"trainer": {"accumulate_grad_batches": 2}}, "accumulated over 2 batches"),
    "callback": (Alone, {"trainer": {"callbacks": [Gradients()]}}, "Gradients.on_after_backward is called at each"),
    "precision": (Pair, {"trainer": {"precision": "bf16-mixed"}}, "precision=bf16-mixed is for one client"),
}


@pytest.mark.parametrize("name", first_quick(MODULES, of=3))
def test_what_has_no_form_for_many_clients_is_trained_one_by_one_and_the_log_says_why(name, caplog):
    make, options, said = MODULES[name]
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        found = at_once(fit(make(), ALWAYS, rounds=2, **{"trainer": {"precision": "32-true"}, **options}))
    assert found.counts == [10, 0]
    assert said in found.reason
    assert caplog.text.count("vectorised_turns: clients' turns are taken one by one") == 1
    assert found.reason in caplog.text


def test_batches_that_are_read_from_a_data_set_are_trained_on_one_by_one():
    points, labels = torch.randn(20, 3), torch.arange(20) % 2
    data = FederatedDataModule(
        TensorDataset(points, labels), Contiguous((8, 6, 6)), 4, held_out=0.0, labels=labels.tolist()
    )
    found = at_once(fit(Alone(), ALWAYS, rounds=1, data=data, trainer={"precision": "32-true"}))
    assert found.reason == "batches are read while turns run"


def test_clients_that_start_from_different_rounds_take_their_turns_one_by_one():
    strategy = FedBuffStrategy(2, 3, speeds=ClientSpeeds(), communication_interval=2, seed=0, vectorised_turns=ALWAYS)
    trainer = make_trainer(strategy, 3)
    trainer.fit(Alone(), make_data((12, 20, 8, 8, 9)))
    assert at_once(trainer).reason == "clients start from weights of different rounds"


class Own(WassersteinGP):
    def critic_loss(self, critic, real, fake):
        return super().critic_loss(critic, real, 0.9 * fake)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: WGANGP(SmallGenerator(), SmallCritic(), compile=True), "compile=True"),
        (lambda: GAN(SmallGenerator(), SmallCritic(), Hinge(), generator_trained_by="server"), "trains on the server"),
        (lambda: GAN(SmallGenerator(), SmallCritic(), Own()), "Own overrides critic_loss, and not drawn_critic_loss"),
        (
            lambda: WGANGP(SmallGenerator(), SmallCritic(), generator_losses=[EmbeddedLoss(MMD2Loss(), ["pixels"])]),
            "a loss of its own, EmbeddedLoss",
        ),
        (lambda: DDPM(Field(), compile=True), "compile=True"),
    ],
)
def test_models_of_the_kit_say_what_they_cannot(model, said):
    assert said in model().no_functional_steps


@pytest.mark.slow
def test_a_network_that_somebody_has_compiled_is_trained_one_by_one():
    module = FlowMatching(Field())
    module.network.compile(backend="eager")
    data = FederatedDataModule(Digits(), IID(200), batch_size=8, held_out=0.0)
    trainer = make_trainer(FedAvgStrategy(2, cohort_size=2, seed=0, vectorised_turns=ALWAYS), 1)
    trainer.fit(module, data)  # itself: a copy would not be compiled
    found = at_once(trainer)
    assert found.reason == "network is compiled, or its forward is replaced"


def test_only_classes_below_the_one_that_gives_the_functions_override_what_they_stand_for():
    class Below(Pair):
        def draw(self, batch):
            return super().draw(batch)

    assert overridden_below(Pair(), "functional_steps", ["training_step", "no_such"]) is None
    assert overridden_below(Below(), "functional_steps", ["training_step"]) is None
    assert overridden_below(Below(), "functional_steps", ["draw"]) == "Below overrides draw, and not functional_steps"
