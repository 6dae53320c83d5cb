"""The experiment on clients of several numbers of neighbours, in seconds."""

import json
from pathlib import Path

import pytest

from fedgen.experiments.ranking.variance.intra_client_variance import intra_client_variance

TINY = {
    "data": "digits",
    "embedding": "pixels",
    "clients": (5, 10),
    "anchors": 2,
    "sizes": (30, 300),
    "components": 8,
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.slow
def test_it_measures_the_same_generators_for_every_number_and_does_not_measure_twice(capsys, monkeypatch):
    intra_client_variance(output=Path("out"), **TINY)
    first = capsys.readouterr().out
    numbers = json.loads(Path("out/results.json").read_text())["numbers"]
    assert list(numbers["scores"]["0"]) == ["K = 5", "K = 5, IID 0", "K = 10", "K = 10, IID 0"]
    assert [numbers["floors"][k]["images"] for k in ("5", "10")] == [60, 110]
    assert list(numbers["found"]) == ["5", "10"]
    assert Path("out/intra_client_variance.png").read_bytes().startswith(b"\x89PNG")
    assert first.count("as expected: K = ") >= 2
    monkeypatch.setattr("fedgen.experiments.ranking.variance.variance.FrechetAndKernel", None)
    intra_client_variance(output=Path("out"), **TINY)
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ((), r"clients=\[\]: give numbers of neighbours"),
        ((5, 5), "each once"),
        ((5, 95), "class '0' of digits/train, one half has 89 images, and its client needs 96"),
    ],
)
def test_impossible_numbers_are_refused(clients, message):
    with pytest.raises(ValueError, match=message):
        intra_client_variance(output=Path("out"), **{**TINY, "clients": clients})
