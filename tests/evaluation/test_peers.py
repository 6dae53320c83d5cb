"""Two folders scored as torch-fidelity and clean-fid score them: by those packages themselves, on the same weights."""

from functools import cache

import numpy as np
import pytest
import torch
import torch_fidelity
from cleanfid.fid import fid_from_feats, get_folder_features
from PIL import Image

from fedgen.embeddings import fidelity, load_embedding
from fedgen.embeddings.fidelity import forward_of_floats
from fedgen.evaluation import PeerEvaluation, Reading, StoredOptions, save_features, score_reference
from tests.evaluation.test_parity import ABSOLUTE, RELATIVE, draw_pictures, write_pngs

PRESETS = ("torch-fidelity", "clean-fid")
SIZES = {"generated": 10, "real": 12}
BUILD = cache(fidelity._build)


@pytest.fixture(autouse=True)
def each_network_is_built_once(monkeypatch):
    monkeypatch.setattr(fidelity, "_build", BUILD)


@pytest.fixture(scope="module")
def weights(inception_weights):
    return inception_weights


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("folders"), **SIZES)


def make_folders(root, **sizes):
    for seed, (name, count) in enumerate(sizes.items()):
        write_pngs(root / name, draw_pictures(count, seed, 3, 20.0 * seed))
    return tuple(root / name for name in sizes)


def ask_torch_fidelity(folders, weights, layer, **options):
    quiet = {"cuda": False, "cache": False, "verbose": False, "save_cpu_ram": True, "batch_size": 64}
    return torch_fidelity.calculate_metrics(
        input1=str(folders[0]),
        input2=str(folders[1]),
        feature_extractor="inception-v3-compat",
        feature_extractor_weights_path=str(weights),
        feature_layer_fid=layer,
        feature_layer_kid=layer,
        fid=True,
        kid=True,
        **quiet,
        **options,
    )


def values(records):
    return {record.score: record.value for record in records}


@pytest.mark.slow
def test_the_numbers_are_torch_fidelitys(folders, weights):
    theirs = ask_torch_fidelity(folders, weights, "64", kid_subset_size=8)
    ours = PeerEvaluation(*folders, embedding="inception-v3-compat-64", weights=weights, subset_size=8)
    records = ours.records()
    assert {record.aggregate for record in records} == {"all"}
    found = values(records)
    assert found["fid"] == pytest.approx(theirs["frechet_inception_distance"], rel=RELATIVE)
    assert found["kid_subsets"] == pytest.approx(theirs["kernel_inception_distance_mean"], abs=ABSOLUTE)
    subsets = records[-1]
    spread = subsets.terms["std over subsets"]
    assert spread == pytest.approx(theirs["kernel_inception_distance_std"], abs=ABSOLUTE)
    assert (subsets.standard_error, subsets.seed) == (None, 2020)
    assert "subsets of 8" in subsets.note
    # and never under the name of the full-sample score
    assert found["kid"] != found["kid_subsets"]
    assert ours.is_the_peers


@pytest.fixture
def mixed(tmp_path):
    """Folders with a few images of other sizes, which clean-fid resizes one by one."""
    folders = make_folders(tmp_path, **SIZES)
    for file in [file for path in folders for file in sorted(path.iterdir())[::7]]:
        Image.open(file).resize((40, 24)).save(file)
    return folders


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*disp.* argument:DeprecationWarning")
def test_the_number_is_clean_fids(mixed, weights):
    network = load_embedding("inception-v3-compat-64", weights=weights).network

    def model(resized):
        return forward_of_floats(type(network).forward)(network, resized)[0]

    features = [
        get_folder_features(
            str(path), model, num_workers=0, batch_size=1, device=torch.device("cpu"), mode="clean", verbose=False
        )
        for path in mixed
    ]
    name = "inception-v3-compat-64-clean-fid"
    ours = PeerEvaluation(*mixed, "clean-fid", name, weights)
    found = values(ours.records())
    assert found["fid"] == pytest.approx(fid_from_feats(*features), rel=1e-5)
    assert "kid_subsets" not in found  # clean-fid's draws are unseeded


@pytest.mark.slow
def test_clean_fid_is_for_its_own_resize_and_torch_fidelity_refuses_mixed_sizes(mixed, weights):
    with pytest.raises(ValueError, match="inception"):
        PeerEvaluation(*mixed, "clean-fid", "pixels")
    with pytest.raises(ValueError, match="sizes"):
        PeerEvaluation(*mixed, weights=weights)
    with pytest.raises(ValueError, match="fidelity"):
        PeerEvaluation(*mixed, "tf")
    with pytest.raises(ValueError, match="at least 2 images"):
        PeerEvaluation(*mixed, subset_size=1)
    named = PeerEvaluation(*mixed, "clean-fid", "inception-v3-compat", weights)
    assert named.identity.name == "inception-v3-compat-clean-fid"


