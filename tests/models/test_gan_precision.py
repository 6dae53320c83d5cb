"""Half precision under manual optimisation: the same gradients, and a grad scaler that two optimizers and all clients
share."""

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.losses import EmbeddedLoss
from fedgen.models import GAN, Hinge, NonSaturating, WassersteinGP
from fedgen.models.networks import DCGANCritic, DCGANGenerator
from tests.losses.simple import MeanLoss, two_numbers
from tests.models.test_gan_games import Seed, make_conditional, train
from tests.quick import first_quick
from tests.trainers import same_state

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def make(loss, **arguments):
    torch.manual_seed(0)
    return GAN(DCGANGenerator(8, 1, 3, 8), DCGANCritic(8, 1, 8), loss, lr=0.01, **arguments)


def half(dtype, scale=2.0**16):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return MixedPrecision("16-mixed", "cpu", scaler) if dtype == "16-mixed" else MixedPrecision("bf16-mixed", "cpu")


def gradients(module):
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])


CASES = [
    ("bf16-mixed", WassersteinGP(), None),
    ("16-mixed", Hinge(), True),
    ("16-mixed", WassersteinGP(), None),
    ("bf16-mixed", WassersteinGP(), True),
    ("16-mixed", Hinge(), None),
    ("16-mixed", WassersteinGP(), False),
    ("bf16-mixed", NonSaturating(), None),
    ("bf16-mixed", NonSaturating(), False),
]


@pytest.mark.parametrize(("dtype", "loss", "separate"), first_quick(CASES, of=2, several=True))
def test_one_iteration_has_the_gradients_of_full_precision(dtype, loss, separate, tmp_path):
    """The generator's too, which needs the critic as it is after its step, not a copy of half precision from before.

    Adam turns the critic's least gradients into full steps by their signs, so the generator's differ, by as much as
    bfloat16 is rounded on a CPU: 0.3 where its products are not the processor's own. A critic without its step: 0.94.
    The critic's own differ by 0.021 where they are (AMX), by less elsewhere.
    """

    def build():
        extra = EmbeddedLoss(MeanLoss(), [two_numbers()], separate=bool(separate), chunk=4 if separate else None)
        return make(loss, critic_lr=0.2, generator_losses=[] if separate is None else [extra])

    expected, found = build(), build()
    train(expected, tmp_path, iterations=1, callbacks=[Seed()])
    train(found, tmp_path, iterations=1, callbacks=[Seed()], plugins=[half(dtype, 2.0**7)])
    for network, tolerance in (("generator", 0.5), ("critic", 0.03)):
        a, b = gradients(getattr(expected, network)), gradients(getattr(found, network))
        assert a.norm() > 0
        assert (a - b).norm() < tolerance * a.norm(), network


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16-mixed", "16-mixed"])
def test_spectral_norm_and_attention_train_in_half_precision(dtype, tmp_path):
    module = make_conditional(lr=0.01)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    train(module, tmp_path, strategy=FedAvgStrategy(2, seed=0), plugins=[half(dtype, 2.0**7)])
    state = module.state_dict()
    assert all(torch.isfinite(value).all() and value.dtype == before[name].dtype for name, value in state.items())
    assert not torch.equal(state["generator.start.0.bias"], before["generator.start.0.bias"])
    assert not torch.equal(state["critic.head.score.bias"], before["critic.head.score.bias"])


@pytest.mark.slow
def test_a_skipped_step_changes_nothing_and_the_next_ones_go_on(tmp_path):
    """A scale that overflows: the critic's step is skipped, then the generator's, until halving has helped."""
    module = make(Hinge())
    before = {name: value.clone() for name, value in module.named_parameters()}
    plugin = half("16-mixed", scale=2.0**40)
    trainer = train(module, tmp_path, iterations=2, plugins=[plugin])
    assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())
    assert all(not optimizer.state for optimizer in trainer.optimizers)
    assert plugin.scaler.get_scale() == 2.0**36  # halved at each of four steps
    assert torch.isfinite(trainer.callback_metrics["generator_loss"])

    module, plugin = make(Hinge()), half("16-mixed", scale=2.0**40)
    trainer = train(module, tmp_path, iterations=30, plugins=[plugin])
    steps = [int(next(iter(optimizer.state.values()))["step"]) for optimizer in trainer.optimizers]
    assert all(10 < count < 30 for count in steps)
    assert 60 - sum(steps) == 40 - plugin.scaler.get_scale().__int__().bit_length() + 1
    assert all(torch.isfinite(value).all() for value in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("trained_by", ["clients", "server"])
def test_every_client_starts_with_the_rounds_scale_and_resuming_keeps_it_to_the_bit(tmp_path, trained_by):
    scales, plugins = [], []

    class Watching(ClientAlgorithm):
        def start_turn(self, client, model, server):
            scales.append(plugins[-1].scaler.get_scale())

    def run(epochs, ckpt_path=None):
        module = make(Hinge(), n_critic=2, generator_trained_by=trained_by)
        plugins.append(half("16-mixed", scale=2.0**30))
        options = {"strategy": FedAvgStrategy(2, seed=0, client_algorithm=Watching()), "plugins": plugins[-1:]}
        return module, train(module, tmp_path, epochs, ckpt_path=ckpt_path, **options)

    whole, _ = run(3)
    rounds = [scales[5 * round : 5 * (round + 1)] for round in range(3)]
    assert all(len(set(turns)) == 1 for turns in rounds)
    assert rounds[0][0] == 2.0**30 > rounds[1][0] > rounds[2][0]
    path = tmp_path / "half.ckpt"
    run(1)[1].save_checkpoint(path)
    resumed, _ = run(3, path)
    assert same_state(whole, resumed)
