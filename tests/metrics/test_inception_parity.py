"""FID and KID of images on the standard Inception equal torchmetrics' and torch-fidelity's, on random weights.

Of its first layer, as the peers' FID takes seconds for 2,048 features: tests/evaluation/test_parity.py has those.
"""

import pytest
import torch
from torch.utils.data import Dataset
from torch_fidelity import calculate_metrics
from torchmetrics.image import FrechetInceptionDistance, KernelInceptionDistance
from torchmetrics.image.fid import NoTrainInceptionV3

from fedgen.embeddings import load_embedding
from fedgen.metrics import FederatedFrechetDistance, FrechetDistance, KernelDistance

NUMBER = 9


def images(seed, top):
    draw = torch.Generator().manual_seed(seed)
    small = torch.randint(0, top, (NUMBER, 3, 8, 8), generator=draw).float()
    return torch.nn.functional.interpolate(small, size=(40, 32), mode="bilinear").to(torch.uint8)


REAL, GENERATED = images(0, 256), images(1, 60)


class Stored(Dataset):
    def __init__(self, stored):
        self.stored = stored

    def __len__(self):
        return len(self.stored)

    def __getitem__(self, index):
        return self.stored[index]


@pytest.fixture(scope="module")
def fidelity(inception_weights):
    """torch-fidelity's own run; its subsets hold every image, so their mean is the full sample's score."""
    return calculate_metrics(
        input1=Stored(GENERATED), input2=Stored(REAL), fid=True, kid=True, kid_subsets=1, kid_subset_size=NUMBER,
        cuda=False, cache=False, verbose=False, save_cpu_ram=True,
        feature_extractor="inception-v3-compat", feature_extractor_weights_path=str(inception_weights),
        feature_layer_fid="64", feature_layer_kid="64",
    )  # fmt: skip


def score(metric, size=5):
    for part in REAL.split(size):
        metric.update(part, real=True)
    metric.update(GENERATED, real=False)
    return metric.compute()


@pytest.fixture(scope="module")
def embedding(inception_weights):
    return load_embedding("inception-v3-compat-64", weights=inception_weights)


@pytest.fixture(scope="module")
def network(inception_weights):
    return NoTrainInceptionV3("inception-v3-compat", ["64"], str(inception_weights), antialias=False)


@pytest.mark.slow
def test_fid(embedding, network, fidelity):
    ours = score(FrechetDistance(embedding)).item()
    theirs = FrechetInceptionDistance(network)
    assert ours == pytest.approx(score(theirs).item(), rel=1e-5)
    assert ours == pytest.approx(fidelity["frechet_inception_distance"], rel=1e-5)
    assert ours > 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance`")
def test_kid(embedding, network, fidelity):
    ours = score(KernelDistance(embedding)).item()
    theirs = KernelInceptionDistance(network, subsets=1, subset_size=NUMBER)
    assert ours == pytest.approx(score(theirs)[0].item(), abs=1e-6)
    assert ours == pytest.approx(fidelity["kernel_inception_distance_mean"], abs=1e-6)
    assert ours > 1e-3


@pytest.mark.slow
def test_fid_all_over_clients_is_the_fid_of_their_pooled_images(embedding, fidelity):
    metric = FederatedFrechetDistance(3, embedding, aggregate=("avg", "all"))
    metric.update(REAL, client=torch.arange(NUMBER) % 3)
    metric.update(GENERATED, client=None)
    found = metric.compute()
    assert found["fid_all"].item() == pytest.approx(fidelity["frechet_inception_distance"], rel=1e-5)
    assert found["fid_avg"] > found["fid_all"]
