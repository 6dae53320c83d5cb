"""Classes as clients and as generators."""

import pytest
import torch
from PIL import Image

from fedgen.experiments.engine.features import ImageChoice
from fedgen.experiments.ranking.sample_size import REAL, ClassSplit


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def split_of(*sizes: int, data: str = "digits") -> ClassSplit:
    return ClassSplit(ImageChoice(data, embedding="pixels"), sizes)


def test_a_smaller_client_has_the_first_images_of_a_larger_one():
    split = split_of(5, 20)
    small, large = (split.federation(size, split.train.features) for size in (5, 20))
    assert small.names == tuple("0123456789")
    for few, many in zip(small.positions, large.positions):
        assert torch.equal(few, many[:5])
    labels = split.train.examples.labels
    assert labels[large.positions[3]].tolist() == [3] * 20


def test_generators_share_no_image_with_clients_or_public_images():
    split = split_of(20)
    clients = torch.cat(list(split.orders.values()))  # of any size, and public
    pixels = {tuple(row.tolist()) for row in split.train.features[clients]}
    generated = torch.cat([split.generated[name] for name in split.classes])
    assert len(clients) + len(generated) == 1797
    assert not pixels & {tuple(row.tolist()) for row in generated}
    assert len(split.generated[REAL]) == len(split.generated["0"])


def test_components_are_of_images_that_no_client_has():
    split = split_of(20)
    projection = split.projection(4)
    assert projection.dim == 4
    assert projection.count == sum(map(len, split.orders.values())) - 200
    with pytest.raises(ValueError, match="components"):
        split.projection(1000)


def test_a_class_too_small_and_data_without_classes_are_named(tmp_path):
    with pytest.raises(ValueError, match="smaller"):
        split_of(500).projection(4)
    (tmp_path / "images" / "grey").mkdir(parents=True)
    Image.new("L", (4, 4), 9).save(tmp_path / "images" / "grey" / "1.png")
    with pytest.raises(ValueError, match="federation"):
        split_of(1, data=str(tmp_path / "images")).projection(1)
