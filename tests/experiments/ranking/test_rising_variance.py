"""The experiment on clients of little variance, in seconds."""

from pathlib import Path

import pytest

from fedgen.experiments.ranking.rising_variance import (
    expected,
    expected_of,
    intra_client_variance,
    variance_limited,
)
from tests.data.published import write_cifar10
from tests.experiments.tiny_runs import draw_unwritten

TINY = {
    "data": "digits",
    "embedding": "pixels",
    "clients": 5,
    "anchors": 3,
    "sizes": (30, 100, 300),
    "components": 8,
    "controls": 1,
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.slow
def test_cifar10_in_its_files_with_local_weights_in_the_papers_setting(clip_weights, capsys, monkeypatch):
    drawn = draw_unwritten(monkeypatch)
    write_cifar10(Path("files"), count=40, labels=[i % 10 for i in range(40)])
    variance_limited(
        data="cifar10",
        root=Path("files"),
        embedding="clip-vit-b-32",
        weights=clip_weights,
        neighbours="clip-vit-b-32",
        overlap=True,
        clients=4,
        anchors=2,
        components=2,
        controls=1,
        quick=True,
    )
    out = capsys.readouterr().out
    assert "cifar10/train, means over 2 anchors; clip-vit-b-32, neighbours by clip-vit-b-32" in out
    assert drawn == [Path("checkpoints/variance-limited-cifar10-clip-vit-b-32-quick/variance_limited.png")]


def test_a_class_with_too_few_images_is_refused_before_anything_is_embedded(monkeypatch):
    monkeypatch.setattr("fedgen.experiments.engine.features.embed", None)
    with pytest.raises(ValueError, match="digits"):
        variance_limited(output=Path("out"), **{**TINY, "clients": 100})


def test_what_was_not_seen_is_said():
    flat = {"least at": 100, "least": 3.0, "left": [1.0, 2.0], "right": [0.0, 0.0], "inside": False, "anchors": 0}
    gap = {"mean": 1.0, "min": 0.5, "max": 1.5, "spread": 1.0}
    pairs = {"gap": gap, "control gap": [{"spread": 2.0}], "excess beyond error": 0.0, "control inverted": [1]}
    pairs |= {"inverted": [], "pairs": 3}
    names = ("fid", "fid pca", "fid equal")
    found = {
        "valleys": {name: {"avg": flat, "all": flat} for name in names},
        "control valleys": {name: [flat] for name in names},
        "sizes": dict.fromkeys(names, pairs),
        "generators": {"fid": {**pairs, "inverted": 0}, "kid": {"inverted": 2}},
        "gaps": {"kid": {"mean": 1.0, "relative spread": 0.1}},
    }
    lines = expected(found, 3)
    own, everyone, control = lines[1].split("; ")
    assert own == "    0 of 3 anchors' own curves are least inside"
    assert everyone == "all 0 (means least at 100)"
    assert control == "avg over IID clients 0 (means least at 100)"
    assert [line[:10] for line in lines].count("not seen: ") == len(lines) - 3 == 10
    intra = expected_of("K = 5", found, 3)
    assert [line.split(":")[0] for line in intra] == ["not seen"] * 3
    for name in names:  # nothing is said of controls that were not asked for
        found["sizes"][name] = {**pairs, "control gap": [], "excess beyond error": None}
    assert not any("IID clients " in line for line in expected(found, 3)[6:])


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ((), r"clients=\[\]: give numbers of neighbours, each once"),
        ((5, 5), "each once"),
        ((5, 95), "class '0' of digits/train, one half has 89 images, and its client needs 96"),
    ],
)
def test_impossible_numbers_of_neighbours_are_refused(clients, message):
    with pytest.raises(ValueError, match=message):
        intra_client_variance(output=Path("out"), **{**TINY, "clients": clients})
