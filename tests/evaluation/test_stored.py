"""What a path holds, and every mistake that a path can be."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgen.evaluation import Reading
from fedgen.evaluation.stored.stored_sets import open_sets, short_names
from fedgen.statistics import Gaussian, save_npz, summarize
from tests.evaluation.folders import save_grey

FEATURES = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)


def saved(folder: Path, name: str, **arrays) -> Path:
    np.savez(folder / f"{name}.npz", **arrays)
    return folder / f"{name}.npz"


def open_one(path, **options):
    return open_sets([path], Reading(), **options)[0]


def test_names_are_as_short_as_they_can_be():
    assert short_names([Path("x/a"), Path("x/b.npz"), Path("v1.0")]) == ["a", "b", "v1.0"]
    assert short_names([Path("x/a/train"), Path("x/b/train")]) == ["a/train", "b/train"]
    assert short_names([Path("a"), Path("a.npz")]) == ["a", "a.npz"]
    assert short_names([Path("x/a"), Path("x/b"), Path("x/a")]) == ["a", "b", "a"]


def test_a_client_counts_once_whatever_its_path(tmp_path):
    path = saved(tmp_path, "f", features=FEATURES)
    (tmp_path / "link.npz").symlink_to(path)
    with pytest.raises(ValueError, match="twice"):
        open_sets([path, path, tmp_path / "link.npz"], Reading())
    with pytest.raises(ValueError, match="twice"):
        open_sets([path, path, path], Reading())
    assert [stored.name for stored in open_sets([path, path], Reading())] == ["f", "f"]


def test_features_are_found_under_their_key_or_alone(tmp_path):
    for arrays in ({"features": FEATURES, "other": FEATURES}, {"anything": FEATURES, "labels": np.arange(9)}):
        stored = open_one(saved(tmp_path, "f", **arrays))
        assert (stored.kind, stored.count, stored.dim) == ("features", 9, 4)
        np.testing.assert_array_equal(stored.load(), FEATURES)


def test_half_precision_features_are_widened(tmp_path):
    features = open_one(saved(tmp_path, "f", features=FEATURES.astype(np.float16))).load()
    assert features.dtype == torch.float32


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble])
def test_features_of_any_machine_are_read(tmp_path, dtype):
    features = open_one(saved(tmp_path, "f", features=np.asfortranarray(FEATURES.astype(dtype)))).load()
    np.testing.assert_array_equal(features, FEATURES)


def test_only_the_features_are_read(tmp_path):
    pickled = np.array([{"what": "else"}], dtype=object)
    stored = open_one(saved(tmp_path, "f", features=FEATURES, classes=pickled))
    np.testing.assert_array_equal(stored.load(), FEATURES)


def test_words_that_a_file_says_of_itself_are_plain(tmp_path):
    moments = {"mu": np.zeros(4), "sigma": np.eye(4)}
    for key, value in (("embedding", np.array({"a": 1})), ("count", np.array("many")), ("count", np.array(np.nan))):
        with pytest.raises(ValueError, match=r"f\.npz (is not an \.npz file of plain arrays|has count = (many|nan))"):
            open_one(saved(tmp_path, "f", **moments, **{key: value}))


def test_images_and_statistics_are_told_from_features(tmp_path):
    batch = saved(tmp_path, "batch", arr_0=np.zeros((3, 8, 8, 3), np.uint8), arr_1=np.arange(3))
    assert (open_one(batch).kind, open_one(batch).count) == ("images", 3)
    peers = saved(tmp_path, "peers", mu=np.zeros(4), sigma=np.eye(4))
    stored = open_one(peers)
    assert (stored.kind, stored.count, stored.dim, stored.says_nothing) == ("statistics", None, 4, True)
    torch.testing.assert_close(stored.load().covariance(1), torch.eye(4, dtype=torch.float64))
    counted = open_one(peers, counts={"peers": 50.0})
    assert counted.count == 50
    assert counted.load().count == 50
    # guided-diffusion's reference batches hold both: images can be embedded anew
    both = saved(tmp_path, "both", arr_0=np.zeros((3, 8, 8, 3), np.uint8), mu=FEATURES[0], sigma=np.eye(4))
    assert open_one(both).kind == "images"


def test_our_statistics_files_say_everything(tmp_path):
    summary = summarize(torch.from_numpy(FEATURES))
    path = save_npz(tmp_path / "ours.npz", summary, embedding="lite0", weights="1f", resize="none")
    stored = open_one(path)
    assert (stored.count, stored.provenance.embedding, stored.provenance.weights) == (9, "lite0", "1f")
    loaded = stored.load()
    assert isinstance(loaded, Gaussian)
    torch.testing.assert_close(loaded.covariance(1), summary.covariance(1), rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="ours"):
        open_one(path, counts={"ours": 10.0})


def test_all_bad_paths_are_named_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep" / "inside").mkdir(parents=True)
    save_grey(tmp_path / "deep" / "inside" / "a.png", 4, 4)
    (tmp_path / "notes.md").write_text("")
    (tmp_path / "broken.npz").write_text("")
    saved(tmp_path, "numbers", x=np.arange(3))
    saved(tmp_path, "volume", x=np.zeros((2, 7, 7, 7), np.uint8))
    saved(tmp_path, "columns", x=np.asfortranarray(np.zeros((2, 8, 8, 3), np.uint8)))
    saved(tmp_path, "nothing", x=np.zeros((2, 0)))
    names = ["empty", "deep", "notes.md", "broken.npz", "numbers.npz", "volume.npz", "columns.npz", "nothing.npz"]
    names += ["none", "data/*"]
    with pytest.raises(ValueError, match="empty") as caught:
        open_sets([tmp_path / name for name in names], Reading())
    message = str(caught.value)
    assert len(message.splitlines()) == len(names)
    for part in (
        "it has folders such as inside, which --recursive includes",
        "notes.md is neither a folder of images, nor an .npz",
        "broken.npz is not an .npz file",
        "but x int64 [3]",
        "volume.npz, array 'x': shape [2, 7, 7, 7] is neither",
        "columns.npz, array 'x': its array is of Python objects, or column-major",
        "but x float64 [2, 0]",
        "none; give folders",
        "data/* (a pattern that matched nothing?)",
    ):
        assert part in message


def test_subfolders_count_only_if_asked(tmp_path):
    for path in ("a.png", "inside/b.png", "inside/c.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        save_grey(tmp_path / path, 4, 4)
    with pytest.raises(ValueError, match=r"has 1 image\(s\), but a score needs 2"):
        open_sets([tmp_path], Reading())
    assert open_sets([tmp_path], Reading(recursive=True))[0].count == 3


def test_unreadable_headers_of_all_folders_are_listed_together(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for i in range(3):
            save_grey(tmp_path / folder / f"{i}.png", 4, 4)
        (tmp_path / folder / "bad.png").write_bytes(b"")
    paths = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(ValueError, match="skip_unreadable") as caught:
        open_sets(paths, Reading())
    assert "a/bad.png" in str(caught.value)
    assert "b/bad.png" in str(caught.value)
    assert [stored.count for stored in open_sets(paths, Reading(skip_unreadable=True))] == [3, 3]


def test_sizes_that_differ_within_a_set_are_named_with_examples(tmp_path):
    for name, side in (("a", 4), ("b", 6)):
        save_grey(tmp_path / f"{name}.png", side, side)
    with pytest.raises(ValueError, match="resize"):
        open_sets([tmp_path], Reading())
    for reading in (Reading(resize=5), Reading(mixed_sizes=True)):
        assert open_sets([tmp_path], reading)[0].count == 2


def test_counts_of_nobody_are_refused(tmp_path):
    with pytest.raises(ValueError, match="counts"):
        open_one(saved(tmp_path, "f", features=FEATURES), counts={"x": 3.0})


def test_features_that_are_not_finite_name_their_file(tmp_path):
    stored = open_one(saved(tmp_path, "f", features=FEATURES * np.nan))
    with pytest.raises(ValueError, match="NaN"):
        stored.load()


MEAN, COVARIANCE = FEATURES.mean(0), np.cov(FEATURES.T)


@pytest.mark.parametrize("names", [("m2", "s2"), ("mean", "cov"), ("c", "b"), ("fid_mean", "sigma")])
def test_a_vector_beside_a_covariance_is_statistics_whatever_their_names(tmp_path, names):
    mean, covariance = names
    stored = open_one(saved(tmp_path, "f", **{mean: MEAN, covariance: COVARIANCE}), counts={"f": 9.0})
    assert (stored.kind, stored.dim) == ("statistics", 4)
    assert stored.remark == f"statistics from {mean!r}, {covariance!r}"
    assert torch.allclose(stored.load().covariance(), torch.from_numpy(COVARIANCE))
    assert open_one(saved(tmp_path, "f", mu=MEAN, sigma=COVARIANCE)).remark == ""


def test_of_two_means_or_covariances_none_is_guessed_and_mu_and_sigma_choose(tmp_path):
    both = {"m1": MEAN, "s1": COVARIANCE, "m2": MEAN, "s2": COVARIANCE}
    with pytest.raises(ValueError, match="sigma"):
        open_one(saved(tmp_path, "f", **both))
    stored = open_one(saved(tmp_path, "f", mu_s=MEAN, sigma_s=COVARIANCE, mu=MEAN, sigma=COVARIANCE))
    assert stored.remark == "statistics from 'mu', 'sigma', not read: 'mu_s', 'sigma_s'"


def test_a_file_with_samples_and_statistics_says_which_were_taken(tmp_path):
    images, moments = np.zeros((3, 8, 8, 3), np.uint8), {"m": MEAN, "s": COVARIANCE}
    pickled = np.array([{"what": "else"}], dtype=object)  # not read, so not refused
    for arrays, remark in (
        ({"arr_0": images, "arr_1": np.arange(3), **moments}, "images from 'arr_0', not read: 'arr_1', 'm', 's'"),
        ({"features": FEATURES, "embedding": "x", **moments}, "features from 'features', not read: 'm', 's'"),
        ({"acts": FEATURES, "about": pickled, **moments}, "statistics from 'm', 's', not read: 'acts', 'about'"),
        ({"acts": FEATURES, "z": FEATURES}, "features from 'acts', not read: 'z'"),
    ):
        stored = open_one(saved(tmp_path, "f", **arrays), counts={} if "m" not in remark else None)
        assert stored.remark == remark
        if stored.images is None:
            stored.load()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"cov": COVARIANCE}, "'cov' is a symmetric matrix"),
        ({"m": MEAN, "s": FEATURES[:4]}, "'s' is a square matrix beside 'm', but not a covariance"),
        ({"m": MEAN, "s": -COVARIANCE}, "'s' is a square matrix beside 'm', but not a covariance"),
        ({"any": np.eye(4)[np.arange(9) % 4]}, "'any' has one-hot rows, like labels"),
        (
            {"z": FEATURES, "labels": np.arange(9)},
            "but z float32 [9, 4], labels int64 [9]; if an array holds features, not latents",
        ),
        ({"w_0": FEATURES}, "latents, labels or pixels"),
        ({"y_onehot": FEATURES}, "latents, labels or pixels"),
        ({"a": FEATURES, "b": FEATURES}, "'features'"),
        (
            {"x": np.zeros((9, 4, 4, 3), np.float32)},
            "store floats of [0, 1] as (255 * x).round().astype('uint8')",
        ),
        (
            {"x": np.zeros((9, 16), np.uint8)},
            "store rows of pixels as x.reshape(N, H, W, C), features as x.astype('float32')",
        ),
        (
            {"features": np.zeros((9, 16), int)},
            "store rows of pixels as x.reshape(N, H, W, C), features as x.astype('float32')",
        ),
        ({"x": np.zeros((9, 4, 4), np.uint8)}, "grey images [N, H, W] need a channel: x[..., None]"),
        (
            {"x": np.zeros((2, 4, 4, 3), np.uint8), "y": np.zeros((2, 4, 4, 3), np.uint8)},
            "images are one array of uint8",
        ),
    ],
)
def test_what_is_no_features_is_refused_with_the_remedy(tmp_path, arrays, says):
    with pytest.raises(ValueError, match=r"f\.npz") as caught:
        open_one(saved(tmp_path, "f", **arrays))
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'f.npz'}")
    assert "\n" not in str(caught.value)
    for array in arrays.values():
        if array.ndim == 2 and array.dtype.kind == "f":
            assert open_one(saved(tmp_path, "f", features=array)).kind == "features"


def test_npy_files_are_sets_and_suffixes_have_any_case(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "hospital.npy", np.asfortranarray(FEATURES))
    saved(tmp_path, "f", features=FEATURES).rename(tmp_path / "upper.NPZ")
    saved(tmp_path, "f", features=FEATURES).rename(tmp_path / "arrays.zip")
    paths = [tmp_path / name for name in ("images.npy", "hospital.npy", "upper.NPZ", "arrays.zip")]
    sets = open_sets(paths, Reading())
    assert [(stored.name, stored.kind, stored.count) for stored in sets] == [
        ("images", "images", 5),
        ("hospital", "features", 9),
        ("upper", "features", 9),
        ("arrays", "features", 9),
    ]
    assert torch.equal(torch.cat(list(sets[0].images.batches(3, 2))), torch.from_numpy(images).permute(0, 3, 1, 2))
    for stored in sets[1:]:
        np.testing.assert_array_equal(stored.load(), FEATURES)


def test_archives_of_images_and_files_that_are_no_arrays_have_their_remedies(tmp_path):
    with zipfile.ZipFile(tmp_path / "my photos.zip", "w") as archive:
        archive.writestr("cats/a.png", b"")
    np.save(tmp_path / "objects.npy", np.array([[{}]]))
    (tmp_path / "short.npy").write_bytes((tmp_path / "objects.npy").read_bytes()[:50])
    np.save(tmp_path / "latents.npy", FEATURES)
    (tmp_path / "notes.md").write_text("")
    parts = {
        "my photos.zip": f"give the folder: unzip '{tmp_path}/my photos.zip' -d '{tmp_path}/my photos'",
        "objects.npy": "holds neither features",
        "short.npy": "is not an .npy file",
        "latents.npy": "latents, labels or pixels",
        "notes.md": "is neither a folder of images, nor an .npz",
    }
    with pytest.raises(ValueError, match="unzip") as caught:
        open_sets([tmp_path / name for name in parts], Reading())
    for line, (name, part) in zip(str(caught.value).splitlines(), parts.items(), strict=True):
        assert name in line
        assert part in line
