"""Which scores are measured on which embedding."""

import pytest
from torch import nn

from fedgen.embeddings import ModuleEmbedding, Pixels
from fedgen.evaluation.panels import PRESETS, make_panels


def shown(panels):
    return [(panel.embedding.name, [choice.name for choice in panel.choices]) for panel in panels]


def test_every_score_is_measured_on_every_embedding():
    flat = ModuleEmbedding(nn.Flatten(), name="flat")
    assert shown(make_panels([Pixels(), flat], ["fid", "recall"])) == [
        ("pixels", ["fid", "recall"]),
        ("flat", ["fid", "recall"]),
    ]
    assert shown(make_panels("pixels", "kid")) == [("pixels", ["kid"])]


def test_a_preset_brings_its_embedding_and_its_score(clip_weights):
    cmmd = {"name": "cmmd", "weights": clip_weights}
    assert shown(make_panels(["pixels"], ["fid"], [cmmd])) == [
        ("pixels", ["fid"]),
        ("clip-vit-l-14-336px-cmmd-unit", ["cmmd"]),
    ]
    (alone,) = make_panels(None, presets=[cmmd])
    (choice,) = alone.choices
    assert (choice.name, choice.kind, choice.scale) == ("cmmd", "kid-rbf", 1000.0)
    assert choice.settings == {"estimator": "v", "sigma": 10.0, "scale": 1000.0}


def test_presets_in_one_embedding_share_it(clip_weights, monkeypatch):
    second = {**PRESETS, "other": type(PRESETS["cmmd"])(**{**vars(PRESETS["cmmd"]), "name": "other"})}
    monkeypatch.setattr("fedgen.evaluation.panels.PRESETS", second)
    panels = make_panels(None, presets=[{"name": n, "weights": clip_weights} for n in ("cmmd", "other")])
    assert shown(panels) == [("clip-vit-l-14-336px-cmmd-unit", ["cmmd", "other"])]
    with pytest.raises(ValueError, match="twice"):
        make_panels(None, presets=[{"name": "cmmd", "weights": clip_weights}] * 2)


def test_the_default_embedding_is_there_unless_presets_are_asked_for():
    assert shown(make_panels(None)) == [("efficientnet-lite0", ["fid", "kid"])]
    with pytest.raises(ValueError, match="embedding"):
        make_panels([])


def test_scores_beside_presets_alone_have_no_embedding():
    with pytest.raises(ValueError, match="embedding"):
        make_panels(None, ["recall"], ["fid"])


def test_logits_and_points_are_needed_by_some_scores():
    with pytest.raises(ValueError, match="embedding"):
        make_panels(["pixels"], ["is"])
    with pytest.raises(ValueError, match="embedding"):
        make_panels(["pixels"], ["ll"])
    classifier = ModuleEmbedding(nn.Sequential(nn.Flatten(), nn.Linear(16, 10)), name="digits-logits")
    assert shown(make_panels([classifier], ["is"])) == [("digits-logits", ["is"])]
    assert shown(make_panels(["identity"], ["ll"])) == [("identity", ["ll"])]


def test_an_unknown_preset_or_option_is_refused(clip_weights):
    with pytest.raises(ValueError, match="unknown"):
        make_panels(None, presets=["cmd"])
    with pytest.raises(ValueError, match="tensorflow"):
        make_panels(None, presets=[{"name": "cmmd", "resize": "tensorflow-1"}])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make_panels(None, presets=[{"name": "is", "weights": "nowhere.pth"}])


def test_presets_know_what_stored_scores_call_their_embeddings(clip_weights):
    assert PRESETS["cmmd"].load_embedding(clip_weights).name == PRESETS["cmmd"].embedding_name
    for preset in PRESETS.values():  # the name loads the same network with the same options: then weights are read
        with pytest.raises(FileNotFoundError, match="nowhere"):
            make_panels([{"name": preset.embedding_name, "weights": "nowhere.pth"}])
