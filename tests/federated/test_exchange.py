"""Which tensors travel, and the check that what a client sends is finite."""

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torchmetrics import MeanMetric

from fedgen.federated.client_state.exchange import Exchange, Rules, all_finite, copy_tensors, describe_difference


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


def exchange_of(module, personal=(), trained=None, rules=None, **options):
    rules = None if rules is None else Rules(rules, module)
    return Exchange(module, module.parameters() if trained is None else trained, personal, rules, **options)


TRAINED = ["body.weight", "norm.weight", "norm.bias", "head.weight"]
STATISTICS = ["norm.running_mean", "norm.running_var"]


def trained(net):
    return [p for p in net.parameters() if p.requires_grad]


def test_tensors_are_told_apart_by_rule():
    net = Net()
    exchange = exchange_of(net, trained=trained(net))
    assert list(exchange.shared) == TRAINED
    assert list(exchange.quiet) == [*STATISTICS, "frozen.weight"]
    assert list(exchange.counters) == ["norm.num_batches_tracked"]
    assert exchange.personal == exchange.held == {}
    assert exchange.trained == exchange.trainable.keys() == set(TRAINED)
    assert exchange.moving == []


def test_the_tensors_are_the_modules_own():
    net = Net()
    exchange = exchange_of(net)
    assert exchange.shared["body.weight"] is net.body.weight
    assert exchange.quiet["norm.running_mean"] is net.norm.running_mean
    assert exchange.counters["norm.num_batches_tracked"] is net.norm.num_batches_tracked


def test_what_trains_is_told_from_what_merely_requires_a_gradient():
    """GANs turn requires_grad off for the net that rests; a copy that nobody steps may have it on."""
    net = Net()
    net.head.requires_grad_(False)
    exchange = exchange_of(net, trained=[net.head.weight])
    assert exchange.trained == exchange.shared.keys() == {"head.weight"}
    assert {"body.weight", "frozen.weight"} <= exchange.quiet.keys()
    exchange = exchange_of(net, trained=[net.head.weight], fixed=True)
    assert exchange.trained == {"head.weight"}
    assert "body.weight" in exchange.shared
    assert "frozen.weight" in exchange.quiet


def test_modules_that_say_so_are_left_alone_at_any_depth():
    outer = nn.Module()
    outer.inner = Net()
    exchange = exchange_of(outer, trained=trained(outer.inner))
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
    live = exchange_of(outer, trained=[*trained(outer.inner), *trained(outer.inner2)]).live
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
    assert not expected & (set(exchange.shared) | set(exchange.counters) | set(exchange.quiet) | exchange.trained)


def test_everything_may_be_personal_and_the_frozen_stay_where_they_are():
    net = Net()
    exchange = exchange_of(net, ["*"], trained(net))
    assert exchange.shared == exchange.counters == {}
    assert list(exchange.quiet) == ["frozen.weight"]
    exchange.snapshot()
    net.frozen.weight.data.add_(1)
    exchange.settle(1)
    assert exchange.grow() == []  # it does not travel from now on
    assert "frozen.weight" in exchange.personal
    assert exchange.quiet == exchange.shared == {}
    anew = exchange_of(net, ["*"], trained(net), moving=exchange.moving)  # as layers thaw, and in a second fit
    assert anew.personal.keys() == exchange.personal.keys()
    assert anew.moving == ["frozen.weight"]


