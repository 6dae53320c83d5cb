"""Which tensors travel, and the check that what a client sends is finite."""

import pytest
import torch
from torch import nn

from fedgen.federated.exchange import Exchange, all_finite, copy_tensors, describe_difference


class Net(nn.Module):
    """One tensor of each kind."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2, bias=False)
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 1, bias=False)
        self.frozen = nn.Linear(2, 2, bias=False).requires_grad_(False)
        self.average = nn.Linear(2, 2, bias=False)
        self.average.exchanged = False
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


def exchange_of(module, personal=(), optimized=None):
    return Exchange(module, module.parameters() if optimized is None else optimized, personal)


def trained(net):
    return [p for p in net.parameters() if p.requires_grad]


def test_tensors_are_told_apart_by_rule():
    net = Net()
    exchange = exchange_of(net, optimized=trained(net))
    assert list(exchange.shared) == [
        "body.weight",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "head.weight",
    ]
    assert list(exchange.kept) == ["norm.num_batches_tracked"]
    assert exchange.personal == {}
    assert exchange.trained == {"body.weight", "norm.weight", "norm.bias", "head.weight"}


def test_the_tensors_are_the_modules_own():
    net = Net()
    exchange = exchange_of(net)
    assert exchange.shared["body.weight"] is net.body.weight
    assert exchange.shared["norm.running_mean"] is net.norm.running_mean


def test_a_frozen_parameter_that_an_optimizer_holds_counts_as_training():
    """GANs turn requires_grad off for the net that rests."""
    net = Net()
    net.head.requires_grad_(False)
    exchange = exchange_of(net, optimized=[net.head.weight])
    assert "head.weight" in exchange.trained
    assert "frozen.weight" not in exchange.live


def test_modules_that_say_so_are_left_alone_at_any_depth():
    outer = nn.Module()
    outer.inner = Net()
    exchange = exchange_of(outer, optimized=trained(outer.inner))
    assert not any(name.startswith("inner.average") for name in exchange.live)
    assert "inner.body.weight" in exchange.shared


def test_a_name_that_only_begins_alike_is_exchanged():
    net = Net()
    net.average2 = nn.Linear(2, 2, bias=False)
    assert "average2.weight" in exchange_of(net).shared


def test_the_model_itself_says_what_of_it_is_left_alone():
    """By the beginnings of names; a part of it in another model goes by that one's word."""
    outer = nn.Module()
    outer.inner, outer.inner2 = Net(), Net()
    outer.unexchanged = ("inner.body.", "inner.norm.")
    live = exchange_of(outer, optimized=[*trained(outer.inner), *trained(outer.inner2)]).live
    assert not any(name.startswith(("inner.body.", "inner.norm.")) for name in live)
    assert {"inner.head.weight", "inner2.body.weight", "inner2.norm.running_mean"} <= live.keys()
    assert "body.weight" in exchange_of(outer.inner).shared


def test_what_state_dict_does_not_save_is_never_touched():
    assert "scratch" not in exchange_of(Net()).live


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["head.*"], {"head.weight"}),
        (["norm.running_*"], {"norm.running_mean", "norm.running_var"}),
        (["norm.num_*", "head.weight"], {"norm.num_batches_tracked", "head.weight"}),
        (["average.*"], {"average.weight"}),
    ],
)
def test_personal_patterns_take_parameters_buffers_and_unexchanged_modules(patterns, expected):
    net = Net()
    exchange = exchange_of(net, patterns, trained(net))
    assert set(exchange.personal) == expected
    assert not expected & (set(exchange.shared) | set(exchange.kept) | exchange.trained)


def test_everything_may_be_personal_and_the_frozen_stay_where_they_are():
    net = Net()
    exchange = exchange_of(net, ["*"], trained(net))
    assert exchange.shared == exchange.kept == {}
    assert "frozen.weight" not in exchange.personal


def test_patterns_that_match_nothing_are_named_with_names_that_exist():
    with pytest.raises(ValueError, match=r"\['critic.\*'\] match no tensor of the model; names: body.weight, "):
        exchange_of(Net(), ["head.*", "critic.*"])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(2, 2), nn.Linear(2, 2)
        self.decoder.weight = self.encoder.weight


