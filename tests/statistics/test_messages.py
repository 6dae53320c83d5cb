import pytest
import torch
from safetensors.torch import save

from fedgen.statistics import (
    Gaussian,
    Message,
    MessageError,
    add,
    gaussian_from_message,
    gaussian_to_message,
    gaussian_to_sums,
    message_size,
    summarize,
)


def client(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 3


def assert_equal(left: Gaussian, right: Gaussian) -> None:
    assert left.count == right.count
    torch.testing.assert_close(left.mean, right.mean, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(left.covariance(0), right.covariance(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3, 30])
def test_a_summary_survives_the_journey(count: int) -> None:
    gaussian = summarize(client(count))
    message = Message.from_bytes(gaussian_to_message(gaussian, embedding="lite0").to_bytes())
    assert message.meta == {"embedding": "lite0"}
    arrived = gaussian_from_message(message)
    assert arrived.is_low_rank == gaussian.is_low_rank
    assert_equal(arrived, gaussian)


def test_summable_messages_add_to_the_message_of_the_union() -> None:
    parts = [client(2, 1), client(40, 2), client(7, 3)]
    messages = [Message.from_bytes(gaussian_to_sums(summarize(part)).to_bytes(), "sums") for part in parts]
    total = add(add(messages[0], messages[1]), messages[2])
    assert_equal(gaussian_from_message(total), summarize(torch.cat(parts)))
    assert total.tensors["outer"].shape == (10,)


def test_a_scaled_message_counts_images_so_many_times() -> None:
    sums = gaussian_to_sums(summarize(client(5)), embedding="a")
    assert_equal(gaussian_from_message(sums.scaled(3.0)), gaussian_from_message(add(sums, sums, sums)))
    assert sums.scaled(3.0).meta == sums.meta


def test_a_message_may_travel_in_single_precision() -> None:
    sums = gaussian_to_sums(summarize(client(5)))
    numbers = 1 + 4 + 10
    double, single = sums.to_bytes(), sums.to_bytes(torch.float32)
    assert [len(d) - 8 - int.from_bytes(d[:8], "little") for d in (double, single)] == [8 * numbers, 4 * numbers]
    arrived = Message.from_bytes(single)
    assert arrived.tensors["sum"].dtype == torch.float64
    assert torch.equal(arrived.tensors["sum"], sums.tensors["sum"].float().double())


def test_messages_that_differ_do_not_add() -> None:
    sums = gaussian_to_sums(summarize(client(5)), embedding="a")
    with pytest.raises(MessageError, match="differently"):
        add(sums, gaussian_to_sums(summarize(client(5)), embedding="b"))
    with pytest.raises(MessageError, match="gaussian"):
        add(sums, gaussian_to_message(summarize(client(5)), embedding="a"))
    with pytest.raises(MessageError, match="shapes"):
        add(sums, gaussian_to_sums(summarize(client(5)[:, :3]), embedding="a"))
    with pytest.raises(MessageError, match="nothing"):
        add()


def test_adding_changes_no_message_and_takes_any_number_of_them() -> None:
    messages = [gaussian_to_sums(summarize(client(count, count)), embedding="a") for count in (5, 6, 7)]
    before = messages[0].tensors["outer"].clone()
    assert float(add(*messages).tensors["count"]) == 18
    assert add(messages[0]).tensors["sum"].tolist() == messages[0].tensors["sum"].tolist()
    assert torch.equal(messages[0].tensors["outer"], before)


def test_the_size_is_that_of_the_bytes_and_grows_with_the_upper_triangle() -> None:
    message = gaussian_to_sums(summarize(client(5)))
    assert message_size(message) == len(message.to_bytes())
    larger = gaussian_to_sums(summarize(torch.randn(5, 40, generator=torch.Generator().manual_seed(0))))
    numbers = (40 + 40 * 41 // 2) - (4 + 4 * 5 // 2)
    assert message_size(larger) - message_size(message) == pytest.approx(8 * numbers, abs=64)  # digits in the header


def test_only_plain_summaries_are_read_as_such() -> None:
    one = torch.ones((), dtype=torch.float64)
    message = Message("fixed-point", {"count": torch.ones((), dtype=torch.int64)})
    with pytest.raises(MessageError, match="message"):
        gaussian_from_message(message)
    with pytest.raises(MessageError, match="float64"):
        Message("fixed-point", {"count": one})
    with pytest.raises(MessageError, match="int64"):
        Message("kid", {"count": one, "score": one, "within": one, "more": torch.ones((), dtype=torch.int64)})


def test_what_cannot_be_trusted_is_refused() -> None:
    data = gaussian_to_sums(summarize(client(5))).to_bytes()
    with pytest.raises(MessageError, match="readable"):
        Message.from_bytes(data[:40])
    with pytest.raises(MessageError, match="expected"):
        Message.from_bytes(data, "gaussian")
    with pytest.raises(MessageError, match="version"):
        Message.from_bytes(save({"count": torch.ones(())}, metadata={"fedgen": "99", "kind": "sums"}))
    with pytest.raises(MessageError, match="version"):
        Message.from_bytes(save({"count": torch.ones(())}))
    with pytest.raises(MessageError, match="needs the tensors"):
        Message.from_bytes(save({"count": torch.ones(())}, metadata={"fedgen": "1", "kind": "sums"}))
    for meta in ("3", "[1]", "{", '{"a": 1}', "[[1, 2]]", "[" * 100_000):
        header = {"fedgen": "1", "kind": "sums", "meta": meta}
        with pytest.raises(MessageError, match="readable"):
            Message.from_bytes(save(dict(gaussian_to_sums(summarize(client(5))).tensors), metadata=header))
    with pytest.raises(MessageError, match="unknown"):
        Message("rumour", {})
    with pytest.raises(MessageError, match="NaN"):
        Message("sums", {"count": torch.ones(()), "sum": torch.tensor([float("nan")]), "outer": torch.ones(1)})


def test_numbers_of_other_kinds_are_refused_and_narrow_floats_do_not_narrow_the_sum() -> None:
    one = torch.ones((), dtype=torch.float64)
    for dtype in (torch.complex64, torch.float8_e4m3fn, torch.bool):
        with pytest.raises(MessageError, match=f"'more' of a 'kid' message is {dtype}"):
            Message("kid", {"count": one, "score": one, "within": one, "more": torch.ones(1).to(dtype)})
    narrow = Message("kid", {"count": one, "score": torch.tensor(1.0, dtype=torch.float16), "within": one})
    wide = Message("kid", {"count": one, "score": one * 1e6, "within": one})
    assert float(add(narrow, wide).tensors["score"]) == 1_000_001  # float16 would say infinity


def test_tensors_that_disagree_are_refused() -> None:
    one = torch.ones((), dtype=torch.float64)
    with pytest.raises(MessageError, match="features"):
        gaussian_from_message(Message("sums", {"count": one, "sum": torch.ones(2), "outer": torch.ones(4)}))
    with pytest.raises(MessageError, match="at least one image"):
        gaussian_from_message(Message("sums", {"count": 0 * one, "sum": torch.ones(1), "outer": torch.ones(1)}))
    for bad in (torch.ones(2), torch.ones((), dtype=torch.int64)):
        with pytest.raises(MessageError, match="message"):
            Message("sums", {"count": bad, "sum": torch.ones(1), "outer": torch.ones(1)})
    with pytest.raises(MessageError, match="feature"):
        gaussian_from_message(Message("sums", {"count": one, "sum": torch.ones(0), "outer": torch.ones(0)}))
    images = {"count": 2 * one, "mean": torch.ones(3), "deviations": torch.ones(2, 3)}
    for shares in (torch.tensor([2.0, -1.0]), torch.ones(2)):
        with pytest.raises(MessageError, match="add up to 1"):
            gaussian_from_message(Message("gaussian-images", {**images, "shares": shares}))
    with pytest.raises(MessageError, match="disagree"):
        gaussian_from_message(Message("gaussian", {"count": one, "mean": torch.ones(2), "scatter": torch.ones(3, 3)}))
