"""Compressors by hand, against their papers' formulas, torch's PowerSGD and the singular value decomposition."""

import math

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

from fedgen.federated.compression import QSGD, PowerSGD, ScaledSign, TopK
from fedgen.federated.compression.compressors import pack, round_stochastically, unpack

ALL = {
    "8 bits": QSGD(8),
    "4 bits, blocks of 3": QSGD(4, block=3),
    "2 bits, whole": QSGD(2, block=None),
    "8 bits, Euclidean": QSGD(8, None, "2"),
    "top": TopK(0.1),
    "sign": ScaledSign(),
    "low rank": PowerSGD(1),
}
SHAPES = [(), (0,), (3, 0), (1,), (5,), (7, 5), (4, 3, 2, 2)]


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def through(rule, update, seed=0, start=None):
    """What a server takes in of an update."""
    sent = rule.encode(update, torch.Generator().manual_seed(seed), start)
    return rule.decode(sent, tuple(update.shape), update.dtype)


def test_numbers_of_four_bits_share_a_byte_the_first_in_its_lower_half():
    codes = torch.tensor([1, 2, 15], dtype=torch.uint8)
    assert pack(codes, 4).tolist() == [0x21, 0x0F]
    assert pack(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1], dtype=torch.uint8), 1).tolist() == [0x81, 0x01]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_packed_numbers_come_back(bits, count):
    codes = torch.randint(0, 2**bits, (count,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert len(packed) == math.ceil(count * bits / 8)
    assert torch.equal(unpack(packed, bits, count), codes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", ALL.values(), ids=ALL.keys())
def test_what_is_sent_has_the_forms_and_the_bytes_that_were_told_and_what_comes_in_the_updates_form(rule, shape, dtype):
    update = draw(*shape, dtype=dtype)
    before = update.clone()
    sent = rule.encode(update, torch.Generator().manual_seed(0))
    rule.check(sent, shape, dtype)
    assert rule.num_bytes(shape, dtype) == sum(part.numel() * part.element_size() for part in sent.values())
    received = rule.decode(sent, shape, dtype)
    assert (received.shape, received.dtype) == (update.shape, dtype)
    assert received.isfinite().all()
    assert torch.equal(update, before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", ALL.values(), ids=ALL.keys())
def test_an_update_of_zeros_comes_in_as_zeros(rule, shape):
    assert torch.equal(through(rule, torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL.keys())
def test_the_same_draws_give_the_same_bits(rule):
    update = draw(9, 7)
    assert torch.equal(through(rule, update, seed=3), through(rule, update, seed=3))


def test_bytes_by_hand():
    shape = (100, 12)  # 1,200 entries
    assert QSGD(8).num_bytes(shape, torch.float32) == 1200 + 3 * 4  # blocks of 512
    assert QSGD(4, block=None).num_bytes(shape, torch.float32) == 600 + 4
    assert TopK(0.01).num_bytes(shape, torch.float32) == 12 * (4 + 4)
    assert TopK(0.01).num_bytes(shape, torch.float64) == 12 * (4 + 8)
    assert ScaledSign().num_bytes(shape, torch.float32) == 150 + 4
    assert PowerSGD(2).num_bytes(shape, torch.float32) == 2 * (100 + 12) * 4
    assert PowerSGD(2).num_bytes((12,), torch.float32) == 48  # whole


# ---- quantisation ----


def test_rounding_is_right_in_the_mean_over_all_draws_exactly():
    """Of 64 equally spaced draws, as many as the fraction says round up."""
    uniform = torch.arange(64) / 64
    for sixtyfourths in range(200):
        value = torch.full((64,), sixtyfourths / 64)
        found = round_stochastically(value, uniform)
        assert found.mean().item() == sixtyfourths / 64
        assert set(found.tolist()) <= {float(sixtyfourths // 64), float(sixtyfourths // 64 + 1)}


@pytest.mark.parametrize(("bits", "norm"), [(4, "max"), (8, "2"), (4, "2")])
def test_quantisation_is_unbiased_and_within_its_bound(bits, norm):
    """Against the exact variance p (1 - p) level^2 of each entry, worked out in NumPy."""
    update, repeats, rule = draw(64), 400, QSGD(bits, None, norm)
    draws = torch.Generator().manual_seed(1)
    taken = [rule.decode(rule.encode(update, draws), (64,), torch.float32) for _ in range(repeats)]
    found = torch.stack(taken).double().numpy()
    v, levels = update.double().numpy(), {4: 7, 8: 127}[bits]
    scale = np.abs(v).max() if norm == "max" else np.linalg.norm(v)
    p = (np.abs(v) / scale * levels) % 1
    variance = p * (1 - p) * (scale / levels) ** 2
    assert np.all(np.abs(found.mean(0) - v) < 4.5 * np.sqrt(variance / repeats) + 1e-6)
    error = ((found - v) ** 2).sum(1).mean()
    assert error == pytest.approx(variance.sum(), rel=0.05)
    bound = 64 / (4 * levels**2) * scale**2 if norm == "max" else min(64 / levels**2, 8 / levels) * scale**2
    assert error <= bound


def test_no_entry_is_off_by_more_than_a_level_of_its_own_block():
    update = torch.cat([draw(10), 1000 * draw(10, seed=1), draw(5, seed=2)])
    off = (through(QSGD(4, block=10), update) - update).abs()
    for block in (slice(0, 10), slice(10, 20), slice(20, 25)):
        assert off[block].max() <= update[block].abs().max() / 7 * (1 + 1e-5)


def test_the_largest_entry_stays_as_it_is_also_at_the_ends_of_the_type():
    for size in (1e-45, 3.4e38):
        update = torch.tensor([size, -size, 0.0])
        assert torch.equal(through(QSGD(8), update), update)


def test_a_norm_beyond_the_type_is_an_error():
    with pytest.raises(FloatingPointError, match="norm"):
        through(QSGD(8, None, "2"), torch.full((4,), 3e38))


# ---- sparsification and signs ----


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_top_k_keeps_the_largest_and_contracts_by_k_of_d(share):
    update, k = draw(20, 10), math.ceil(200 * share)
    received = through(TopK(share), update)
    kept = np.sort(np.abs(update.numpy().ravel()))[-k:]
    assert sorted(received[received != 0].abs().tolist()) == kept.tolist()
    assert ((received - update).norm() ** 2).item() <= (1 - k / 200) * (update.norm() ** 2).item()


def test_top_k_keeps_the_share_rounded_up_as_decimals_have_it():
    kept = [TopK(k / 100).forms((100,), torch.float32)["values"].shape[0] for k in range(1, 101)]
    assert kept == list(range(1, 101))  # in floats 0.07 of 100 is 7.000000000000001, and 8 of it
    assert [TopK(share).forms((10**9,), torch.float32)["places"].shape[0] for share in (1e-12, 0.07)] == [1, 7 * 10**7]


def test_the_bound_of_top_k_is_reached_where_all_entries_are_alike_and_the_first_are_kept():
    received = through(TopK(0.25), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0]))
    assert received.tolist() == [1, -1, 0, 0, 0, 0, 0, 0]


def test_the_error_of_signs_is_the_formulas():
    update = draw(50, dtype=torch.float64)
    update[3] = 0
    error = ((through(ScaledSign(), update) - update) ** 2).sum()
    torch.testing.assert_close(error, (update**2).sum() - update.abs().sum() ** 2 / 50)


# ---- low rank ----


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_matrix_of_the_rank_or_less_comes_in_exactly(rank):
    for own in range(1, rank + 1):
        update = draw(12, own, dtype=torch.float64) @ draw(own, 15, seed=1, dtype=torch.float64)
        torch.testing.assert_close(through(PowerSGD(rank), update.view(12, 5, 3)).view(12, 15), update)


def test_the_projection_is_that_of_torchs_power_sgd():
    update, start = draw(12, 15, dtype=torch.float64), draw(15, 3, seed=1, dtype=torch.float64)
    p = update @ start
    _orthogonalize(p.unsqueeze(0))  # by Gram-Schmidt or QR, as torch finds fit
    torch.testing.assert_close(through(PowerSGD(3), update, start=start), p @ (update.T @ p).T)


def test_warm_starts_find_the_best_matrix_of_the_rank():
    update, rule, start = draw(12, 15, dtype=torch.float64), PowerSGD(2), None
    first = through(rule, update)
    for _ in range(300):
        sent = rule.encode(update, torch.Generator().manual_seed(0), start)
        start = sent["right"]
    u, s, v = np.linalg.svd(update.numpy())
    best = torch.from_numpy(u[:, :2] * s[:2] @ v[:2])
    torch.testing.assert_close(rule.decode(sent, (12, 15), torch.float64), best, rtol=0, atol=1e-6)
    assert (first - update).norm() > 1.05 * (best - update).norm()


def test_a_start_of_zeros_is_drawn_anew():
    update = draw(12, 15)
    assert torch.equal(through(PowerSGD(2), update, start=torch.zeros(15, 2)), through(PowerSGD(2), update))


# ---- what does not fit ----


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: QSGD(3), "bits=3"),
        (lambda: QSGD(block=0), "block=0"),
        (lambda: QSGD(norm="1"), "norm='1'"),
        (lambda: TopK(0), "share=0"),
        (lambda: TopK(1.5), "share=1.5"),
        (lambda: TopK(float("nan")), "share=nan"),
        (lambda: PowerSGD(0), "rank=0"),
    ],
)
def test_settings_out_of_range_are_named(make, what):
    with pytest.raises(ValueError, match=what):
        make()


def hostile(rule, **parts):
    """What a rule sends for 20 entries, with some parts in place of its own."""
    return {**rule.encode(draw(4, 5), torch.Generator().manual_seed(0)), **parts}


TOP, INT = TopK(0.1), torch.int32
VALUES = torch.ones(2)


@pytest.mark.parametrize(
    ("rule", "payload", "what"),
    [
        (TOP, hostile(TOP, places=torch.tensor([0, 20], dtype=INT)), "from 0 to 20"),
        (TOP, hostile(TOP, places=torch.tensor([-1, 3], dtype=INT)), "from -1 to 3"),
        (TOP, hostile(TOP, places=torch.tensor([3, 3], dtype=INT)), "do not rise"),
        (TOP, hostile(TOP, places=torch.tensor([4, 3], dtype=INT)), "do not rise"),
        (TOP, hostile(TOP, places=torch.tensor([1, 3])), "places is torch.int64"),
        (TOP, hostile(TOP, places=torch.arange(3, dtype=INT), values=torch.ones(3)), r"places is torch.int32 \[3\]"),
        (TOP, hostile(TOP, values=torch.tensor([1.0, math.nan])), "values holds NaN"),
        (TOP, hostile(TOP, more=VALUES), "parts"),
        (TOP, {"values": VALUES}, "parts"),
        (ALL["8 bits"], hostile(ALL["8 bits"], codes=torch.full((20,), 255, dtype=torch.uint8)), "codes holds 255"),
        (QSGD(4), hostile(QSGD(4), codes=torch.full((10,), 0xF0, dtype=torch.uint8)), "codes holds 15"),
        (QSGD(4), hostile(QSGD(4), codes=torch.zeros(11, dtype=torch.uint8)), "codes is"),
        (QSGD(4), hostile(QSGD(4), scales=torch.tensor([math.inf])), "scales holds NaN or infinity"),
        (QSGD(4), hostile(QSGD(4), scales=torch.tensor([-1.0])), "negative"),
        (ALL["sign"], hostile(ALL["sign"], scale=torch.tensor(math.nan)), "scale holds NaN"),
        (ALL["sign"], hostile(ALL["sign"], scale=torch.tensor(-2.0)), "scale is -2"),
        (ALL["low rank"], hostile(ALL["low rank"], left=torch.ones(4, 2)), "left is"),
        (ALL["low rank"], {"whole": torch.ones(4, 5)}, "parts"),
    ],
)
def test_what_no_client_sends_is_refused(rule, payload, what):
    with pytest.raises(ValueError, match=what):
        rule.check(payload, (4, 5), torch.float32)
