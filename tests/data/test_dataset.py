import pytest
import torch

from fedgen.data import Digits, GaussianMixture, MNIST5k


def test_a_set_without_a_test_split_says_which_sets_have_one():
    with pytest.raises(ValueError, match="FashionMNIST"):
        Digits().load("test")


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split"):
        Digits().load("valid")


def test_digits_are_1797_images_with_17_levels_over_the_whole_range():
    digits = Digits().load()
    assert digits.inputs.shape == (1797, 1, 8, 8)
    assert digits.inputs.unique().tolist() == [round(level * 255 / 16) for level in range(17)]
    assert digits.label_counts().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (digits.name, digits.classes[3]) == ("digits/train", "3")


@pytest.mark.slow
def test_what_is_done_to_images_and_labels_does_not_reach_those_that_are_read_again():
    for data in (Digits(), MNIST5k()):
        first, second = data.read("train"), data.read("train")
        kept = second.inputs.clone(), second.labels.clone()
        first.inputs.fill_(7)
        first.labels.fill_(7)
        for again in (second, data.read("train")):
            assert torch.equal(again.inputs, kept[0])
            assert torch.equal(again.labels, kept[1])


def test_mnist5k_has_500_images_of_each_digit():
    mnist = MNIST5k().load()
    assert mnist.inputs.shape == (5000, 1, 28, 28)
    assert mnist.label_counts().tolist() == [500] * 10
    assert mnist.name == "mnist5k/train"


def test_padding_adds_black_borders_and_shows_in_the_name():
    plain, padded = MNIST5k().load(), MNIST5k(pad_to=32).load()
    assert padded.inputs.shape == (5000, 1, 32, 32)
    assert torch.equal(padded.inputs[:, :, 2:-2, 2:-2], plain.inputs)
    assert padded.inputs.sum() == plain.inputs.sum()
    assert padded.name == "mnist5k-32/train"


@pytest.mark.parametrize("side", [27, 31])
def test_padding_to_a_side_that_does_not_fit_is_refused(side):
    with pytest.raises(ValueError, match=f"pad_to={side} does not leave equal borders around 28 x 28"):
        MNIST5k(pad_to=side).load()


def test_the_mixture_has_a_client_at_each_mean_and_the_papers_pooled_covariance():
    points = GaussianMixture(num_points=20_000).load()
    assert points.inputs.shape == (40_000, 2)
    assert points.label_counts().tolist() == [20_000, 20_000]
    left = points.inputs[points.labels == 0].double()
    # Standard errors: 1 / sqrt(20,000) = 0.007 of a mean, sqrt(2 / 20,000) = 0.01 of a variance.
    assert torch.allclose(left.mean(0), torch.tensor([-1.0, 0.0]).double(), atol=0.03)
    assert torch.allclose(left.T.cov(), torch.eye(2).double(), atol=0.04)
    assert torch.allclose(points.inputs.double().T.cov(), torch.diag(torch.tensor([2.0, 1.0])).double(), atol=0.05)


def test_the_mixture_repeats_for_a_seed_and_differs_between_splits():
    mixture = GaussianMixture(num_points=5, seed=1)
    train = mixture.load().inputs
    assert torch.equal(train, GaussianMixture(num_points=5, seed=1).load().inputs)
    assert not torch.equal(train, mixture.load("test").inputs)
    assert not torch.equal(train, GaussianMixture(num_points=5, seed=2).load().inputs)


def test_the_mixture_takes_other_means_and_width():
    points = GaussianMixture(num_points=2, means=[[1, 2, 3]], std=0).load()
    assert points.inputs.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert points.classes == ("component 0",)


@pytest.mark.parametrize("options", [{"num_points": 0}, {"std": -1}, {"means": []}, {"means": [[0], [0, 1]]}])
def test_a_mixture_that_cannot_be_drawn_is_refused(options):
    with pytest.raises(ValueError, match="num_points"):
        GaussianMixture(**options)