def test_too_few_images_for_a_subset_leave_the_full_sample_alone(folders):
    evaluation = PeerEvaluation(*folders, embedding="pixels")
    assert set(values(evaluation.records())) == {"fid", "kid"}
    assert (evaluation.has_subsets, evaluation.smaller) == (False, 10)
    assert not evaluation.is_the_peers


def test_images_are_not_turned_since_the_peers_do_not(folders, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for i in range(3):
        levels = np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(levels).save(tmp_path / f"{i}.png", exif=exif)
    evaluation = PeerEvaluation(tmp_path, folders[1], embedding="pixels")
    stored = np.asarray(Image.open(tmp_path / "0.png")).transpose(2, 0, 1).reshape(-1) / np.float32(255)
    np.testing.assert_allclose(evaluation.values()[0][0], stored, rtol=1e-6)


@pytest.mark.slow
def test_files_that_torch_fidelity_reads_otherwise_take_its_name_away(folders, weights, tmp_path):
    def score(preset="torch-fidelity"):
        return PeerEvaluation(tmp_path, folders[1], preset, weights=weights)

    for i in range(3):
        Image.effect_noise((16, 16), 50).convert("RGB").save(tmp_path / f"{i}.PNG")
    plain = score()
    assert plain.is_the_peers
    assert plain.identity.name == "inception-v3-compat"  # the published layer, unless told otherwise
    Image.effect_noise((16, 16), 50).convert("RGB").save(tmp_path / "3.bmp")
    plain, clean = score(), score("clean-fid")
    assert not plain.is_the_peers
    assert clean.is_the_peers
    assert "torch-fidelity would leave out the files ending in .bmp" in "; ".join(plain.remarks())
    Image.fromarray(np.full((16, 16), 40000, np.uint16)).save(tmp_path / "4.png")
    clean = score("clean-fid")
    assert not clean.is_the_peers
    assert "clean-fid would clip grey images of more than 8 bits" in "; ".join(clean.remarks())


@pytest.mark.slow
def test_clean_fid_looks_into_subfolders_and_torch_fidelity_does_not(folders, weights, tmp_path):
    for i in range(3):
        (tmp_path / "inside").mkdir(exist_ok=True)
        for place in (tmp_path, tmp_path / "inside"):
            Image.effect_noise((16, 16), 50).convert("RGB").save(place / f"{i}.png")
    counts = [PeerEvaluation(tmp_path, folders[1], preset, weights=weights).sets[0].count for preset in PRESETS]
    assert counts == [3, 6]


@pytest.mark.slow
def test_features_of_resized_images_or_of_unknown_origin_are_not_the_peers(weights, tmp_path):
    folders = make_folders(tmp_path / "few", generated=2, real=2)
    resized = StoredOptions(reading=Reading(resize=12))
    evaluation = PeerEvaluation(*folders, embedding="inception-v3-compat-64", weights=weights, options=resized)
    saved = save_features(evaluation, tmp_path)
    assert not evaluation.is_the_peers
    assert not PeerEvaluation(*saved).is_the_peers
    rows = np.random.default_rng(0).normal(size=(9, 64))
    np.savez(tmp_path / "theirs.npz", mu=rows.mean(0), sigma=np.cov(rows, rowvar=False))
    beside = PeerEvaluation(folders[0], tmp_path / "theirs.npz", embedding="inception-v3-compat-64", weights=weights)
    assert not beside.is_the_peers
    assert "theirs.npz is taken on trust" in "; ".join(beside.remarks())


def test_subsets_are_drawn_from_images_in_the_order_of_their_real_paths(folders, tmp_path):
    for name, target in zip("abc", sorted(folders[0].iterdir(), reverse=True)):
        (tmp_path / f"{name}.png").symlink_to(target)
    files = PeerEvaluation(tmp_path, folders[1], embedding="pixels").sets[0].images.files
    assert [file.name for file in files] == ["c.png", "b.png", "a.png"]


def test_two_sets_are_scored_in_one_call(folders):
    records = score_reference(*folders, embedding="pixels")
    assert [record.score for record in records] == ["fid", "kid"]
    assert records[0].split == "reference"
    assert records[0].reference == f"{folders[1]}, 12 images"  # and no client
