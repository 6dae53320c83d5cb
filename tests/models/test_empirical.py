import pytest
import torch

from fedgen.data import Examples
from fedgen.evaluation import draw_images, evaluate
from fedgen.images import save_png, to_uint8
from fedgen.models import EmpiricalGenerator
from fedgen.models.empirical import nearest

CLASSES = ("cat", "dog", "empty", "owl")


def examples(counts=(6, 4, 0, 10)):
    """Images [N, 1, 4, 4] whose first pixel is their position and whose other levels run over all 256."""
    labels = torch.arange(4).repeat_interleave(torch.tensor(counts))
    images = torch.arange(len(labels) * 16).remainder(256).to(torch.uint8).reshape(-1, 1, 4, 4)
    images[:, 0, 0, 0] = torch.arange(len(labels))
    return Examples(images, labels, "pets/train", CLASSES)


def drawn(generator, count, seed=0):
    """Positions of the images of one draw."""
    images = generator.sample(count, torch.Generator().manual_seed(seed))
    assert images.dtype == torch.float32
    return to_uint8(images)[:, 0, 0, 0].long()


def test_all_images_come_back_to_the_bit_each_once_in_random_order():
    generator = EmpiricalGenerator(examples())
    images = to_uint8(generator.sample(20, torch.Generator().manual_seed(1)))
    order = images[:, 0, 0, 0].long()
    assert order.tolist() != list(range(20))
    assert torch.equal(images, examples().inputs[order])
    assert sorted(order.tolist()) == list(range(20))
    assert (generator.name, len(generator)) == ("pets/train", 20)


def test_values_are_in_the_models_range():
    images = EmpiricalGenerator(examples()).sample(20)
    assert (images.min().item(), images.max().item()) == (-1.0, 1.0)
    assert images.shape == (20, 1, 4, 4)


def test_the_same_generator_draws_the_same_and_another_does_not():
    generator = EmpiricalGenerator(examples())
    assert torch.equal(drawn(generator, 8, 1), drawn(generator, 8, 1))
    assert not torch.equal(drawn(generator, 8, 1), drawn(generator, 8, 2))


def test_one_class_and_the_union_of_two():
    dogs = EmpiricalGenerator.of_classes(examples(), ["dog"])
    assert sorted(drawn(dogs, 4).tolist()) == [6, 7, 8, 9]
    both = EmpiricalGenerator.of_classes(examples(), ["owl", "cat"])
    assert sorted(drawn(both, 16).tolist()) == [*range(6), *range(10, 20)]
    assert sorted(both.positions.tolist()) == [*range(6), *range(10, 20)]
    assert (dogs.name, both.name) == ("pets/train, dog", "pets/train, owl and cat")


def test_a_mixture_has_the_shares_asked_for():
    mixture = EmpiricalGenerator.of_classes(examples(), {"cat": 1, "owl": 3})
    for seed in range(10):
        cats = int((drawn(mixture, 10, seed) < 6).sum())
        assert cats in (2, 3)  # 2.5
    assert int((drawn(mixture, 8) < 6).sum()) == 2
    assert len(set(drawn(mixture, 12).tolist())) == 12


def test_every_image_of_a_class_is_drawn_alike():
    generator = EmpiricalGenerator.of_classes(examples(), ["cat"])
    counts = torch.bincount(torch.cat([drawn(generator, 2, seed) for seed in range(600)]), minlength=6)
    assert (counts - 200).abs().max() < 60


def test_more_than_are_stored_is_an_error_that_names_both():
    with pytest.raises(ValueError, match="stored"):
        EmpiricalGenerator.of_classes(examples(), ["dog"]).sample(5)
    with pytest.raises(ValueError, match="stored"):
        EmpiricalGenerator.of_classes(examples(), {"cat": 4, "owl": 1}).sample(10)


def test_with_replacement_any_number_is_drawn():
    generator = EmpiricalGenerator.of_classes(examples(), ["dog"], replacement=True)
    counts = torch.bincount(drawn(generator, 4000), minlength=10)
    assert counts[:6].sum() == 0
    assert (counts[6:] - 1000).abs().max() < 150


def test_an_image_and_its_nearest_neighbours():
    features = torch.tensor([[0.0], [10.0], [1.0], [-0.5], [11.0]])
    assert nearest(features, 0, 0).tolist() == [0]
    assert nearest(features, 0, 3).tolist() == [0, 3, 2, 1]
    assert nearest(torch.zeros(4, 2), 2, 2).tolist() == [2, 0, 1]  # copies: the anchor first, then the earlier
    generator = EmpiricalGenerator.of_neighbours(examples((5, 0, 0, 0)), features, 1, 1)
    assert sorted(drawn(generator, 2).tolist()) == [1, 4]
    assert generator.name == "pets/train, 1 nearest to 1"


def test_neighbours_are_those_of_a_plain_loop():
    features = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    distances = [(float((row - features[7]).norm()), place) for place, row in enumerate(features)]
    assert nearest(features, 7, 20).tolist() == [place for _, place in sorted(distances)][:21]


def test_points_are_drawn_as_they_are():
    points = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    stored = Examples(points, torch.zeros(30, dtype=torch.int64), "toy", ())
    sample = EmpiricalGenerator(stored).sample(30)
    assert torch.equal(sample.sort(0).values, points.sort(0).values)


def test_a_folder_of_images(tmp_path):
    for place in range(3):
        save_png(tmp_path / f"{place}.png", torch.full((3, 4, 4), 50 * place, dtype=torch.uint8))
    images = to_uint8(EmpiricalGenerator.of_folder(tmp_path).sample(3))
    assert sorted(images[:, 0, 0, 0].tolist()) == [0, 50, 100]


def test_it_goes_where_samplers_go():
    stored = examples()
    generator = EmpiricalGenerator(stored)
    images = draw_images(generator, 20, seed=0, round=0, chunk=3)
    assert sorted(images[:, 0, 0, 0].tolist()) == list(range(20))
    clients = {"train": [stored.subset(range(10)), stored.subset(range(10, 20))]}
    options = {"embeddings": ["pixels"], "num_images": 20}
    records = evaluate(generator, clients, **options)
    values = {record.name: record.value for record in records}
    assert values["fid_all"] == pytest.approx(0, abs=1e-4)  # the very images of the pool
    assert values["fid_avg"] > 0.1
    with pytest.raises(ValueError, match="stored"):
        evaluate(generator, clients, embeddings=["pixels"], num_images=21)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["bird"], "class 'bird' is not there; it has cat, dog, empty, owl"),
        (["cat", "cat"], "class 'cat' is given twice"),
        (["empty"], "class 'empty' has no images to draw from"),
        ({"cat": 0.0, "dog": 1.0}, "shares must be positive numbers, one for each of 2"),
        ([], "there is no image to draw from"),
    ],
)
def test_unusable_classes_are_refused(classes, message):
    with pytest.raises(ValueError, match=message):
        EmpiricalGenerator.of_classes(examples(), classes)


def test_unusable_neighbourhoods_are_refused():
    features = torch.zeros(20, 2)
    with pytest.raises(ValueError, match="neighbours"):
        EmpiricalGenerator.of_neighbours(examples(), features, 0, 20)
    with pytest.raises(ValueError, match="anchor"):
        EmpiricalGenerator.of_neighbours(examples(), features, 20, 2)
    with pytest.raises(ValueError, match="features"):
        EmpiricalGenerator.of_neighbours(examples(), features[:3], 0, 2)


def test_labels_are_refused():
    with pytest.raises(ValueError, match="labels"):
        EmpiricalGenerator(examples()).sample(2, labels=torch.zeros(2, dtype=torch.int64))
