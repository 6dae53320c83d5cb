import pytest
import torch
from torch import nn

from fedgen.models.ema import EMA, averages_of, with_averages


class Point(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([float(value)]))
        self.register_buffer("statistic", torch.tensor([float(value)]))
        self.register_buffer("count", torch.tensor(int(value)))


def test_starts_as_a_frozen_copy_in_eval_mode():
    network = Point(3)
    ema = EMA(network)
    with torch.no_grad():
        network.weight.zero_()
    assert ema.network.weight.item() == 3.0
    assert not any(parameter.requires_grad for parameter in ema.parameters())
    assert not any(module.training for module in ema.train().modules())
    assert network.training
    assert network.weight.requires_grad


def test_parameters_move_by_the_decay_and_buffers_are_copied():
    ema = EMA(Point(0))
    ema.update(Point(8), decay=0.75)
    assert ema.network.weight.item() == 2.0
    assert ema.network.statistic.item() == 8.0
    assert ema.network.count.item() == 8
    ema.update(Point(8), decay=0.75)
    assert ema.network.weight.item() == 3.5
    assert ema.updates.item() == 2


def test_one_update_for_a_round_equals_one_for_each_iteration_at_fixed_weights():
    once, often = EMA(Point(0)), EMA(Point(0))
    once.update(Point(1), decay=0.9**5)
    for _ in range(5):
        often.update(Point(1), decay=0.9)
    assert once.network.weight.item() == pytest.approx(often.network.weight.item())


def test_warm_up_bounds_the_decay_of_the_first_updates():
    ema = EMA(Point(0), warmup=True)
    ema.update(Point(1), decay=0.999)
    assert ema.network.weight.item() == pytest.approx(0.9)  # decay 1/10
    ema.update(Point(1), decay=0.999)
    assert ema.network.weight.item() == pytest.approx(1 - 0.1 * 2 / 11)  # decay 2/11
    ema.update(Point(1), decay=0.0)
    assert ema.network.weight.item() == 1.0


def test_the_warm_ups_clock_is_saved():
    ema, restored = EMA(Point(0), warmup=True), EMA(Point(0), warmup=True)
    ema.update(Point(1), decay=0.999)
    restored.load_state_dict(ema.state_dict())
    for each in (ema, restored):
        each.update(Point(5), decay=0.999)
    assert restored.network.weight.item() == ema.network.weight.item()


def test_is_marked_as_not_exchanged():
    assert EMA.exchanged is False


# ---- half precision ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("born", [False, True])
def test_it_keeps_full_precision_beside_a_network_of_half(dtype, born):
    """A step of 5e-4 from 1 to 1.5: half precision would round each of them away."""
    model = nn.Module()
    model.network = Point(1).to(dtype) if born else Point(1)
    model.ema = EMA(model.network)
    model.to(dtype)
    with torch.no_grad():
        model.network.weight.fill_(1.5)
    for _ in range(100):
        model.ema.update(model.network, decay=0.9999**5)
    assert model.ema.network.weight.dtype == torch.float32
    assert model.ema.network.statistic.dtype == torch.float32
    assert model.network.weight.dtype == dtype
    assert model.ema.network.weight.item() == pytest.approx(1.5 - 0.5 * 0.9999**500, rel=1e-5)


def test_it_follows_to_double_precision_and_back():
    model = nn.Module()
    model.ema = EMA(Point(1))
    assert model.double().ema.network.weight.dtype == torch.float64
    assert model.float().ema.network.weight.dtype == torch.float32


class Followed(nn.Module):
    """Two networks with a weight in common, the second with an average; and an average of nothing."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Point(1), Point(2)
        self.second.weight = self.first.weight
        self.second_ema, self.other = EMA(self.second), EMA(Point(3))


def test_averages_are_found_by_their_names():
    model = Followed()
    assert averages_of(model) == [(model.second, model.second_ema)]


def test_tensors_stand_in_averages_too_under_whichever_name_a_tied_weight_goes():
    values = {"first.weight": torch.tensor([7.0]), "second.statistic": torch.tensor([8.0])}
    found = with_averages(Followed(), values)
    expected = {"second_ema.network.weight": torch.tensor([7.0]), "second_ema.network.statistic": torch.tensor([8.0])}
    assert found == values | expected
    assert with_averages(Followed(), {}) == {}
