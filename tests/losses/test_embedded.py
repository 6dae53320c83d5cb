"""A score of generated images as a loss: embeddings in balance, weights, chunks, checkpointing, second passes."""

import pytest
import torch
from torch import nn

from fedgen.embeddings import embed
from fedgen.images import from_uint8
from fedgen.losses import AdaptiveWeight, EmbeddedLoss, FastFIDLoss
from tests.losses.simple import MeanLoss, TwoNumbers, two_numbers


def clients():
    draws = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=draws) for n in (6, 4)]


def generated(count=6):
    draws = torch.Generator().manual_seed(1)
    return (torch.rand(count, 1, 8, 8, generator=draws) * 2 - 1).requires_grad_()


def make(**options):
    return EmbeddedLoss(MeanLoss(), [two_numbers()], **options).set_references(clients())


def test_the_value_is_the_features_scores_times_the_weight():
    images, references = generated(), torch.cat(clients())
    features = embed(two_numbers(), torch.cat([references]))
    expected = (two_numbers()(images.detach()).double().mean(0) - features.double().mean(0)).square().sum()
    assert torch.allclose(make()(images), expected)
    assert torch.allclose(make(weight=0.5)(images), expected / 2)


def test_the_adaptive_weight_makes_it_as_large_as_the_adversarial_loss():
    loss = make(weight=AdaptiveWeight(decay=0.0))
    assert float(loss(generated(), torch.tensor(-3.0)).detach()) == pytest.approx(3.0)


@pytest.mark.parametrize("options", [{"chunk": 4}, {"checkpointing": True}, {"chunk": 1, "checkpointing": True}])
def test_chunks_and_checkpointing_change_neither_value_nor_gradient(options):
    images, again = generated(), generated()
    plain, other = make()(images), make(**options)(again)
    plain.backward()
    other.backward()
    assert torch.allclose(plain, other, rtol=1e-6)
    assert torch.allclose(images.grad, again.grad, rtol=1e-4)
    assert images.grad.abs().max() > 0


def test_checkpointing_computes_the_embedding_again_in_the_backward_pass():
    class Counting(TwoNumbers):
        calls = 0

        def forward(self, images):
            type(self).calls += 1
            return super().forward(images)

    def calls(checkpointing):
        from fedgen.embeddings import load_embedding

        Counting.calls = 0
        loss = EmbeddedLoss(MeanLoss(), [load_embedding(Counting(), name="c")], checkpointing=checkpointing)
        loss.set_references(clients())
        before = Counting.calls
        loss(generated()).backward()
        return Counting.calls - before

    assert calls(False) == 1
    assert calls(True) == 2


def test_several_embeddings_weigh_the_same_whatever_their_scale():
    class Louder(TwoNumbers):
        def forward(self, images):
            return 100 * super().forward(images)

    from fedgen.embeddings import load_embedding

    loss = EmbeddedLoss(MeanLoss(), [two_numbers(), load_embedding(Louder(), name="louder")])
    loss.set_references(clients())
    images = generated()
    value = loss(images)
    assert float(value.detach()) == pytest.approx(1.0)  # the mean of two, each divided by its own magnitude
    value.backward()
    single = generated()
    first = make()(single)
    (first / first.detach()).backward()
    assert torch.allclose(images.grad, single.grad, rtol=1e-4)  # both pull alike, the louder one not harder


def test_the_second_pass_has_the_gradient_of_the_first_at_any_chunk():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
    latents = torch.randn(10, 3)

    def gradients(chunk):
        generator.zero_grad()
        for part in make(separate=True, chunk=chunk).backward_parts(generator, latents, None):
            part.backward()
        return torch.cat([parameter.grad.flatten() for parameter in generator.parameters()])

    whole = gradients(None)
    assert whole.abs().max() > 0
    for chunk in (1, 4, 10):
        assert torch.allclose(gradients(chunk), whole, rtol=1e-4, atol=1e-9)


def test_running_statistics_of_the_generator_move_once_in_a_cached_pass():
    generator = nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.Unflatten(1, (1, 8, 8)))
    for part in make(separate=True, chunk=5).backward_parts(generator, torch.randn(10, 3), None):
        part.backward()
    assert generator[1].num_batches_tracked == 2


def test_nothing_of_embeddings_and_references_is_saved_and_what_is_remembered_is():
    assert set(make().state_dict()) == {"losses.0.seen"}
    assert set(make(weight=AdaptiveWeight()).state_dict()) == {"losses.0.seen", "weight.magnitudes", "weight.mass"}


def test_each_embedding_has_a_loss_of_its_own():
    loss = MeanLoss()
    embedded = EmbeddedLoss(loss, [two_numbers("a"), two_numbers("b")]).set_references(clients())
    embedded(generated())
    assert [part.seen.item() for part in embedded.losses] == [6, 6]
    assert loss.seen.item() == 0


def test_it_tells_what_it_measured():
    loss = make(weight=0.5)
    values = [float(loss(generated(count)).detach()) for count in (3, 5)]
    totals, steps = loss.take_totals()
    assert steps == 2
    assert set(totals) == {"mean_loss/two-numbers", "mean_loss/weight"}
    assert float(totals["mean_loss/two-numbers"]) == pytest.approx(2 * sum(values))
    assert float(totals["mean_loss/weight"]) == 1.0
    assert loss.take_totals() == ({}, 0)


def test_evaluation_is_neither_counted_nor_remembered():
    loss = EmbeddedLoss(MeanLoss(), [two_numbers("a"), two_numbers("b")], weight=AdaptiveWeight())
    loss.set_references(clients())
    loss(generated(3), torch.tensor(2.0))
    before = {name: value.clone() for name, value in loss.state_dict().items() if not name.endswith("seen")}
    loss.eval()
    loss(generated(5), torch.tensor(7.0))
    assert all(torch.equal(loss.state_dict()[name], value) for name, value in before.items())
    assert loss.take_totals()[1] == 1


def test_embeddings_come_by_name_or_by_their_options():
    loss = EmbeddedLoss(MeanLoss(), ["pixels", {"name": "efficientnet-lite0", "size": 32}])
    assert loss.names == ["pixels", "efficientnet-lite0-32"]


def test_a_perfect_batch_has_no_loss():
    reals = clients()
    loss = make()
    assert float(loss(from_uint8(torch.cat(reals)))) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: make(chunk=0), "chunk=0: must be at least 1"),
        (lambda: make(num_images=0, separate=True), "num_images=0: must be at least 1"),
        (lambda: make(num_images=64), "num_images=64 is for a separate pass; give separate=True"),
        (lambda: EmbeddedLoss(MeanLoss(), []), "needs embeddings, each once"),
        (lambda: EmbeddedLoss(MeanLoss(), ["pixels", "pixels"]), "each once, got .*pixels"),
        (lambda: EmbeddedLoss(MeanLoss(), ["pixls"]), "did you mean pixels"),
        (lambda: EmbeddedLoss(MeanLoss(), [{"size": 32}]), "needs its name"),
        (lambda: EmbeddedLoss(MeanLoss(), ["pixels"])(generated()), "has no references yet; call set_references"),
    ],
)
def test_mistakes_are_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_references_and_images_in_0_to_1_are_named():
    unit = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    loss = EmbeddedLoss(FastFIDLoss(), ["pixels"])
    with pytest.raises(ValueError, match=r"all values of 60 images lie .* images \* 2 - 1"):
        loss.set_references([unit[:30], unit[30:]])
    loss.set_references([unit * 2 - 1])
    with pytest.warns(UserWarning, match="loss"):
        loss(unit[:12])
    loss(unit[:12])  # once
