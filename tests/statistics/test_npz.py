from pathlib import Path

import numpy as np
import pytest
import torch

from fedgen.scores import frechet_distance
from fedgen.statistics import load_npz, save_npz, summarize


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


def test_files_carry_their_provenance(tmp_path: Path, images: torch.Tensor) -> None:
    path = save_npz(tmp_path / "a.npz", summarize(images), embedding="lite0", weights="1f2e", resize="bilinear", ddof=0)
    gaussian, provenance = load_npz(path)
    assert (provenance.embedding, provenance.weights, provenance.resize) == ("lite0", "1f2e", "bilinear")
    assert (provenance.ddof, provenance.count) == (0, 20)
    torch.testing.assert_close(gaussian.covariance(1), summarize(images).covariance(1), rtol=1e-12, atol=1e-14)


def test_peers_read_ours(tmp_path: Path, images: torch.Tensor) -> None:
    with np.load(save_npz(tmp_path / "a.npz", summarize(images))) as archive:  # as pytorch-fid does
        np.testing.assert_allclose(archive["mu"][:], images.double().mean(0))
        np.testing.assert_allclose(archive["sigma"][:], np.cov(images.double().numpy(), rowvar=False))


def test_we_read_the_peers_with_stated_defaults(tmp_path: Path, images: torch.Tensor) -> None:
    data = images.double().numpy()
    np.savez(tmp_path / "peer.npz", mu=data.mean(0), sigma=np.cov(data, rowvar=False))
    gaussian, provenance = load_npz(tmp_path / "peer.npz", count=20)
    assert provenance.ddof == 1
    assert provenance.embedding == "unknown"
    torch.testing.assert_close(gaussian.covariance(0), summarize(images).covariance(0), rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="count"):
        load_npz(tmp_path / "peer.npz")


def test_statistics_of_other_names_are_read_by_them_and_nothing_beside_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", m2=np.zeros(2), s2=np.eye(2), rest=np.array([object()]))
    gaussian, _ = load_npz(tmp_path / "a.npz", count=20, names=("m2", "s2"))
    torch.testing.assert_close(gaussian.covariance(1), torch.eye(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="lacks"):
        load_npz(tmp_path / "a.npz", count=20)
    np.savez(tmp_path / "b.npz", mu=np.zeros(2), sigma=np.eye(2), weights=np.eye(9))
    with pytest.raises(ValueError, match="weights") as caught:
        load_npz(tmp_path / "b.npz", count=20)
    assert len(str(caught.value).splitlines()) == 1


def test_damaged_or_contradicted_files_are_refused(tmp_path: Path, images: torch.Tensor) -> None:
    path = save_npz(tmp_path / "a.npz", summarize(images))
    with pytest.raises(ValueError, match="count"):
        load_npz(path, count=21)
    np.savez(tmp_path / "b.npz", mu=np.zeros(2))
    with pytest.raises(ValueError, match="sigma"):
        load_npz(tmp_path / "b.npz", count=2)
    np.savez(tmp_path / "c.npz", mu=np.zeros(2), sigma=np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match="NaN"):
        load_npz(tmp_path / "c.npz", count=2)
    np.savez(tmp_path / "d.npz", mu=np.zeros(2), sigma=np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"must be \[D\]"):
        load_npz(tmp_path / "d.npz", count=2)
    none = (-np.eye(2), np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[1.0, 5.0], [5.0, 1.0]]))  # correlated by 5
    for number, sigma in enumerate(none):
        np.savez(tmp_path / f"sigma{number}.npz", mu=np.zeros(2), sigma=sigma)
        with pytest.raises(ValueError, match=rf"sigma{number}\.npz: sigma is not symmetric, or has negative variances"):
            load_npz(tmp_path / f"sigma{number}.npz", count=2)
    np.savez(tmp_path / "n.npz", mu=np.zeros(2), sigma=np.eye(2), count=np.nan)
    with pytest.raises(ValueError, match="count"):
        load_npz(tmp_path / "n.npz")
    np.savez(tmp_path / "e.npz", mu=np.array([object()]), sigma=np.zeros((1, 1)))
    with pytest.raises(ValueError, match="pickle"):
        load_npz(tmp_path / "e.npz", count=2)


def test_statistics_of_few_images_come_back_with_their_rank(tmp_path):
    features = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    other = summarize(torch.randn(200, 40, generator=torch.Generator().manual_seed(1)))
    summary = summarize(features)
    loaded, _ = load_npz(save_npz(tmp_path / "few.npz", summary))
    assert loaded.is_low_rank
    assert torch.allclose(loaded.covariance(), summary.covariance(), atol=1e-14)
    assert frechet_distance(loaded, other)[0] == pytest.approx(frechet_distance(summary, other)[0], rel=1e-12)


def test_a_sigma_of_more_rank_than_its_count_says_is_left_as_it_is(tmp_path):
    sigma = np.diag(np.arange(1.0, 41.0))
    np.savez(tmp_path / "shrunk.npz", mu=np.zeros(40), sigma=sigma)
    loaded, _ = load_npz(tmp_path / "shrunk.npz", count=9)
    assert not loaded.is_low_rank
    assert torch.allclose(loaded.covariance(), torch.from_numpy(sigma))
