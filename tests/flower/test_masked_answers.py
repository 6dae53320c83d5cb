"""Answers as numbers in [-1, 1] and back: the sum, where each lies, and the form that every client's has."""

import pytest
import torch

from fedgen.flower.secure_aggregation.secure_sums import STEP, decode, encode
from fedgen.flower.wire.answer_forms import check_form, form_of
from fedgen.flower.wire.messages import Scale
from fedgen.losses import DistributedLoss, FastFIDLoss, OneMessageLoss
from fedgen.statistics.statistic_messages import Message, MessageError, add

FEATURES = torch.rand(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
CENTRE = {"number": "7", "seed": "3", "dim": "5"}
QUESTIONS = {
    "features": (DistributedLoss(), Message("features", {"features": FEATURES[:4]}, {"gradient": "yes"})),
    "value": (DistributedLoss(), Message("features", {"features": FEATURES[:4]}, {"gradient": "no"})),
    "landmarks": (OneMessageLoss(), Message("landmarks", {"landmarks": FEATURES[:3]})),
    "no landmarks": (OneMessageLoss(), Message("landmarks", {"landmarks": torch.zeros(0, 5)})),
    "moments": (OneMessageLoss(FastFIDLoss()), Message("moments", {})),
    "sketch": (OneMessageLoss(), Message("sketch", {"centre": FEATURES.mean(0)}, CENTRE)),
    "uncentred": (OneMessageLoss(), Message("sketch", {"centre": torch.zeros(0)}, CENTRE)),
}


def terms(weight, value, gradient):
    tensors = {"weight": torch.tensor(weight), "value": torch.tensor(value), "gradient": torch.tensor(gradient)}
    return Message("terms", {name: tensor.double() for name, tensor in tensors.items()})


def summed(answers, scale):
    """What the server reads of the mean of the clients' arrays, and their sum."""
    arrays = [encode(answer, scale) for answer in answers]
    assert all(abs(array).max(initial=0) <= 1 for each in arrays for array in each)
    mean = [sum(each) / len(answers) for each in zip(*arrays, strict=True)]
    weight = float(
        sum(answer.tensors[name] for answer in answers for name in ("weight", "count") if name in answer.tensors)
    )
    return (*decode(mean, answers[0], scale, len(answers), weight), add(*answers))


@pytest.mark.parametrize("name", QUESTIONS)
def test_clients_answers_have_the_form_and_their_masked_sum_is_their_sum(name):
    loss, question = QUESTIONS[name]
    answers = [loss.client_of(FEATURES[start:], weight)(question) for start, weight in ((0, 2.0), (4, 5.0))]
    form = form_of(question, 5)
    for answer, weight in zip(answers, (2.0, 5.0)):
        check_form(answer, form, weight)
    found, bounds, total = summed(answers, Scale(ranges=dict.fromkeys(form.tensors, 64.0), largest=5.0))
    assert found.kind == total.kind
    assert found.meta == total.meta
    for key, tensor in total.tensors.items():
        torch.testing.assert_close(found.tensors[key], tensor, rtol=0, atol=2 * 5 * 64 * STEP)
        if key in bounds:
            largest = max(float(answer.tensors[key].abs().max()) for answer in answers) / 5
            assert bounds[key] / 2 <= largest <= bounds[key]


def test_a_mark_says_what_was_cut_off():
    answers = [terms(1.0, 0.75, [[0.1, 3.0]]), terms(2.0, -6.0, [[0.5, 0.5]])]
    found, bounds, _ = summed(answers, Scale(ranges={"value": 4.0, "gradient": 1.0}, largest=2.0))
    assert bounds == {"value": 4.0, "gradient": 2.0}  # of 6 / 2 and 3 / 2: each below the next power of two
    assert found.tensors["weight"] == 3
    assert found.tensors["value"] == pytest.approx(-5.25)
    assert found.tensors["gradient"].tolist() == [[pytest.approx(0.6), pytest.approx(2.5)]]  # 2 of the 3


def test_a_sum_of_zeros_and_of_huge_numbers_has_a_bound():
    assert (
        summed([terms(1.0, 0.0, [[0.0]])] * 2, Scale(ranges={"value": 1.0, "gradient": 1.0}, largest=1.0))[1]["value"]
        == 2.0**-64
    )
    bound = summed([terms(1.0, 1e30, [[0.0]])] * 2, Scale(ranges={"value": 1.0, "gradient": 1.0}, largest=1.0))[1][
        "value"
    ]
    assert bound == 2.0**63


def test_other_forms_and_weights_are_refused():
    form = terms(0.0, 0.0, [[0.0, 0.0]])
    check_form(terms(3.0, 1.0, [[1.0, 2.0]]), form, 3.0)
    with pytest.raises(MessageError, match="weighs"):
        check_form(terms(3.0, 1.0, [[1.0, 2.0]]), form, 2.0)
    with pytest.raises(MessageError, match="gradient"):
        check_form(terms(3.0, 1.0, [[1.0]]), form, 3.0)
    with pytest.raises(MessageError, match="answers"):
        check_form(form, form_of(Message("moments", {}), 2), 0.0)
    with pytest.raises(MessageError, match="terms"):
        form_of(form, 2)
    scale = Scale(ranges={"value": 1.0, "gradient": 1.0}, largest=1.0)
    with pytest.raises(MessageError, match="gradient"):
        decode(encode(terms(1.0, 1.0, [[1.0]]), scale), form, scale, 1, 1.0)
