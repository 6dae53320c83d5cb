"""What clients send once: sums by hand, sizes by hand, and what is made of them."""

import pytest
import torch

from fedgen.losses import MMD2Loss, Nystrom, Sketches
from fedgen.losses.one_message import SummarisingClient
from fedgen.scores import KernelReference, PolynomialKernel
from fedgen.statistics import gaussian_from_message, summarize
from fedgen.statistics.statistic_messages import Message, add
from tests.losses.test_mmd2 import BATCH, CLIENTS, draw, gradient_of
from tests.losses.test_one_message import one_message


def payload(message):
    """Bytes of a message without its header."""
    data = message.to_bytes()
    return len(data) - 8 - int.from_bytes(data[:8], "little")


def test_answers_are_sums_times_the_clients_weight():
    landmarks, weights = Message("landmarks", {"landmarks": BATCH}), (20.0, 7.0, 33.0)
    clients = [SummarisingClient(part, w, PolynomialKernel(), "u") for part, w in zip(CLIENTS, weights)]
    total = add(*(client(landmarks) for client in clients)).tensors
    pool = torch.cat(CLIENTS)
    assert total["weight"].item() == 60
    torch.testing.assert_close(total["kernels"] / 60, PolynomialKernel().block(BATCH, pool).mean(1))
    reference = KernelReference.from_features(CLIENTS)
    assert total["within"].item() / 60 == pytest.approx(float(reference.weights @ reference.within), rel=1e-12)
    sums = gaussian_from_message(add(*(client(Message("moments", {})) for client in clients)))
    torch.testing.assert_close(sums.covariance(1), summarize(pool).covariance(1), rtol=1e-9, atol=1e-9)
    half = SummarisingClient(CLIENTS[0], 10.0)(Message("moments", {}))
    assert half.tensors["count"].item() == 10


def test_one_landmark_by_hand():
    """Landmark 1, images 0 and 1: k(1, x) = 1 and 8 have the mean 4.5, k(1, 1) = 8, so c(y) = k(1, y) 4.5 / 8."""
    loss = one_message(Nystrom(1), torch.ones(1, 1), MMD2Loss(), [torch.tensor([[0.0], [1.0]])])
    batch = torch.tensor([[1.0], [2.0]], requires_grad=True)
    value = loss(batch)
    assert value.item() == pytest.approx(1 + 27 - 2 * 4.5 / 8 * (8 + 27) / 2)
    value.backward()
    assert batch.grad.flatten().tolist() == pytest.approx([54 - 4.5 / 8 * 12, 27 - 4.5 / 8 * 27])


def test_messages_have_the_sizes_that_can_be_counted_by_hand():
    """D = 6. Landmarks down and their kernels' means up; or D (D + 1) / 2 moments, as many tilted, and sketches."""
    client = SummarisingClient(CLIENTS[0], 20.0, PolynomialKernel(), "u")
    landmarks = Message("landmarks", {"landmarks": draw(10, 1)})
    assert payload(landmarks) == 8 * 10 * 6
    assert payload(client(landmarks)) == 8 * (10 + 2)
    assert payload(client(Message("moments", {}))) == 8 * (1 + 6 + 21)
    sketch = Message("sketch", {"centre": torch.ones(6)}, {"number": "50", "seed": "0", "dim": "6"})
    assert payload(client(sketch)) == 8 * (1 + 21 + 50 + 1)
    loss = one_message(Nystrom(10), draw(10, 1))
    assert loss.traffic.down == 3 * len(landmarks.to_bytes())
    assert loss.traffic.up == sum(
        len(SummarisingClient(c, 1.0, PolynomialKernel())(landmarks).to_bytes()) for c in CLIENTS
    )
    assert loss.traffic.questions == 1
    gradient_of(loss, BATCH)
    assert loss.traffic.questions == 1  # nobody is asked about batches
    assert one_message(Sketches(50)).traffic.questions == 3


def test_other_questions_are_refused():
    with pytest.raises(ValueError, match="features"):
        SummarisingClient(BATCH, 1.0)(Message("features", {"features": BATCH}))
