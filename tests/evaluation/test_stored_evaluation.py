"""Stored sets scored: the same numbers from folders, arrays, features and statistics, and every mistake before work."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fedgen.data import Examples
from fedgen.embeddings import FeatureCache, ModuleEmbedding, Pixels, load_embedding
from fedgen.evaluation import (
    Evaluator,
    Reading,
    StoredEvaluation,
    StoredOptions,
    client_tables,
    save_features,
    save_statistics,
    score_stored,
)
from fedgen.scores import frechet_distance
from fedgen.statistics import load_npz, save_npz, summarize
from tests.evaluation.folders import COUNTS, GENERATED, client_paths, make_folders, save_grey


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("stored")


@pytest.fixture(scope="module")
def images(root):
    return make_folders(root)


@pytest.fixture(scope="module")
def records(root, images):
    return score_stored(root / "generated", client_paths(root), "pixels")


def values(records):
    return {record.name: record.value for record in records}


def test_folders_are_scored_as_the_same_images_in_memory(images, records):
    clients = [Examples(images[name], torch.zeros(n, dtype=torch.int64), "x", ()) for name, n in COUNTS.items()]
    judge = Evaluator({"clients": clients}, ["pixels"], GENERATED, seed=0, chunk=GENERATED)
    expected = judge.evaluate(lambda number, _: images["generated"][:number]).records
    assert values(records) == pytest.approx(values(expected), rel=1e-12)
    assert records[0].per_client == pytest.approx(expected[0].per_client, rel=1e-12)
    assert [r.standard_error for r in records] == pytest.approx([r.standard_error for r in expected], rel=1e-9)


def test_records_carry_what_the_value_depends_on(root, records):
    record = records[0]
    assert record.client_names == list(COUNTS)
    assert len(record.per_client_errors) == 3
    assert (record.embedding, record.embedding_fingerprint) == ("pixels", Pixels().fingerprint())
    assert record.reference == f"{root / 'data'}, 3 clients, 64 images"
    assert (record.num_generated, record.num_clients, record.split) == (30, 3, "clients")
    assert f"generated: {root / 'generated'}" in record.note
    assert json.dumps(record.to_json())


def test_arrays_and_saved_features_give_the_same_scores(root, images, records, tmp_path):
    for name, pixels in images.items():
        np.savez(tmp_path / f"{name}.npz", arr_0=pixels.permute(0, 2, 3, 1).numpy())
    paths = [tmp_path / f"{name}.npz" for name in images]
    arrays = StoredEvaluation(paths[0], paths[1:], "pixels")
    assert values(arrays.records()) == values(records)
    features = save_features(arrays, tmp_path / "features")
    assert [path.name for path in features] == [f"{name}.npz" for name in images]
    again = score_stored(features[0], features[1:])
    assert values(again) == values(records)
    assert (again[0].embedding, again[0].embedding_fingerprint) == ("pixels", records[0].embedding_fingerprint)
    mixed = score_stored(root / "generated", features[1:], "pixels")
    assert values(mixed) == values(records)


@pytest.mark.slow
def test_saved_statistics_give_the_same_fid_and_are_pytorch_fids(root, records, tmp_path):
    whole = StoredEvaluation(root / "generated", client_paths(root), "pixels")
    files = save_statistics(whole, tmp_path)
    with np.load(files[1]) as archive:  # as pytorch-fid does
        mu, sigma = archive["mu"][:], archive["sigma"][:]
    features = whole.values()[1].double().numpy()
    np.testing.assert_allclose(mu, features.mean(0), rtol=1e-12)
    np.testing.assert_allclose(sigma, np.cov(features, rowvar=False), rtol=1e-9, atol=1e-12)
    fid = {name: value for name, value in values(records).items() if name.startswith("fid")}
    for generated in (files[0], root / "generated"):
        found = score_stored(generated, files[1:], None if generated == files[0] else "pixels")
        assert values(found) == pytest.approx(fid, rel=1e-8)
        assert found[0].per_client == pytest.approx(records[0].per_client, rel=1e-8)
    assert save_statistics(StoredEvaluation(files[0], files[1:]), tmp_path) == []


def test_weights_are_the_clients_or_equal(root, records):
    uniform = score_stored(root / "generated", client_paths(root), "pixels", options=StoredOptions(weights="uniform"))
    avg = uniform[0]
    assert avg.value == pytest.approx(sum(avg.per_client) / 3)
    assert avg.weights == "uniform"
    assert avg.value != pytest.approx(records[0].value, rel=1e-3)


def test_grey_clients_beside_colour_ones_are_read_as_colour(root, images, tmp_path):
    grey = make_folders(tmp_path, channels=1)
    alone = StoredEvaluation(tmp_path / "generated", client_paths(tmp_path), "pixels")
    assert alone.values()[0].shape == (GENERATED, 256)
    beside = StoredEvaluation(tmp_path / "generated", client_paths(root), "pixels")
    assert beside.values()[0].shape == (GENERATED, 768)
    repeated = grey["generated"].repeat(1, 3, 1, 1)
    assert torch.equal(beside.values()[0], Pixels()(repeated))


@pytest.mark.slow
def test_embeddings_that_resize_take_sets_of_other_sizes(root, images, tmp_path):
    for i in range(6):
        save_grey(tmp_path / "small" / f"{i}.png", 8, 12, 20 * i)
    lite0 = load_embedding("efficientnet-lite0", size=32)
    found = StoredEvaluation(tmp_path / "small", client_paths(root), lite0)
    assert found.values()[0].shape == (6, 1280)
    with pytest.raises(ValueError, match="pixels"):
        StoredEvaluation(tmp_path / "small", client_paths(root), "pixels")
    fitted = StoredEvaluation(
        tmp_path / "small", client_paths(root), "pixels", options=StoredOptions(reading=Reading(resize=8))
    )
    assert fitted.values()[1].shape == (20, 192)
    assert "fitted to 8 x 8" in fitted.records()[0].note
    assert fitted.identity.resize == "none; images fitted to 8"


def test_features_of_unlike_origin_are_refused_with_both_names(root, images, tmp_path):
    features = torch.randn(9, 768, generator=torch.Generator().manual_seed(0))
    print_ = Pixels().fingerprint()
    ours = {"embedding": "pixels", "weights": print_, "resize": "none"}
    cases = [
        ({**ours, "embedding": "vgg16"}, "embedding 'vgg16', but the embedding asked for has 'pixels'"),
        ({**ours, "weights": "1f2e"}, rf"weights \(hash\) '1f2e', but the embedding asked for has '{print_}'"),
        ({**ours, "resize": "bilinear"}, "resize 'bilinear', but the embedding asked for has 'none'"),
    ]
    for i, (said, message) in enumerate(cases):
        path = save_npz(tmp_path / f"{i}.npz", summarize(features), **said)
        with pytest.raises(ValueError, match=message):
            StoredEvaluation(root / "generated", [path], "pixels")
    files = [save_npz(tmp_path / f"{n}.npz", summarize(features), embedding=n) for n in ("pixels", "vgg16")]
    with pytest.raises(ValueError, match="vgg16"):
        StoredEvaluation(files[0], [files[1]])
    with pytest.raises(ValueError, match="vgg16"):
        StoredEvaluation(files[1], [tmp_path / "0.npz"], "clip-vit-b-32")


def test_the_divisor_n_needs_the_number_of_images_of_statistics(tmp_path):
    made, real = (torch.randn(n, 3, generator=torch.Generator().manual_seed(n)).double().numpy() for n in (9, 7))
    for name, part in {"made": made, "real": real}.items():
        np.savez(tmp_path / f"{name}.npz", mu=part.mean(0), sigma=np.cov(part, rowvar=False))
    paths, scores = [tmp_path / "made.npz", [tmp_path / "real.npz"]], {"name": "fid", "ddof": 0}
    with pytest.raises(ValueError, match=r"ddof=0 needs each set's number of images.*--counts made=N real=N"):
        score_stored(*paths, options=StoredOptions(scores=scores))
    counted = score_stored(*paths, options=StoredOptions(scores=scores, counts={"made": 9.0, "real": 7.0}))
    expected, _ = frechet_distance(*(summarize(torch.from_numpy(part)) for part in (real, made)), ddof=0)
    assert values(counted)["fid_all"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_statistics_that_do_not_say_their_number_of_images(root, images, tmp_path):
    whole = StoredEvaluation(root / "generated", client_paths(root), "pixels")
    generated, *clients = [value.double().numpy() for value in whole.values()]
    for name, part in zip(["generated", *COUNTS], [generated, *clients]):
        np.savez(tmp_path / f"{name}.npz", mu=part.mean(0), sigma=np.cov(part, rowvar=False))
    paths = [tmp_path / f"{name}.npz" for name in COUNTS]
    with pytest.raises(ValueError, match="counts"):
        StoredEvaluation(tmp_path / "generated.npz", paths)
    expected = values(whole.records())
    counted = score_stored(tmp_path / "generated.npz", paths, options=StoredOptions(counts=COUNTS))
    # of the generated side the rank stays unknown, and with it half the digits of what lies beyond
    assert values(counted) == pytest.approx({k: v for k, v in expected.items() if k.startswith("fid")}, rel=1e-7)
    # the value needs no number, its standard error does
    assert (counted[0].num_generated, counted[0].standard_error) == (0, None)
    assert "is taken on trust" in counted[0].note
    one = score_stored(tmp_path / "generated.npz", paths[:1])
    assert one[0].value == pytest.approx(whole.records()[0].per_client[0], rel=1e-8)
    assert "an unknown number of images" in one[0].reference
    assert load_npz(tmp_path / "alpha.npz", count=20)[0].count == 20


@pytest.mark.slow
def test_statistics_of_another_tool_give_the_fid_and_table_and_note_say_their_names(root, images, tmp_path):
    whole = StoredEvaluation(root / "generated", client_paths(root), "pixels")
    generated, client, *_ = [value.double().numpy() for value in whole.values()]
    for name, part in (("made", generated), ("real", client)):  # as denoising-diffusion-pytorch writes them
        np.savez_compressed(tmp_path / f"{name}.npz", m2=part.mean(0), s2=np.cov(part, rowvar=False))
    evaluation = StoredEvaluation(tmp_path / "made.npz", [tmp_path / "real.npz"])
    (record,) = (record for record in evaluation.records() if record.aggregate == "avg")
    assert record.value == pytest.approx(whole.records()[0].per_client[0], rel=1e-7)
    line = f"{tmp_path / 'made.npz'}, {tmp_path / 'real.npz'}: statistics from 'm2', 's2'"
    assert line in record.note
    assert line in client_tables(evaluation, evaluation.records())[0].caption


def test_wrong_statistics_are_told_before_images_are_embedded(root, images, tmp_path, monkeypatch):
    np.savez(tmp_path / "s.npz", mu=np.zeros((1, 768)), sigma=np.eye(768))
    monkeypatch.setattr(StoredEvaluation, "_embed", lambda *_: pytest.fail("embedded"))
    with pytest.raises(ValueError, match="float64"):
        StoredEvaluation(root / "generated", [tmp_path / "s.npz"], "pixels").records()


def test_kid_of_statistics_and_lengths_that_differ_name_the_file(root, images, tmp_path):
    path = save_npz(tmp_path / "s.npz", summarize(torch.randn(9, 4)))
    with pytest.raises(ValueError, match="statistics"):
        StoredEvaluation(root / "generated", [path], "pixels", options=StoredOptions(scores=["kid"]))
    np.savez(tmp_path / "f.npz", features=np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match="features"):
        StoredEvaluation(path, [tmp_path / "f.npz"])
    with pytest.raises(ValueError, match="generated"):
        score_stored(root / "generated", [path], "pixels")


@pytest.mark.parametrize(
    ("embedding", "options", "message"),
    [
        ("pixel", {}, "did you mean pixels"),
        ("identity", {}, "identity takes points"),
        ("pixels", {"scores": ["fdi"]}, "unknown score 'fdi'"),
        ("pixels", {"weights": "equal"}, "'examples', 'uniform' or numbers"),
        ("pixels", {"weights": [1.0]}, "one number a client"),
        ("pixels", {"batch_size": 0}, "batch_size must be at least 1"),
        ("pixels", {"device": "nowhere"}, "device 'nowhere' cannot be used"),
        ("pixels", {"counts": {"alpha": 3}}, "alpha holds 20 images, not 3"),
    ],
)
def test_mistakes_come_before_any_image_is_read(root, images, monkeypatch, embedding, options, message):
    def never(*args):
        raise AssertionError("an image was read")

    monkeypatch.setattr("fedgen.evaluation.stored.stored_images.read_image", never)
    with pytest.raises(ValueError, match=message):
        StoredEvaluation(root / "generated", client_paths(root), embedding, options=StoredOptions(**options))


def test_weights_for_nothing_and_no_clients_are_refused(root, images, tmp_path):
    np.savez(tmp_path / "f.npz", features=np.zeros((5, 3), np.float32))
    np.savez(tmp_path / "g.npz", features=np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match="are not used"):
        StoredEvaluation(tmp_path / "f.npz", [tmp_path / "g.npz"], weights="w.pth")
    with pytest.raises(ValueError, match="at least one client"):
        StoredEvaluation(root / "generated", [])
    with pytest.raises(ValueError, match="twice"):
        StoredEvaluation(root / "generated", [tmp_path / "f.npz", tmp_path / "f.npz"])


def test_weights_that_cannot_be_downloaded_are_an_error_of_one_line(root, images, monkeypatch):
    def offline(*args, **options):
        raise OSError("no network")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    with pytest.raises(ConnectionError, match="inception"):
        StoredEvaluation(root / "generated", client_paths(root), "inception-v3-compat")


@pytest.fixture
def damaged(tmp_path):
    """Two clients with one cut file each, which only its pixels give away."""
    make_folders(tmp_path)
    for name in ("alpha", "gamma"):
        path = tmp_path / "data" / name / "999.png"
        Image.effect_noise((16, 16), 50).convert("RGB").save(path)
        path.write_bytes(path.read_bytes()[:300])
    return tmp_path


def test_unreadable_files_of_all_sets_are_listed(damaged):
    with pytest.raises(ValueError, match="skip_unreadable") as caught:
        score_stored(damaged / "generated", client_paths(damaged), "pixels")
    assert "alpha/999.png" in str(caught.value)
    assert "gamma/999.png" in str(caught.value)


def test_unreadable_files_are_left_out_and_recorded_if_asked(damaged, root, images, records):
    options = StoredOptions(reading=Reading(skip_unreadable=True))
    found = StoredEvaluation(damaged / "generated", client_paths(damaged), "pixels", options=options)
    assert values(found.records()) == values(records)
    assert [reason.split(" ")[0].split("/")[-2] for reason in found.skipped] == ["alpha", "gamma"]
    assert found.counts() == [30, 20, 34, 10]
    assert "unreadable files left out: 2" in found.records()[0].note
    assert found.records()[0].reference.endswith("64 images")


def test_what_lies_beside_the_images_and_in_them_is_said_under_the_table_in_one_line(root, tmp_path):
    """Pages, formats and subfolders were left out of the clients without a word."""
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    paths = client_paths(tmp_path)
    for path in paths[:2]:
        (path / "sub").mkdir()
        (path / "notes.txt").touch()
        pages = [Image.new("L", (16, 16))] * 3
        pages[0].save(path / "z.tif", save_all=True, append_images=pages[1:])
    note = score_stored(tmp_path / "generated", paths, "pixels")[0].note
    assert "; not read: 2 other files (.txt 2), 2 subfolders, 4 further frames or pages of 2 images" in note


def test_features_are_found_again_by_the_bytes_of_the_files(root, images, tmp_path):
    seen = []

    class Counting(torch.nn.Module):
        def forward(self, pictures):
            seen.append(len(pictures))
            return pictures.flatten(1)

    options = StoredOptions(cache=FeatureCache(tmp_path), scores=["fid"])

    def score(**changes):
        network = ModuleEmbedding(Counting(), name="counting", channels=3)
        return values(score_stored(root / "generated", client_paths(root), network, options=options))

    first = score()
    assert sum(seen) == GENERATED + sum(COUNTS.values())
    assert score() == first
    assert sum(seen) == GENERATED + sum(COUNTS.values())


def test_large_sets_are_never_whole_in_memory(root, images, monkeypatch):
    largest = []
    real = Pixels.forward

    def watched(self, batch):
        largest.append(len(batch))
        return real(self, batch)

    monkeypatch.setattr(Pixels, "forward", watched)
    score_stored(root / "generated", client_paths(root), "pixels", options=StoredOptions(batch_size=8))
    assert max(largest) == 8
