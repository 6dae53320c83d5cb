"""Half precision under automatic optimisation: the same gradients, averages and means, and a grad scaler that all
clients share."""

import lightning
import pytest
import torch
from torch import nn

from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from fedgen.models import DDPM
from tests.models.test_gan_games import Seed, train
from tests.models.test_gan_precision import gradients, half
from tests.trainers import same_state

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode)")


def weights(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


class Constant(nn.Module):
    """Predicts the same number everywhere."""

    image_shape = (1, 2, 2)

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(0.5))

    def forward(self, images, timesteps):
        return self.value.expand(images.shape)


# ---- mixed precision ----


@pytest.mark.parametrize("dtype", ["bf16-mixed", "16-mixed"])
def test_one_iteration_has_the_gradients_of_full_precision(make_ddpm, dtype, tmp_path):
    expected, found = make_ddpm(ema_decay=None), make_ddpm(ema_decay=None)
    train(expected, tmp_path, iterations=1, callbacks=[Seed()])
    train(found, tmp_path, iterations=1, callbacks=[Seed()], plugins=[half(dtype, 2.0**10)])
    a, b = gradients(expected), gradients(found)
    assert a.norm() > 0
    assert 0 < (a - b).norm() < 0.03 * a.norm()


@pytest.mark.slow
def test_every_client_starts_with_the_rounds_scale_and_resuming_keeps_it_to_the_bit(make_ddpm, tmp_path):
    """From a scale that overflows, with gradients that are clipped after it is taken off."""
    scales, plugins = [], []

    class Watching(ClientAlgorithm):
        def start_turn(self, client, model, server):
            scales.append(plugins[-1].scaler.get_scale())

    def run(epochs, ckpt_path=None):
        module = make_ddpm(ema_decay=0.9, lr=0.01)
        strategy = FedAvgStrategy(2, cohort_size=3, seed=0, client_algorithm=Watching())
        plugins.append(half("16-mixed", scale=2.0**22))
        options = {"plugins": plugins[-1:], "gradient_clip_val": 1.0}
        return module, train(module, tmp_path, epochs, strategy=strategy, ckpt_path=ckpt_path, **options)

    whole, trainer = run(3)
    rounds = [scales[3 * round : 3 * (round + 1)] for round in range(3)]
    assert all(len(set(turns)) == 1 for turns in rounds)
    assert rounds[0][0] == 2.0**22 > rounds[1][0] > rounds[2][0]
    assert trainer.strategy.left_out == []
    assert not torch.equal(weights(whole.network), weights(make_ddpm().network))
    path = tmp_path / "half.ckpt"
    run(1)[1].save_checkpoint(path)
    resumed, _ = run(3, path)
    assert same_state(whole, resumed)


# ---- weights in half precision ----


def test_the_average_of_weights_in_half_precision_moves(make_ddpm, fit):
    """By 0.0004 of the difference, which half precision would round away."""
    module = make_ddpm(ema_decay=0.9999, ema_warmup=False, lr=0.01)
    before = weights(module.network)
    fit(module, precision="bf16-true")
    after = weights(module.network)
    assert after.dtype == torch.bfloat16
    expected = before + (1 - 0.9999**4) * (after.float() - before)
    assert torch.allclose(weights(module.averaged), expected, rtol=0, atol=1e-7)
    assert (expected - before).abs().max() > 1e-6


@pytest.mark.slow
def test_the_rounds_mean_counts_every_iteration(fit):
    """In bfloat16 the count would stop at 256."""
    losses = []

    class Losses(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, *_):
            losses.append(float(outputs["loss"]))

    logged = fit(DDPM(Constant()), batches=400, shape=(1, 2, 2), callbacks=[Losses()], precision="bf16-true")
    assert len(losses) == 400
    assert float(logged.callback_metrics["loss"]) == pytest.approx(sum(losses) / 400, rel=1e-5)
