"""FID-avg from messages, against the scores on features at hand."""

import pytest
import torch

from fedgen.scores import FrechetReference
from fedgen.scores.frechet.frechet import fid_from_messages, fid_message
from fedgen.statistics import Message, MessageError, add, summarize


def images(seed, count, scale):
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


CLIENTS = [images(0, 4, 1.0), images(1, 30, 0.5), images(2, 60, 2.0)]
GENERATED = images(9, 50, 1.2)


@pytest.mark.parametrize("ddof", [0, 1])
def test_summed_messages_give_the_mean_over_clients(ddof):
    expected = FrechetReference.from_features(CLIENTS, ddof=ddof).score(GENERATED, errors=False)
    messages = [fid_message(part, summarize(GENERATED), ddof, embedding="e") for part in CLIENTS]
    total = add(*(Message.from_bytes(message.to_bytes()) for message in messages))
    assert fid_from_messages(total) == pytest.approx(expected.values["avg"], rel=1e-12)
    assert messages[1].tensors["score"] / 30 == pytest.approx(float(expected.per_client[1]), rel=1e-12)


def test_messages_of_other_divisors_or_kinds_are_refused():
    one, other = (fid_message(CLIENTS[1], summarize(GENERATED), ddof) for ddof in (0, 1))
    with pytest.raises(MessageError, match="differently"):
        add(one, other)
    with pytest.raises(MessageError, match="expected"):
        fid_from_messages(Message("kid", {**one.tensors, "within": torch.ones(())}))
    with pytest.raises(MessageError, match="at least one image"):
        fid_from_messages(one.scaled(0))


def test_one_image_has_no_covariance():
    with pytest.raises(ValueError, match="at least two images"):
        fid_message(CLIENTS[0][:1], summarize(GENERATED))
