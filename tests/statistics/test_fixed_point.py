"""Sums as whole numbers: their error, their limits, and masks that cancel modulo 2^64."""

import pytest
import torch

from fedgen.scores import frechet_distance
from fedgen.statistics import (
    FixedPoint,
    Message,
    MessageError,
    add,
    gaussian_from_message,
    gaussian_to_message,
    gaussian_to_sums,
    mask,
    pool,
    summarize,
)


def client(number: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(number)
    return torch.randn(60, 8, generator=draws, dtype=torch.float64) * 3 - 2


def sums(number: int) -> Message:
    return gaussian_to_sums(summarize(client(number)), embedding="a")


def kid(value: float) -> Message:
    one = torch.ones((), dtype=torch.float64)
    return Message("kid", {"count": one, "score": one * value, "within": one / 1024})


def test_a_value_becomes_the_nearest_multiple_of_the_scale_by_hand() -> None:
    encoded = FixedPoint(clients=1, bits=2).encode(kid(-1.3))
    assert encoded.tensors["score"].item() == -5  # -1.3 * 4 = -5.2
    assert FixedPoint(clients=1, bits=2).decode(encoded).tensors["score"].item() == -1.25


def test_the_sum_is_within_the_rounding_of_the_clients() -> None:
    fixed = FixedPoint(clients=5)
    messages = [sums(number) for number in range(5)]
    total = fixed.decode(add(*(Message.from_bytes(fixed.encode(message).to_bytes()) for message in messages)))
    exact = add(*messages)
    assert total.kind == "sums"
    assert dict(total.meta) == {"embedding": "a"}
    for name, tensor in total.tensors.items():
        error = (tensor - exact.tensors[name]).abs().max()
        assert error <= 5 * 2.0**-25 + 1e-10
    assert (total.tensors["outer"] != exact.tensors["outer"]).any()


def test_a_fid_from_whole_numbers_is_the_fid_to_4e_9() -> None:
    fixed = FixedPoint(clients=5)
    summed = gaussian_from_message(fixed.decode(add(*(fixed.encode(sums(number)) for number in range(5)))))
    generated = summarize(client(9) + 1)
    exact, _ = frechet_distance(pool(summarize(client(number)) for number in range(5)), generated)
    assert frechet_distance(summed, generated)[0] == pytest.approx(exact, rel=4e-9)


def test_masks_hide_every_message_and_cancel_in_the_sum() -> None:
    fixed = FixedPoint(clients=4)
    encoded = [fixed.encode(sums(number)) for number in range(4)]
    masked = [mask(message, number, 4, seed=7) for number, message in enumerate(encoded)]
    total = add(*masked)
    for name in total.tensors:
        assert torch.equal(total.tensors[name], add(*encoded).tensors[name])
    outer = masked[0].tensors["outer"].double()
    assert (outer.abs() > 2.0**58).double().mean() > 0.9  # uniform over 2^64, where the sums are below 2^37
    incomplete = add(*masked[:3]).tensors["outer"]
    assert not torch.equal(incomplete, add(*encoded[:3]).tensors["outer"])


def test_sums_wrap_around_modulo_two_to_the_64() -> None:
    top = Message("fixed-point", {"a": torch.tensor(2**63 - 1), "b": torch.tensor([-(2**63), 5])})
    total = add(top, Message("fixed-point", {"a": torch.tensor(1), "b": torch.tensor([-1, 5])}))
    assert total.tensors["a"].item() == -(2**63)
    assert total.tensors["b"].tolist() == [2**63 - 1, 10]


def test_values_that_could_overflow_are_refused_with_the_bits_that_would_do() -> None:
    FixedPoint(clients=4, bits=24).encode(kid(2.0**36))
    with pytest.raises(MessageError, match="overflow"):
        FixedPoint(clients=4, bits=24).encode(kid(2.0**37))
    FixedPoint(clients=4, bits=23).encode(kid(2.0**37))


def test_bits_from_ranges_are_the_finest_that_cannot_overflow() -> None:
    fixed = FixedPoint.for_ranges(4, {"count": 1, "score": 1000.0, "within": 1e-3})
    assert isinstance(fixed.bits, dict)
    for name, largest in (("count", 1.0), ("score", 1000.0), ("within", 1e-3)):
        assert 4 * (largest * 2.0 ** fixed.bits[name] + 0.5) < 2**63
        assert 4 * (largest * 2.0 ** (fixed.bits[name] + 1) + 0.5) >= 2**63
    assert fixed.decode(fixed.encode(kid(999.9))).tensors["score"].item() == pytest.approx(999.9, rel=1e-15)
    with pytest.raises(MessageError, match="'score' holds 2000"):
        fixed.encode(kid(2000.0))
    with pytest.raises(ValueError, match="positive"):
        FixedPoint.for_ranges(4, {"score": float("inf")})


def test_bits_may_be_negative_for_huge_values() -> None:
    fixed = FixedPoint.for_ranges(2, {"count": 1, "score": 1e30, "within": 1})
    assert fixed.decode(fixed.encode(kid(3e29))).tensors["score"].item() == pytest.approx(3e29, rel=1e-15)


def test_what_is_not_meant_to_be_encoded_or_decoded_is_refused() -> None:
    fixed = FixedPoint(clients=2)
    encoded = fixed.encode(kid(1.0))
    with pytest.raises(MessageError, match="message"):
        fixed.encode(encoded)
    with pytest.raises(MessageError, match="gaussian"):
        fixed.encode(gaussian_to_message(summarize(client(0))))
    with pytest.raises(MessageError, match="expected"):
        fixed.decode(kid(1.0))
    with pytest.raises(MessageError, match="use the same at all clients"):
        FixedPoint(clients=2, bits=20).decode(encoded)
    with pytest.raises(MessageError, match="bits"):
        FixedPoint(2, {"count": 1, "score": 1}).encode(kid(1.0))
    with pytest.raises(MessageError, match="encode"):
        mask(kid(1.0), 0, 2, seed=0)
    with pytest.raises(ValueError, match="client must be 0 to 1, got 2"):
        mask(encoded, 2, 2, seed=0)
    with pytest.raises(ValueError, match="clients must be at least 1, got 0"):
        FixedPoint(clients=0)
    with pytest.raises(ValueError, match="whole"):
        FixedPoint(clients=1, bits=900)
    with pytest.raises(ValueError, match="whole"):
        FixedPoint(clients=1, bits={"score": 24.5})
    with pytest.raises(MessageError, match="messages"):
        fixed.encode(Message("kid", {**kid(1.0).tensors, "messages": torch.ones((), dtype=torch.float64)}))


def test_more_messages_than_agreed_are_refused_since_their_sum_could_have_wrapped_around() -> None:
    fixed = FixedPoint(clients=2, bits=24)
    part = fixed.encode(kid(2.0**37))  # two make 2^62, four 2^63, which reads as -2^63
    assert fixed.decode(add(part, part)).tensors["score"].item() == 2.0**38
    with pytest.raises(MessageError, match="messages"):
        fixed.decode(add(part, part, part, part))


def test_a_sum_with_masks_left_over_is_refused_and_not_read_as_noise() -> None:
    fixed = FixedPoint(clients=4)
    masked = [mask(fixed.encode(sums(number)), number, 4, seed=7) for number in range(4)]
    with pytest.raises(MessageError, match="missing"):
        fixed.decode(add(*masked[:3]))


def test_negative_sums_at_the_edge_of_the_range_come_back_through_masks_that_wrap() -> None:
    fixed = FixedPoint(clients=3, bits=0)
    edge = float(2**63 // 3 - 2**12)
    masked = [mask(fixed.encode(kid(-edge)), number, 3, seed=1) for number in range(3)]
    assert fixed.decode(add(*masked)).tensors["score"].item() == -3 * edge


def test_a_mask_is_uniform_over_all_64_bits() -> None:
    fixed = FixedPoint(clients=2)
    zeros = Message("sums", {"count": torch.zeros(()), "sum": torch.zeros(20_000), "outer": torch.zeros(1)})
    drawn = mask(fixed.encode(zeros), 0, 2, seed=3).tensors["sum"]
    ones = torch.stack([(drawn >> bit) & 1 for bit in range(64)]).double().mean(1)
    assert (ones - 0.5).abs().max() < 5 * 0.5 / 20_000**0.5


@pytest.mark.parametrize("remarks", ["{", "[1]", '{"a": 1}', "[" * 100_000])
def test_remarks_of_a_stranger_are_refused_by_name(remarks) -> None:
    encoded = FixedPoint(clients=2).encode(kid(1.0))
    strange = Message("fixed-point", encoded.tensors, {**encoded.meta, "meta": remarks})
    with pytest.raises(MessageError, match="message"):
        FixedPoint(clients=2).decode(strange)
