"""Form (a): clients asked about every batch; only sums are seen, bytes are counted, and the gradient is the pool's."""

import copy

import pytest
import torch
from torch import nn

from fedgen.losses import DistributedLoss, EmbeddedLoss, FastFIDLoss, MMD2Loss, QueueMoments
from fedgen.losses.distributed import ScoringClient, SimulatedClients, message_weights
from fedgen.scores import KernelReference, PolynomialKernel, RBFKernel
from fedgen.statistics import summarize
from fedgen.statistics.statistic_messages import Message, message_size
from tests.losses.simple import two_numbers
from tests.losses.test_mmd2 import BATCH, CLIENTS, WEIGHTS, draw, gradient_of, plain_kernel, plain_mmd2


def by_autograd(real, shares=None, kernel=None):
    """The gradient of MMD^2 of the batch to the pool of real features, each with a share, from kernel matrices."""
    kernel = kernel or PolynomialKernel()
    features = BATCH.clone().requires_grad_()
    if shares is None:
        value = plain_mmd2(kernel, True, features, real)
    else:
        matrix = plain_kernel(kernel, features, features)
        within = (matrix.sum() - matrix.diagonal().sum()) / (len(BATCH) * (len(BATCH) - 1))
        value = within - 2 * (plain_kernel(kernel, features, real).mean(0) * shares).sum()
    return torch.autograd.grad(value, features)[0]


@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel()], ids=repr)
def test_the_gradient_is_that_of_mmd2_to_the_pooled_images_by_autograd(kernel):
    loss = DistributedLoss(MMD2Loss(kernel)).set_references(CLIENTS)
    difference = (gradient_of(loss, BATCH) - by_autograd(torch.cat(CLIENTS), kernel=kernel)).abs().max()
    assert difference < 1e-10


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_weights_of_avg_and_of_all_make_one_gradient(weights):
    """The mean of the clients' gradients is the gradient to the mixture sum_i lambda_i P_i."""
    loss = DistributedLoss().set_references(CLIENTS, weights)
    found = gradient_of(loss, BATCH)
    lambdas = KernelReference.from_features(CLIENTS, weights=weights).weights
    counts = torch.tensor([len(part) for part in CLIENTS])
    mixture = by_autograd(torch.cat(CLIENTS), (lambdas / counts).repeat_interleave(counts))
    mean = sum(weight * by_autograd(part) for weight, part in zip(lambdas, CLIENTS))
    assert (found - mixture).abs().max() < 1e-10
    assert (found - mean).abs().max() < 1e-10
    for aggregate in ("all", "avg"):
        same = MMD2Loss(aggregate=aggregate).set_references(CLIENTS, weights)
        assert (found - gradient_of(same, BATCH)).abs().max() < 1e-10
    expected = KernelReference.from_features(CLIENTS, weights=weights).score(BATCH, errors=False)
    assert loss(BATCH).item() == pytest.approx(expected.values["avg"], rel=1e-12)


def test_two_clients_of_one_number_by_hand():
    """Client 0 has 0 and 0, client 1 has 1 and 1; the batch is 1 and 2, and (xy + 1)^3 their kernel."""
    loss = DistributedLoss().set_references([torch.zeros(2, 1), torch.ones(2, 1)])
    batch = torch.tensor([[1.0], [2.0]], requires_grad=True)
    value = loss(batch)
    assert value.item() == pytest.approx(((1 + 27 - 2) + (8 + 27 - 2 * (8 + 27) / 2)) / 2)
    value.backward()
    # within the batch 54 and 27; between: 3 (x + 1)^2 to client 1, nothing to client 0
    assert batch.grad.flatten().tolist() == pytest.approx([54 - 12 / 2, 27 - 27 / 2])


class Watched(SimulatedClients):
    def ask(self, question):
        self.answer = super().ask(question)
        return self.answer


def test_only_the_sum_of_the_answers_is_seen():
    """The answer has the shape of a single client's, and is the same however its sum is spread over clients."""
    answers = []
    for parts in (CLIENTS, CLIENTS[::-1], [torch.cat(CLIENTS)]):
        simulated = Watched(
            [ScoringClient(MMD2Loss(constant=False).set_references([part]), len(part)) for part in parts]
        )
        loss = DistributedLoss().connect(simulated, 6)
        gradient_of(loss, BATCH)
        answers.append(simulated.answer)
        assert {name: tuple(t.shape) for name, t in simulated.answer.tensors.items()} == {
            "weight": (),
            "value": (),
            "gradient": (9, 6),
        }
        assert set(vars(simulated)) - set(vars(nn.Module())) == {"precision", "traffic", "answer"}
    for answer in answers[1:]:
        assert answer.meta == answers[0].meta
        for name, tensor in answer.tensors.items():
            torch.testing.assert_close(tensor, answers[0].tensors[name], rtol=1e-11, atol=1e-11)
    assert answers[0].tensors["weight"].item() == 60


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_bytes_are_counted_exactly(precision):
    """Numbers a question: m D; an answer: m D and two. The rest are headers, which `to_bytes` writes."""
    loss = DistributedLoss(precision=precision).set_references(CLIENTS)
    gradient_of(loss, BATCH)
    width = precision.itemsize
    down = Message("features", {"features": BATCH}, {"gradient": "yes"}).to_bytes(precision)
    tensors = {"weight": torch.ones(()), "value": torch.ones(()), "gradient": BATCH}
    up = Message("terms", tensors).to_bytes(precision)
    assert len(down) - 8 - int.from_bytes(down[:8], "little") == 9 * 6 * width
    assert len(up) - 8 - int.from_bytes(up[:8], "little") == (9 * 6 + 2) * width
    assert (loss.traffic.down, loss.traffic.up, loss.traffic.questions) == (3 * len(down), 3 * len(up), 1)