def test_tied_weights_travel_once():
    exchange = exchange_of(Tied())
    assert list(exchange.shared) == ["encoder.weight", "encoder.bias", "decoder.bias"]
    assert exchange.first_names["decoder.weight"] == "encoder.weight"


@pytest.mark.parametrize("pattern", ["encoder.*", "decoder.*"])
def test_a_tied_weight_is_personal_if_any_of_its_names_is(pattern):
    exchange = exchange_of(Tied(), [pattern])
    assert "encoder.weight" in exchange.personal
    assert not any(tensor is exchange.personal["encoder.weight"] for tensor in exchange.shared.values())


@pytest.mark.parametrize("apart", ["encoder", "decoder"])
def test_a_weight_tied_to_an_unexchanged_module_is_still_exchanged(apart):
    tied = Tied()
    getattr(tied, apart).exchanged = False
    assert "encoder.weight" in exchange_of(tied).shared


def test_the_servers_copy_is_taken_and_put_back_to_the_bit():
    net = Net()
    exchange = exchange_of(net)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    exchange.snapshot()
    with torch.no_grad():
        for tensor in exchange.live.values():
            tensor.add_(1)
    assert not torch.equal(net.body.weight, before["body.weight"])
    exchange.load_server()
    assert all(torch.equal(before[name], t) for name, t in net.state_dict().items())
    assert not any(t.requires_grad for t in exchange.server.values())


def test_a_second_snapshot_reuses_the_memory_of_the_first():
    exchange = exchange_of(Net())
    exchange.snapshot()
    pointers = [t.data_ptr() for t in exchange.server.values()]
    exchange.snapshot()
    assert [t.data_ptr() for t in exchange.server.values()] == pointers


def test_copying_nothing_is_fine():
    copy_tensors([], [])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_single_value_that_is_not_finite_is_found(bad):
    tensors = [torch.zeros(100), torch.zeros(10, 10), torch.tensor([3])]
    tensors[1][7, 3] = bad
    assert not all_finite(tensors)


@pytest.mark.parametrize(("value", "dtype"), [(3e38, torch.float32), (6e4, torch.float16), (1e300, torch.float64)])
def test_finite_values_whose_norm_overflows_are_finite(value, dtype):
    assert all_finite([torch.full((1000,), value, dtype=dtype), torch.zeros(2)])


def test_nothing_integers_and_empty_tensors_are_finite():
    assert all_finite([])
    assert all_finite([torch.tensor([2**62])])
    assert all_finite([torch.empty(0)])


def test_precisions_may_be_mixed():
    tensors = [torch.ones(2, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    assert all_finite(tensors)
    tensors[1][0] = float("inf")
    assert not all_finite(tensors)


def test_the_difference_of_two_models_is_put_in_words():
    model = {"a": torch.zeros(2), "b": torch.zeros(1), "c": torch.zeros(1)}
    saved = {"a": torch.zeros(3), "b": torch.zeros(1), "d": torch.zeros(1)}
    words = describe_difference(model, saved)
    assert "a is [3] there and [2] here" in words
    assert "1 tensors missing (first: c)" in words
    assert "1 tensors unknown to the model (first: d)" in words
    assert describe_difference(model, model) == "no difference in names or shapes"


def test_a_difference_is_described_where_a_state_holds_no_tensors():
    assert describe_difference({"extra": {"a": 1}, "w": torch.zeros(2)}, {"extra": {}, "w": torch.zeros(3)}) == (
        "1 tensors of another shape (w is [3] there and [2] here)"
    )


def test_what_a_module_declares_personal_never_travels():
    net = Net()
    net.norm.exchanged = "personal"
    exchange = exchange_of(net, optimized=trained(net))
    assert list(exchange.personal) == [
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    assert list(exchange.shared) == ["body.weight", "head.weight"]


def test_what_a_round_sends_is_counted_in_bytes():
    """body 4, norm 2 + 2 + 2 + 2, head 2 floats; integers, frozen and unexchanged tensors stay."""
    net = Net()
    assert exchange_of(net, optimized=trained(net)).num_bytes == 4 * 14
    assert exchange_of(net, ["head.*"], trained(net)).num_bytes == 4 * 12
    assert exchange_of(net.half(), optimized=trained(net)).num_bytes == 2 * 14
