"""What GANs, fine-tuned generators and flows have in common: labels that may be asked for."""

import pytest

from fedgen.data import Digits, Examples
from fedgen.evaluation import evaluate, sampler_of
from fedgen.losses import EmbeddedLoss, FastFIDLoss
from fedgen.models import FineTuning
from tests.models.test_gan_games import make, make_conditional

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