def test_numbers_sent_in_single_precision_lose_their_digits_and_no_more():
    double, single = (DistributedLoss(precision=p).set_references(CLIENTS) for p in (torch.float64, torch.float32))
    exact = gradient_of(double, BATCH)
    error = (gradient_of(single, BATCH) - exact).norm() / exact.norm()
    assert 1e-9 < error < 1e-6
    rounded = BATCH.float()
    assert single(rounded).item() == pytest.approx(double(rounded).item(), rel=1e-6)


def test_a_loss_that_needs_no_gradient_asks_for_none():
    loss = DistributedLoss().set_references(CLIENTS)
    with torch.no_grad():
        value = loss(BATCH)
    up = loss.traffic.up
    assert value.item() == pytest.approx(loss(BATCH.clone().requires_grad_()).item(), rel=1e-14)
    assert up < (loss.traffic.up - up) / 2


def test_fid_avg_takes_mmd2s_place():
    loss = DistributedLoss(FastFIDLoss(aggregate="avg")).set_references(CLIENTS)
    same = FastFIDLoss(aggregate="avg").set_references(CLIENTS)
    assert loss.score == "fid"
    assert loss(BATCH).item() == pytest.approx(same(BATCH).item(), rel=1e-11)
    assert (gradient_of(loss, BATCH) - gradient_of(same, BATCH)).abs().max() < 1e-10


def test_losses_that_are_no_mean_of_clients_or_remember_batches_are_refused():
    with pytest.raises(ValueError, match="FIDs"):
        DistributedLoss(FastFIDLoss())
    with pytest.raises(ValueError, match="BatchMoments"):
        DistributedLoss(FastFIDLoss(QueueMoments(10), aggregate="avg"))
    with pytest.raises(ValueError, match="precision"):
        DistributedLoss(precision=torch.float16)


def test_a_client_without_images_is_named_before_anything_is_asked():
    with pytest.raises(ValueError, match="features"):
        DistributedLoss().set_references([CLIENTS[0], CLIENTS[1][:0], CLIENTS[2]])
    with pytest.raises(ValueError, match="statistic"):
        DistributedLoss().set_references([CLIENTS[0], CLIENTS[1], CLIENTS[2][:1]])
    with pytest.raises(ValueError, match="features"):
        DistributedLoss().set_references([CLIENTS[0], draw(4, 1, dim=3)])
    with pytest.raises(ValueError, match="Gaussian"):
        DistributedLoss().set_references([summarize(CLIENTS[0])])
    with pytest.raises(ValueError, match="references"):
        DistributedLoss()(BATCH)
    with pytest.raises(ValueError, match="batch"):
        DistributedLoss().set_references(CLIENTS)(BATCH[:1])


def test_weights_of_answers():
    assert message_weights("examples", [3, 5]) == [3.0, 5.0]
    assert message_weights("uniform", [3, 6]) == pytest.approx([4.0, 4.0])  # as 8 images that count alike
    assert message_weights([1, 3], [3, 5]) == pytest.approx([0.25 / (1 / 48 + 9 / 80), 0.75 / (1 / 48 + 9 / 80)])


def test_a_copy_asks_clients_of_its_own_and_nothing_is_saved():
    loss = DistributedLoss().set_references(CLIENTS)
    twin = copy.deepcopy(loss)
    assert loss.state_dict() == {}
    assert torch.equal(twin(BATCH), loss(BATCH))
    assert (twin.traffic.questions, loss.traffic.questions) == (1, 1)
    twin.set_references(CLIENTS[:1])
    assert twin(BATCH).item() != loss(BATCH).item()


# ---- as a loss of images ----


def clients():
    draws = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=draws) for n in (6, 4)]


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 64)

    def forward(self, latents):
        return self.layer(latents).tanh().unflatten(1, (1, 8, 8))


def backward(loss, generator, latents):
    generator.zero_grad()
    for part in loss.backward_parts(generator, latents, None):
        part.backward()
    return generator.layer.weight.grad.clone()


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_in_an_embedded_loss_it_is_the_loss_to_the_pool_with_one_embedding_or_several(names):
    """Values differ by avg - all, so with several embeddings in balance both use avg's value."""
    embeddings = [two_numbers(name) for name in names]
    generator, latents = Generator(), torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    ours = EmbeddedLoss(DistributedLoss(), embeddings, weight=5.0).set_references(clients())
    pool = EmbeddedLoss(MMD2Loss(aggregate="avg"), embeddings, weight=5.0).set_references(clients())
    expected = backward(pool, generator, latents)
    torch.testing.assert_close(backward(ours, generator, latents), expected, rtol=1e-5, atol=1e-8)
    assert [loss.traffic.questions for loss in ours.losses] == [1] * len(names)
    assert set(ours.take_totals()[0]) == {*(f"kid_loss/{name}" for name in names), "kid_loss/weight"}


def test_a_large_batch_through_gradient_caching_asks_once():
    generator, latents = Generator(), torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    whole = EmbeddedLoss(DistributedLoss(), [two_numbers()]).set_references(clients())
    cached = EmbeddedLoss(DistributedLoss(), [two_numbers()], chunk=8).set_references(clients())
    expected = backward(whole, generator, latents)
    torch.testing.assert_close(backward(cached, generator, latents), expected, rtol=1e-5, atol=1e-8)
    assert cached.losses[0].traffic == whole.losses[0].traffic
    assert cached.losses[0].traffic.questions == 1


def test_questions_and_answers_survive_the_line():
    question = Message("features", {"features": BATCH}, {"gradient": "yes"})
    read = Message.from_bytes(question.to_bytes(), kind="features")
    assert torch.equal(read.tensors["features"], BATCH)
    assert message_size(question) == len(question.to_bytes(torch.float64))
