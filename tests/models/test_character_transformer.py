"""A small transformer over characters."""

import math

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader

from fedgen.data.text import cut_windows, encode
from fedgen.models import CharacterTransformer
from tests.federated.modules import make_trainer

TEXT = "abcd" * 200


def tiny(**options):
    torch.manual_seed(0)
    return CharacterTransformer(**{"length": 8, "width": 16, "layers": 1, "heads": 2, "lr": 1e-2, **options})


def windows(text=TEXT, length=8):
    return cut_windows(encode(text), length)


def test_no_character_sees_those_after_it():
    model, text = tiny().eval(), encode("abcdefgh")[None]
    changed = text.clone()
    changed[0, 5] = 0
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_the_loss_is_the_mean_cross_entropy_of_all_characters_but_the_first():
    model = tiny().eval()
    window = encode("abcd")[None]
    steps = model(window[:, :-1])[0].log_softmax(1).detach()
    by_hand = -sum(float(steps[place, token]) for place, token in enumerate(encode("bcd").tolist())) / 3
    assert float(model.losses(window).detach()) == pytest.approx(by_hand, rel=1e-6)


def test_a_model_without_knowledge_loses_about_the_logarithm_of_its_vocabulary():
    assert float(tiny().losses(windows()).detach().mean()) == pytest.approx(math.log(256), abs=0.5)


@pytest.mark.slow
def test_it_learns_and_writes_what_it_has_learnt():
    model, text = tiny(), windows()
    optimizer = model.configure_optimizers()
    for _ in range(100):
        loss = model.losses(text[:16]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2
    assert model.write(8, "abc", temperature=0) == "dabcdabc"
    draws = [model.write(20, "ab", 2.0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_example_losses_hang_on_neither_batch_nor_mode():
    model, text = tiny(), windows()[:7]
    found = model.train().example_losses(text)
    assert model.training
    assert not found.requires_grad
    assert found.shape == (7,)
    assert torch.allclose(found, model.eval().example_losses(text, None, seed=3, batch_size=2), atol=1e-6)


def test_a_checkpoint_brings_the_model_back(tmp_path):
    model = tiny()
    trainer = make_trainer(SingleDeviceStrategy("cpu"), 0, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(model, DataLoader(windows(), 4))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = CharacterTransformer.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert torch.equal(again.example_losses(windows()), model.example_losses(windows()))


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"width": 15}, {"layers": 0}, {"heads": 0}, {"lr": 0.0}, {"vocabulary": 0}]
)
def test_sizes_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tiny(**wrong)


def test_texts_longer_than_it_sees_and_writing_out_of_range_are_refused():
    with pytest.raises(ValueError, match="tokens"):
        tiny()(torch.zeros(1, 9, dtype=torch.int64))
    for wrong in ({"length": 0}, {"length": 1, "prompt": ""}, {"length": 1, "temperature": -1.0}):
        with pytest.raises(ValueError, match=r"length=|temperature"):
            tiny().write(**wrong)
    with pytest.raises(ValueError, match="batch_size"):
        tiny().example_losses(windows(), batch_size=0)
