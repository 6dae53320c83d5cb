"""A language model of whole texts: its losses are probabilities, and its samples are drawn by them."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

from fedgen.data.text import encode_all
from fedgen.models import CharacterLSTM


@pytest.fixture
def model():
    torch.manual_seed(0)
    return CharacterLSTM(width=12, layers=2, embedding=4, longest=6)


@torch.no_grad()
def test_a_loss_is_that_of_one_byte_after_another_and_the_end(model):
    text = b"CC(=O)N"
    state, before, expected = None, torch.zeros(1, 1, dtype=torch.int64), 0.0
    for byte in [*text, 0]:
        logits, state = model(before, state)
        expected -= float(logits[0, -1].log_softmax(0)[byte])
        before = torch.tensor([[byte]])
    rows = encode_all([text.decode(), "c1ccccc1Cl"])
    assert float(model.losses(rows)[0]) == pytest.approx(expected, rel=1e-5)
    assert float(model.losses(F.pad(rows, (0, 5)))[0]) == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(model.example_losses(rows, batch_size=1), model.losses(rows), rtol=1e-5)


def test_samples_come_as_often_as_their_probability(model):
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(-1e4)
        model.head.bias[[0, ord("C"), ord("N")]] = torch.tensor([0.5, 0.3, 0.2]).log()
    texts = model.sample(4000, torch.Generator().manual_seed(0))
    for text in ["", "C", "N", *map("".join, product("CN", repeat=2))]:
        expected = float((-model.example_losses(encode_all([text]))).exp())
        assert texts.count(text) / 4000 == pytest.approx(expected, abs=4 * (expected / 4000) ** 0.5)
    assert max(map(len, texts)) <= 6


def test_samples_are_those_of_their_generator_and_leave_the_mode(model):
    first, second = (model.sample(20, torch.Generator().manual_seed(1)) for _ in range(2))
    assert first == second
    assert model.training


@pytest.mark.parametrize("wrong", [{"width": 0}, {"longest": 0}, {"lr": 0.0}])
def test_values_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CharacterLSTM(**wrong)
