"""Any score of stored sets."""

import numpy as np
import pytest
import torch

from fedgen.embeddings import embed
from fedgen.evaluation import PRESETS, StoredEvaluation, StoredOptions, score_stored
from fedgen.scores import ManifoldReference, inception_score
from tests.evaluation.folders import COUNTS, client_paths, make_folders


def rows(seed, count, shift=0.0):
    return np.random.default_rng(seed).normal(size=(count, 4)) + shift


@pytest.fixture
def saved(tmp_path):
    """Features of a generated set and of two clients, with the name of an embedding if one is given."""

    def write(**said):
        parts = {"made": rows(0, 30), "near": rows(1, 24), "far": rows(2, 12, 1.0)}
        words = {key: np.asarray(value) for key, value in said.items()}
        for name, features in parts.items():
            np.savez(tmp_path / f"{name}.npz", features=features, **words)
        return tmp_path / "made.npz", [tmp_path / "near.npz", tmp_path / "far.npz"]

    return write


def test_the_scores_asked_for_come_in_their_order_with_power_means_and_options(saved):
    scores = [{"name": "recall", "k": 3}, "fid", {"name": "precision", "k": 3}]
    generated, clients = saved()
    options = StoredOptions(scores=scores, aggregates=["power-2"])
    records = {r.name: r for r in score_stored(generated, clients, options=options)}
    assert [name for name in records if not name.endswith(("avg", "worst"))] == [
        "recall_all",
        "fid_all",
        "fid_power-2",
        "precision_all",
    ]
    parts = [torch.from_numpy(part) for part in (rows(1, 24), rows(2, 12, 1.0))]
    expected = ManifoldReference.from_features(parts, k=3).score(torch.from_numpy(rows(0, 30)))
    for name in ("recall", "precision"):
        assert records[f"{name}_all"].value == pytest.approx(expected[name].values["all"])
        assert records[f"{name}_worst"].value == expected[name].values["worst"]
        assert records[f"{name}_avg"].error_over_clients == pytest.approx(expected[name].errors_over_clients["avg"])
        assert (records[f"{name}_all"].score_settings, records[f"{name}_all"].higher_is_better) == ({"k": 3}, True)


def test_a_preset_of_features_goes_by_the_embedding_that_they_name(saved):
    generated, clients = saved(embedding="clip-vit-l-14-336px-cmmd-unit")
    records = score_stored(generated, clients, options=StoredOptions(preset="cmmd"))
    parts = [torch.from_numpy(part) for part in (rows(1, 24), rows(2, 12, 1.0))]
    expected = PRESETS["cmmd"].reference(parts).score(torch.from_numpy(rows(0, 30)))
    assert {r.name: r.value for r in records} == pytest.approx({f"cmmd_{k}": v for k, v in expected.values.items()})
    assert records[0].embedding == "clip-vit-l-14-336px-cmmd-unit"
    with pytest.raises(ValueError, match="dinov2"):
        score_stored(generated, clients, options=StoredOptions(preset="fd-dinov2"))


def test_a_preset_of_images_brings_its_network(tmp_path, clip_weights):
    images = make_folders(tmp_path)
    options = StoredOptions(preset="cmmd")
    records = score_stored(tmp_path / "generated", client_paths(tmp_path), weights=clip_weights, options=options)
    embedding = PRESETS["cmmd"].load_embedding(clip_weights)
    features = [embed(embedding, images[name]) for name in ("generated", *COUNTS)]
    expected = PRESETS["cmmd"].reference(features[1:]).score(features[0])
    assert {r.name: r.value for r in records} == pytest.approx({f"cmmd_{k}": v for k, v in expected.values.items()})
    assert records[0].embedding_fingerprint == embedding.fingerprint()


def test_the_inception_score_of_stored_logits(saved):
    generated, clients = saved(embedding="inception-v3-compat-logits_unbiased")
    records = score_stored(generated, clients, options=StoredOptions(preset="is"))
    value, error = inception_score(torch.from_numpy(rows(0, 30)))
    assert [r.name for r in records] == ["is_avg", "is_all", "is_worst"]
    assert [r.value for r in records] == [pytest.approx(value)] * 3
    assert [r.standard_error for r in records] == [pytest.approx(error)] * 3


@pytest.mark.parametrize(
    ("embedding", "options", "message"),
    [
        (None, {"scores": ["ll"]}, "ll needs a model's density, which stored images do not have; score a run"),
        (None, {"scores": ["memorisation"]}, "needs the images that clients held out"),
        (None, {"scores": ["is"]}, "is needs logits, which embedding unknown does not give"),
        (None, {"scores": [{"name": "coverage", "k": 12}]}, r"far.npz has 12 image\(s\), and coverage needs 13"),
        (None, {"scores": ["fid"], "preset": "cmmd"}, "preset cmmd has its own score; omit the scores"),
        ("pixels", {"preset": "cmmd"}, "preset cmmd has its own embedding, clip-vit-l-14-336px-cmmd-unit"),
        (None, {"preset": "cmd"}, "unknown preset 'cmd'"),
        (None, {"aggregates": ["median"]}, "unknown aggregate 'median'"),
        (None, {"aggregates": ["power-2"], "scores": ["kid"]}, "power-2 applies to none of the scores kid"),
    ],
)
def test_mistakes_are_found_when_the_evaluation_is_made(saved, embedding, options, message):
    generated, clients = saved()
    with pytest.raises(ValueError, match=message):
        StoredEvaluation(generated, clients, embedding, options=StoredOptions(**options))


def test_a_generated_set_that_is_too_small_is_named(saved):
    generated, clients = saved()
    with pytest.raises(ValueError, match="recall"):
        StoredEvaluation(clients[1], [generated], options=StoredOptions(scores=[{"name": "recall", "k": 20}]))


def test_statistics_give_fid_alone(saved, tmp_path):
    _, clients = saved()
    np.savez(tmp_path / "s.npz", mu=np.zeros(4), sigma=np.eye(4))
    with pytest.raises(ValueError, match="statistics"):
        StoredEvaluation(tmp_path / "s.npz", clients, options=StoredOptions(scores=["fid", "recall"]))


def test_scores_that_know_no_weights_say_so(saved):
    generated, clients = saved()

    def remarks(weights):
        options = StoredOptions(scores=["fid", "recall"], weights=weights)
        return " ".join(StoredEvaluation(generated, clients, options=options).remarks())

    assert "all of recall counts every image once" in remarks("uniform")
    assert "all of recall counts every image once" in remarks([0.2, 0.8])
    assert "counts" not in remarks("examples")


def test_features_of_all_clients_are_held_once(saved):
    generated, clients = saved()
    evaluation = StoredEvaluation(generated, clients, options=StoredOptions(scores=["fid", "kid"]))
    _, *values = evaluation.values()
    assert len(values) > 1
    assert len({value.untyped_storage().data_ptr() for value in values}) == 1