def test_patterns_that_match_nothing_are_named_with_names_that_exist():
    with pytest.raises(ValueError, match="critic"):
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
    exchange.settle(1)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_tensors_are_looked_at_whole(dtype):
    """Their check is another one: a dot product, which overflows sooner than a norm."""
    large = torch.full((2**16 + 1,), torch.finfo(dtype).max / 2, dtype=dtype)
    assert all_finite([large, torch.zeros(2)])
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not all_finite([torch.ones(2**16 + 1, dtype=dtype).index_fill(0, torch.tensor([2**16]), bad)])
    assert not all_finite([large, torch.tensor([float("nan")])])


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
    exchange = exchange_of(net, trained=trained(net))
    assert list(exchange.personal) == [
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    assert list(exchange.shared) == ["body.weight", "head.weight"]


def test_what_a_round_sends_is_counted_in_bytes():
    """body 4, norm 2 + 2, head 2 floats, and statistics 2 + 2 where they move; frozen and unexchanged ones stay."""
    net = Net()
    assert exchange_of(net, trained=trained(net)).num_bytes == 4 * 10
    assert exchange_of(net, trained=trained(net), moving=STATISTICS).num_bytes == 4 * 14
    assert exchange_of(net, trained=trained(net), fixed=True).num_bytes == 4 * 14
    assert exchange_of(net, ["head.*"], trained(net)).num_bytes == 4 * 8
    assert exchange_of(net.half(), trained=trained(net)).num_bytes == 2 * 10


# ---- what turns are found to change ----


def settled(net, exchange, iterations=1):
    """One forward pass, and the names that travel from then on."""
    net.norm(net.body(torch.randn(4, 2)))
    exchange.settle(iterations)
    return exchange.grow()


def test_buffers_travel_from_the_turn_on_that_changes_them_in_the_models_order():
    net = Net()
    exchange = exchange_of(net, trained=trained(net))
    exchange.snapshot()
    exchange.settle(1)
    assert exchange.grow() == exchange.found == []
    before = net.norm.running_mean.clone()
    assert settled(net, exchange) == STATISTICS
    assert list(exchange.shared) == [*TRAINED[:3], *STATISTICS, "head.weight"]
    assert exchange.moving == exchange.found == STATISTICS
    assert list(exchange.quiet) == ["frozen.weight"]
    assert exchange.trainable.keys() == set(TRAINED)
    assert torch.equal(exchange.server["norm.running_mean"], before)  # the turn's own value is not the server's
    assert settled(net, exchange) == []
    exchange.load_server()
    assert torch.equal(net.norm.running_mean, before)


def test_a_frozen_parameter_that_a_turn_moves_travels_and_does_not_train():
    net = Net()
    exchange = exchange_of(net, trained=trained(net))
    exchange.snapshot()
    net.frozen.weight.data[0, 1] += 1
    exchange.settle(1)
    assert exchange.grow() == exchange.moving == ["frozen.weight"]
    assert "frozen.weight" not in exchange.trained


def test_names_that_another_rank_has_found_travel_too():
    net = Net()
    exchange = exchange_of(net, trained=trained(net))
    exchange.snapshot()
    exchange.settle(1)
    assert exchange.grow(["norm.running_var", "body.weight", "norm.running_mean"]) == STATISTICS
    assert exchange.grow(["norm.running_var"]) == []


def test_what_a_refused_turn_has_changed_is_put_back_and_does_not_travel():
    net = Net()
    exchange = exchange_of(net, trained=trained(net))
    exchange.snapshot()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    net.norm(net.body(torch.full((4, 2), torch.nan)))
    with pytest.raises(FloatingPointError, match="running_mean"):
        exchange.settle(5)
    exchange.restore_forms()
    exchange.load_server()
    assert all(torch.equal(before[name], t) for name, t in net.state_dict().items())
    exchange.settle(1)
    assert exchange.grow() == []


def test_a_constant_that_holds_nan_is_no_change():
    net = Net()
    net.register_buffer("mask", torch.tensor([float("nan"), 1.0]))
    exchange = exchange_of(net, trained=trained(net))
    exchange.snapshot()
    exchange.settle(1)
    assert "mask" in exchange.quiet
    assert exchange.grow() == []


def test_a_fixed_set_holds_buffers_from_the_start_and_refuses_what_else_moves():
    net = Net()
    exchange = exchange_of(net, trained=trained(net), fixed=True)
    assert exchange.moving == STATISTICS
    assert list(exchange.quiet) == ["frozen.weight"]
    exchange.snapshot()
    assert settled(net, exchange) == []
    net.frozen.weight.data.add_(1)
    said = r"frozen.weight does not train, and the turn changed it: .*rules=\{'frozen.weight': 'mean'\}"
    with pytest.raises(MisconfigurationException, match=said):
        exchange.settle(1)
    declared = exchange_of(net, trained=trained(net), rules={"frozen.weight": "mean"}, fixed=True)
    assert "frozen.weight" in declared.shared


def test_what_earlier_turns_were_found_to_change_travels_from_the_start():
    net = Net()
    exchange = exchange_of(net, trained=trained(net), moving=["norm.running_var", "gone"])
    assert exchange.moving == ["norm.running_var"]
    assert list(exchange.quiet) == ["norm.running_mean", "frozen.weight"]


# ---- declared rules ----


def test_rules_have_the_last_word_but_for_personal_patterns():
    net = Net()
    rules = {
        "body.*": "server",
        "norm.num_*": "advance",
        "norm.running_mean": "max",
        "norm.running_var": "mean",
        "head.*": "personal",
        "average.*": "mean",
    }
    exchange = exchange_of(net, ["norm.bias"], trained(net), rules)
    assert list(exchange.held) == ["body.weight"]
    assert list(exchange.counters) == ["norm.running_mean", "norm.num_batches_tracked"]
    assert list(exchange.shared) == ["norm.weight", "norm.running_var", "average.weight"]
    assert exchange.trained == {"norm.weight", "average.weight"}
    assert list(exchange.personal) == ["norm.bias", "head.weight"]
    assert exchange.advancing == {"norm.num_batches_tracked"}
    assert exchange.declared == {
        "body.weight",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "head.weight",
        "average.weight",
    }


@pytest.mark.parametrize(
    ("name", "rule", "said"),
    [
        ("norm.num_batches_tracked", "mean", "torch.int64 and has the rule 'mean'"),
        ("norm.running_mean", "advance", "torch.float32 and has the rule 'advance', which is for integer counters"),
        ("flag", "advance", "torch.bool and has the rule 'advance'"),
        ("wave", "max", "complex and has the rule 'max'"),
    ],
)
def test_rules_that_do_not_suit_a_tensors_type_are_refused(name, rule, said):
    net = Net()
    net.register_buffer("flag", torch.tensor(False))
    net.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=f"{name} is {said}"):
        exchange_of(net, trained=trained(net), rules={name: rule})


def test_metrics_of_torchmetrics_are_left_alone():
    """They accumulate over turns."""
    net = Net()
    net.accuracy = MeanMetric()
    net.accuracy.persistent(True)
    assert any(name.startswith("accuracy.") for name in net.state_dict())
    assert not any(name.startswith("accuracy.") for name in exchange_of(net, trained=trained(net)).live)
