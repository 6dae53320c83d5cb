"""Classes as clients and as generators."""

import pytest
import torch
from PIL import Image

from fedgen.experiments.engine.features import ImageChoice
from fedgen.experiments.ranking.sample_size import REAL, ClassDeal


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def deal(*sizes: int, data: str = "digits") -> ClassDeal:
    return ClassDeal(ImageChoice(data, embedding="pixels"), sizes)


def test_a_smaller_client_has_the_first_images_of_a_larger_one():
    dealt = deal(5, 20)
    small, large = (dealt.federation(size, dealt.train.features) for size in (5, 20))
    assert small.names == tuple("0123456789")
    for few, many in zip(small.positions, large.positions):
        assert torch.equal(few, many[:5])
    labels = dealt.train.examples.labels
    assert labels[large.positions[3]].tolist() == [3] * 20


def test_generators_share_no_image_with_clients_or_public_images():
    dealt = deal(20)
    clients = torch.cat(list(dealt.orders.values()))  # of any size, and public
    pixels = {tuple(row.tolist()) for row in dealt.train.features[clients]}
    generated = torch.cat([dealt.generated[name] for name in dealt.classes])
    assert len(clients) + len(generated) == 1797
    assert not pixels & {tuple(row.tolist()) for row in generated}
    assert len(dealt.generated[REAL]) == len(dealt.generated["0"])


def test_components_are_of_images_that_no_client_has():
    dealt = deal(20)
    projection = dealt.projection(4)
    assert projection.dim == 4
    assert projection.count == sum(map(len, dealt.orders.values())) - 200
    with pytest.raises(ValueError, match="components"):
        dealt.projection(1000)


def test_a_class_too_small_and_data_without_classes_are_named(tmp_path):
    with pytest.raises(ValueError, match="smaller"):
        deal(500).projection(4)
    (tmp_path / "images" / "grey").mkdir(parents=True)
    Image.new("L", (4, 4), 9).save(tmp_path / "images" / "grey" / "1.png")
    with pytest.raises(ValueError, match="federation"):
        deal(1, data=str(tmp_path / "images")).projection(1)
