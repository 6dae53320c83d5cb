"""What GANs, fine-tuned generators and flows have in common: labels that may be asked for, and marks that stay."""

import pytest
import torch

from fedgen.data import Digits, Examples
from fedgen.evaluation import evaluate, sampler_of
from fedgen.evaluation.runs.rebuild import load_weights
from fedgen.losses import EmbeddedLoss, FastFIDLoss
from fedgen.models import GAN, FineTuning, Hinge
from fedgen.models.checkpoint_file import OPTIMISED_ON
from fedgen.models.networks import SmallCritic, SmallGenerator
from tests.losses.simple import MeanLoss, two_numbers
from tests.models.test_gan_games import make, make_conditional, train

pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|LeafSpec|in eval mode|in the checkpoint)")


def in_pixels():
    return EmbeddedLoss(FastFIDLoss(), ["pixels"])


def digits(start, stop):
    """Some labelled digits, as one client."""
    whole = Digits().load("train")
    return Examples(whole.inputs[start:stop], whole.labels[start:stop], whole.name, whole.classes)


# ---- labels ----


def test_a_conditional_generators_model_can_be_asked_for_classes():
    assert sampler_of(make_conditional()).num_classes == 10
    assert sampler_of(FineTuning(make_conditional().generator, [in_pixels()])).num_classes == 10
    assert sampler_of(make()).num_classes is None


def test_a_conditional_gan_is_scored_by_its_utility():
    clients = {"train": [digits(0, 100)], "report": [digits(100, 160)]}
    scores = [{"name": "utility", "epochs": 1, "batch_size": 20}]
    records = evaluate(make_conditional(), clients, scores=scores, embeddings=["pixels"], num_images=40, seed=0)
    assert {record.name for record in records} == {"utility_avg", "utility_all", "utility_worst"}


# ---- what was optimised ----


def records_of(model):
    options = {"embeddings": ["pixels"], "scores": ["fid"], "num_images": 80, "seed": 0}
    return evaluate(model, {"train": [digits(0, 100)]}, **options)


def test_the_evaluation_in_one_call_marks_what_was_optimised():
    marked, plain = make(generator_losses=[in_pixels()]), make()
    assert all(record.optimised_on == ["pixels"] for record in records_of(marked))
    assert not any(record.optimised_on for record in records_of(plain))


@pytest.fixture
def checkpoint(tmp_path):
    """Of a GAN that was trained on FID in pixels."""
    path = tmp_path / "gan.ckpt"
    train(make(generator_losses=[in_pixels()]), tmp_path).save_checkpoint(path)
    return path


@pytest.mark.slow
def test_a_checkpoint_without_its_losses_still_says_what_they_optimised(checkpoint):
    loaded = GAN.load_from_checkpoint(checkpoint, weights_only=True)
    assert loaded.optimised_on == ["pixels"]
    assert loaded.generator_losses == []
    module = make()
    load_weights(module, checkpoint)
    assert module.optimised_on == ["pixels"]
    with_another = GAN.load_from_checkpoint(
        checkpoint, weights_only=True, strict=False, generator_losses=[EmbeddedLoss(MeanLoss(), [two_numbers()])]
    )
    assert with_another.optimised_on == ["pixels", "two-numbers"]


def test_fine_tuning_goes_on_with_its_sources_marks_and_hands_them_on(checkpoint, tmp_path):
    module = FineTuning(str(checkpoint), [EmbeddedLoss(MeanLoss(), [two_numbers()])], batch=4)
    assert module.optimised_on == ["pixels", "two-numbers"]
    train(module, tmp_path).save_checkpoint(tmp_path / "tuned.ckpt")
    assert FineTuning.load_from_checkpoint(tmp_path / "tuned.ckpt", weights_only=True).optimised_on == [
        "pixels",
        "two-numbers",
    ]
    assert FineTuning(str(tmp_path / "tuned.ckpt")).optimised_on == ["pixels", "two-numbers"]


def test_fine_tuning_asks_a_network_too():
    network = SmallGenerator(latent_dim=3, width=2)
    assert FineTuning(network, [in_pixels()]).optimised_on == ["pixels"]
    network.optimised_on = ["inception-v3-compat"]
    assert FineTuning(network, [in_pixels()]).optimised_on == ["inception-v3-compat", "pixels"]


def test_a_checkpoint_from_before_the_marks_loads_and_leaves_what_is_known(checkpoint):
    content = torch.load(checkpoint, weights_only=True)
    del content[OPTIMISED_ON]
    torch.save(content, checkpoint)
    assert GAN.load_from_checkpoint(checkpoint, weights_only=True).optimised_on == []
    marked = GAN(SmallGenerator(latent_dim=3, width=2), SmallCritic(width=2), Hinge(), generator_losses=[in_pixels()])
    load_weights(marked, checkpoint)
    assert marked.optimised_on == ["pixels"]
