"""The picture of a partition is drawn for images and points, few clients and many, with labels and without."""

import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.heterogeneity.heterogeneity import measure_clients
from fedgen.clients.partitions import ByClass, BySize, Natural
from fedgen.data import Digits, Examples, GaussianMixture
from fedgen.embeddings import load_embedding
from fedgen.evaluation.tables.partition_table import PartitionSummary
from fedgen.reports.figures.partition_picture import draw_partition
from tests.reports.figures.test_curves import size


def unlabelled():
    """With names that would be mathematics."""
    images, owners = Digits().load().inputs[:20], torch.arange(20) % 2
    return Examples(images, torch.zeros(20).long(), "no $labels$/train", (), owners, ("$a", "b" * 30 + "$c\udce9"))


CASES = {
    "images": (Digits(), ByClass()),
    "many": (Digits(), BySize(60)),
    "points": (GaussianMixture(50, means=((0.0,), (2.0,))), ByClass()),
    "unlabelled": (unlabelled(), Natural()),
}


SCORES = ["variance between\nclients", "FID to the pool", "KID to the pool"]
TITLES = {
    "images": [
        "sizes",
        "labels: share of a client's",
        *SCORES,
        "labels, total\nvariation",
        "Vendi score",
        "some images",
    ],
    "many": "some images of some clients",
    "points": "some points, first two coordinates",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_picture_is_drawn(case, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    titles, real = [], Axes.set_title
    monkeypatch.setattr(Axes, "set_title", lambda self, text, **o: titles.append(text) or real(self, text, **o))
    dots, lines, scatter, plot = [], [], Axes.scatter, Axes.plot
    monkeypatch.setattr(Axes, "scatter", lambda self, x, y, **o: dots.append(y) or scatter(self, x, y, **o))
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **o: lines.append(y) or plot(self, x, y, **o))
    source, partition = CASES[case]
    data = FederatedDataModule(source, partition, seed=0)
    network = load_embedding("pixels" if data.examples.is_images else "identity")
    found = measure_clients(data.clients, network, num_images=400, controls=2)
    path = draw_partition(data.clients, PartitionSummary(data), found, tmp_path / "clients.png")
    assert size(path) == (1650, 880)
    expected = TITLES.get(case, [])
    assert sorted(titles) == sorted(expected) if isinstance(expected, list) and expected else titles[0] == "sizes"
    assert isinstance(expected, list) or titles[-1] == expected
    assert ("labels: share of a client's" in titles) == (case != "unlabelled")
    if case == "images":  # every client is a dot, and the mean a line
        fid = found.measures["fid"]
        assert dots[3] == fid.per_client
        assert dots[4] == [value for deal in fid.controls["iid"] for value in deal]
        assert lines[3] == [fid.value] * 2
        assert lines[4] == pytest.approx([sum(fid.of_deals("iid")) / 2] * 2)
