"""Damaged messages of clients. Their transport compares checksums, they have none: what is read has its form."""

import pytest
import torch
from safetensors.torch import save

from fedgen.statistics import gaussian_from_message, gaussian_to_message, gaussian_to_sums, summarize
from fedgen.statistics.fixed_point import FixedPoint
from fedgen.statistics.messages import KINDS, Message, MessageError
from tests.fuzz.damage import fuzz

FEATURES = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
CODE = FixedPoint(clients=3)
MESSAGES = {
    "dense": lambda: gaussian_to_message(summarize(FEATURES), embedding="pixels"),
    "of few images": lambda: gaussian_to_message(summarize(FEATURES[:3]), embedding="pixels"),
    "sums": lambda: gaussian_to_sums(summarize(FEATURES), embedding="pixels"),
    "whole numbers": lambda: CODE.encode(gaussian_to_sums(summarize(FEATURES), embedding="pixels")),
}


def read(path):
    """What a server makes of the bytes that arrived; errors name the file for the sake of the tests."""
    try:
        message = Message.from_bytes(path.read_bytes())
        message = CODE.decode(message) if message.kind == "fixed-point" else message
        return message, gaussian_from_message(message)
    except MessageError as error:
        raise ValueError(f"{path.name}: {error}") from error


def is_summary(found, _):
    message, gaussian = found
    numbers = [value.isfinite().all() for value in message.tensors.values()]
    axes = [message.tensors[name].ndim == count for name, count in KINDS[message.kind].items()]
    return all(numbers) and all(axes) and gaussian.count >= 1 and gaussian.mean.shape == (gaussian.dim,)


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_thousand_damaged_messages_are_refused_or_have_their_form(kind, tmp_path):
    path = tmp_path / "message"
    path.write_bytes(MESSAGES[kind]().to_bytes())
    assert fuzz(read, path, is_summary) > 300


NAN, SUMS = float("nan"), {"count": torch.tensor(3.0), "sum": torch.zeros(2), "outer": torch.zeros(3)}
HEADER = {"fedgen": "1", "kind": "sums", "meta": "{}"}


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        *[({name: None}, {}) for name in SUMS],
        *[({"count": torch.tensor(count)}, {}) for count in (NAN, -1.0, 0.0, 0.5, [3.0], 3, True)],
        *[({"sum": value}, {}) for value in (torch.zeros(0), torch.zeros(3), torch.zeros(1, 2), torch.full((2,), NAN))],
        *[({"sum": value}, {}) for value in (torch.zeros(2).long(), torch.zeros(2) > 0)],
        *[({"outer": value}, {}) for value in (torch.zeros(4), torch.full((3,), float("inf")), torch.zeros(3, 1))],
        *[({"more": value}, {}) for value in (torch.zeros(2).long(), torch.full((2,), NAN))],
        *[({}, {"fedgen": version}) for version in (None, "0", "2", "one", "")],
        *[({}, {"kind": kind}) for kind in (None, "gaussian", "os.system", "", "private-sums", "fixed-point")],
        *[({}, {"meta": meta}) for meta in ("", "[]", "3", '{"a": 1}', "[" * 10**5, "null")],
    ],
    ids=str,
)
def test_messages_of_wrong_content_are_refused(tensors, header):
    sent = {name: tensor for name, tensor in (SUMS | tensors).items() if tensor is not None}
    said = {key: text for key, text in (HEADER | header).items() if text is not None}
    with pytest.raises(MessageError):
        gaussian_from_message(Message.from_bytes(save(sent, said)))


def test_the_message_that_those_are_made_of_is_read():
    assert gaussian_from_message(Message.from_bytes(save(SUMS, HEADER))).count == 3
