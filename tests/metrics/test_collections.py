"""Metrics in torchmetrics' collections: shared updates where they are equal, never where they are not."""

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.wrappers import FeatureShare

from fedgen.embeddings import ModuleEmbedding
from fedgen.metrics import FederatedFrechetDistance, FederatedKernelDistance, FrechetDistance, KernelDistance
from tests.metrics.sets import CLIENTS, DIM, FEDERATED, GENERATED, METRICS, batches, filled


def run(collection, federated=True):
    for batch in batches(federated):
        collection.update(**batch)
    return collection.compute()


def test_results_flatten_to_readable_names():
    collection = MetricCollection({name: make() for name, make in FEDERATED.items()})
    words = ("avg", "all", "worst", "per_client")
    assert set(run(collection)) == {f"{score}_{word}" for score in ("fid", "kid") for word in words}


@pytest.mark.parametrize("name", FEDERATED)
def test_metrics_that_differ_in_what_they_compute_share_one_update(name):
    arguments = {
        "avg": {"aggregate": "avg"},
        "worst": {"aggregate": "worst"},
        "even": {"aggregate": "all", "weights": "uniform"},
        "all": {"aggregate": "all"},  # keeps one pool
    }
    collection = MetricCollection({key: METRICS[name](**value) for key, value in arguments.items()})
    for _ in range(2):
        found = run(collection)
        for key, value in arguments.items():
            assert found[key] == filled(name, **value).compute()
        assert sorted(map(sorted, collection.compute_groups.values())) == [["all"], ["avg", "even", "worst"]]
        collection.reset()


class Scaled(nn.Module):
    """Features that agree between scales on black images alone."""

    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor(float(scale)))

    def forward(self, levels):
        return levels.mean((2, 3)) * self.scale


@pytest.mark.parametrize("kind", [FrechetDistance, KernelDistance])
def test_embeddings_that_agree_on_the_first_batch_do_not_share(kind):
    # torchmetrics compares states after the first update, and these are equal then
    draw = torch.Generator().manual_seed(0)
    black, images = (torch.randint(0, 1 + top, (9, 3, 4, 4), generator=draw, dtype=torch.uint8) for top in (0, 255))
    metrics = [
        kind(
            ModuleEmbedding(Scaled(scale), input_range="levels"), dim=3, normalize=normalize, reset_real_features=reset
        )
        for scale, normalize, reset in ((1, False, True), (2, False, True), (1, True, True), (1, False, False))
    ]
    collection = MetricCollection({str(number): metric for number, metric in enumerate(metrics[:2] + metrics[3:])})
    alone = collection.clone()
    for metric in alone.values():
        metric.update(black, real=True)
        metric.update(images, real=True)
        metric.update(images.flip(3) // 2, real=False)
    collection.update(black, real=True)
    collection.update(images, real=True)
    collection.update(images.flip(3) // 2, real=False)
    assert len(collection.compute_groups) == 3
    for key, value in collection.compute().items():
        assert value == alone[key].compute()
    assert not torch.equal(metrics[0].made_with, metrics[2].made_with)


def test_a_plain_metric_and_one_of_a_single_client_do_not_share():
    collection = MetricCollection([FrechetDistance(dim=DIM), FederatedFrechetDistance(1, dim=DIM, aggregate="avg")])
    collection.update(CLIENTS[2], real=True, client=0)
    collection.update(GENERATED, real=False, client=None)
    assert len(collection.compute_groups) == 2
    first, second = collection.compute().values()
    assert first.item() == pytest.approx(second.item())


@pytest.mark.parametrize("reset", [True, False])
def test_a_group_resets_as_one_metric_does(reset):
    collection = MetricCollection(
        {
            f"{name} {aggregate}": make(aggregate=aggregate, reset_real_features=reset)
            for name, make in FEDERATED.items()
            for aggregate in ("avg", "worst")
        }
    )
    before = run(collection)
    collection.reset()
    collection.update(GENERATED, client=None)
    if reset:
        with pytest.raises(ValueError, match="seen"):
            collection.compute()
    else:
        assert collection.compute() == before


def test_clones_of_a_collection_merge_metric_by_metric():
    whole = MetricCollection({name: make(aggregate="avg") for name, make in FEDERATED.items()})
    parts = [whole.clone(), whole.clone()]
    for number, batch in enumerate(batches(True)):
        parts[number % 2].update(**batch)
    for key in whole:
        parts[0][key].merge_state(parts[1][key])
    for (key, value), expected in zip(parts[0].compute().items(), run(whole).values()):
        assert value.item() == pytest.approx(expected.item(), rel=1e-11), key


class Counted(nn.Module):
    """Channel means, counting its calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, levels):
        self.calls += 1
        return levels.mean((2, 3))


def test_feature_share_embeds_each_batch_once_for_all_metrics():
    embedding = ModuleEmbedding(Counted(), input_range="levels")
    metrics = {
        "fid": FederatedFrechetDistance(1, embedding, dim=3),
        "kid": FederatedKernelDistance(1, embedding, dim=3),
    }
    shared = FeatureShare(metrics)
    draw = torch.Generator().manual_seed(0)
    alone = FederatedKernelDistance(1, ModuleEmbedding(Counted(), input_range="levels"), dim=3)
    for client in (0, 0, None):
        images = torch.rand(9, 3, 4, 4, generator=draw) * 2 - 1
        shared.update(images, client=client)
        alone.update(images, client=client)
    assert embedding.network.calls == 3
    assert shared.compute()["kid_avg"] == alone.compute()["kid_avg"]
