from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from fedgen.scores import FrechetReference, frechet_distance
from fedgen.statistics import Gaussian, Projection, pool, summarize

DIM = 12


def draw(count: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIM, generator=random, dtype=torch.float64) * torch.linspace(2, 0.1, DIM) + shift


@pytest.fixture
def projection() -> Projection:
    return Projection.fit(draw(300, 0), components=5, embedding="lite0", public="ImageNet")


@pytest.mark.parametrize("count", [300, 9])
def test_components_are_sklearns(count: int) -> None:
    public = draw(count, 0, 3.0)
    ours, theirs = Projection.fit(public, 5), PCA(5, svd_solver="full").fit(public.numpy())
    signs = np.sign((ours.components.numpy() * theirs.components_).sum(1, keepdims=True))
    np.testing.assert_allclose(ours.components.numpy(), theirs.components_ * signs, atol=1e-9)
    assert ours.explained == pytest.approx(theirs.explained_variance_ratio_.sum())
    fresh = draw(20, 1)
    np.testing.assert_allclose(ours.project(fresh), theirs.transform(fresh.numpy()) * signs.T, atol=1e-9)
    assert (ours.components.gather(1, ours.components.abs().argmax(1, keepdim=True)) > 0).all()


def test_a_public_summary_serves_as_well_as_its_images() -> None:
    public = draw(300, 0)
    torch.testing.assert_close(Projection.fit(summarize(public), 4).components, Projection.fit(public, 4).components)
    assert Projection.fit(torch.randn(500, 70), 64).dim == Projection.fit(torch.randn(500, 70)).dim == 64


@pytest.mark.parametrize("sizes", [(3, 4), (8, 60), (60, 80)])
def test_fd_of_projected_summaries_is_that_of_projected_features(
    projection: Projection, sizes: tuple[int, int]
) -> None:
    first, second = draw(sizes[0], 1), draw(sizes[1], 2, 0.5)
    summaries = [projection.project_summary(summarize(images)) for images in (first, second)]
    features = [summarize(projection.project(images)) for images in (first, second)]
    assert [side.is_low_rank for side in summaries] == [side.is_low_rank for side in features]
    assert frechet_distance(*summaries)[0] == pytest.approx(frechet_distance(*features)[0], rel=1e-10)


@pytest.mark.parametrize("weights", [None, [0.7, 0.1, 0.2]])
def test_pooled_summaries_are_projected_without_images(projection: Projection, weights: list[float] | None) -> None:
    clients = [draw(3, 1), draw(40, 2, 1.0), draw(5, 3, -1.0)]
    before = projection.project_summary(pool([summarize(client) for client in clients], weights))
    after = pool([summarize(projection.project(client)) for client in clients], weights)
    assert before.count == pytest.approx(after.count)
    torch.testing.assert_close(before.mean, after.mean)
    torch.testing.assert_close(before.covariance(), after.covariance())
    few = projection.project_summary(pool([summarize(clients[0]), summarize(clients[2])], [0.9, 0.1]))
    torch.testing.assert_close(
        few.covariance(0),
        pool([summarize(projection.project(clients[i])) for i in (0, 2)], [0.9, 0.1]).covariance(0),
    )


def test_bias_of_few_images_is_small_on_few_components() -> None:
    public = draw(2000, 0)
    projection = Projection.fit(public, 2)
    small, large = draw(24, 1), draw(2000, 2)
    whole = FrechetReference.from_features([small]).score(large, errors=False).values["all"]
    few = FrechetReference.from_features([projection.project(small)]).score(projection.project(large), errors=False)
    assert few.values["all"] < whole / 3  # equal distributions: all of it is bias


def test_gradients_pass(projection: Projection) -> None:
    images = draw(4, 1).requires_grad_()
    projection.project(images).sum().backward()
    torch.testing.assert_close(images.grad, projection.components.sum(0).expand(4, DIM))


def test_saved_and_loaded_it_is_the_same(projection: Projection, tmp_path: Path) -> None:
    loaded = Projection.load(projection.save(tmp_path / "public" / "pca.npz"))
    assert torch.equal(loaded.components, projection.components)
    assert torch.equal(loaded.mean, projection.mean)
    assert (loaded.embedding, loaded.public, loaded.count) == ("lite0", "ImageNet", 300)
    assert (loaded.explained, loaded.fingerprint()) == (projection.explained, projection.fingerprint())
    assert loaded.name == f"lite0-pca5-{projection.fingerprint()[:8]}"


def test_fingerprints_tell_projections_apart(projection: Projection) -> None:
    public = draw(300, 0)
    others = [
        Projection.fit(public, 4, "lite0", "ImageNet"),
        Projection.fit(public, 5, "inception", "ImageNet"),
        Projection.fit(public, 5, "lite0", "CIFAR-10"),
        Projection.fit(draw(300, 9), 5, "lite0", "ImageNet"),
    ]
    assert len({projection.fingerprint(), *(other.fingerprint() for other in others)}) == 5
    assert Projection.fit(public, 5, "lite0", "ImageNet").fingerprint() == projection.fingerprint()


def test_other_files_are_refused(projection: Projection, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", mu=np.zeros(2))
    with pytest.raises(ValueError, match="projection"):
        Projection.load(tmp_path / "a.npz")
    arrays = dict(np.load(projection.save(tmp_path / "b.npz")))
    np.savez(tmp_path / "c.npz", **{**arrays, "mean": arrays["mean"] + 1})
    with pytest.raises(ValueError, match="fingerprint"):
        Projection.load(tmp_path / "c.npz")
    for name, wrong in (("components", arrays["components"] * 2), ("mean", arrays["mean"][:3]), ("count", "many")):
        np.savez(tmp_path / "d.npz", **{**arrays, name: wrong})
        with pytest.raises(ValueError, match="projection"):
            Projection.load(tmp_path / "d.npz")


def test_too_many_components_and_other_features_are_refused(projection: Projection) -> None:
    with pytest.raises(ValueError, match="directions"):
        Projection.fit(draw(9, 0))
    with pytest.raises(ValueError, match="1 to 0, got 1"):
        Projection.fit(torch.ones(9, DIM), 1)
    with pytest.raises(ValueError, match="lite0"):
        projection.project(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="features"):
        projection.project_summary(Gaussian(1, torch.zeros(3), scatter=torch.eye(3)))
