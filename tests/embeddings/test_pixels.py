import pytest
import torch

from fedgen.embeddings import load_embedding


def test_pixels_are_grey_levels_over_255_flattened():
    images = torch.tensor([[[[-1.0, 1.0], [0.0, 0.5]]]])
    features = load_embedding("pixels")(images)
    assert features.tolist() == (torch.tensor([[0, 255, 128, 191]]) / 255).tolist()


def test_points_pass_unchanged_and_are_never_quantised():
    points = torch.tensor([[0.123, -7.5], [300.0, 0.0]], requires_grad=True)
    features = load_embedding("identity")(points)
    assert torch.equal(features, points)
    features.sum().backward()
    assert points.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_float64_points_become_float32_features():
    assert load_embedding("identity")(torch.zeros(2, 3, dtype=torch.float64)).dtype == torch.float32


def test_identity_refuses_images_and_integers():
    identity = load_embedding("identity")
    with pytest.raises(ValueError, match="embedding"):
        identity(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match="points"):
        identity(torch.zeros(2, 3, dtype=torch.uint8))
