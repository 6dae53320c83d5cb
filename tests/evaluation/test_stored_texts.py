"""Files of texts as stored sets: molecules a line, scored over clients."""

import json

import pytest

from fedgen.__main__ import main
from fedgen.embeddings import FeatureCache
from fedgen.evaluation import StoredEvaluation, StoredOptions, score_stored
from fedgen.evaluation.stored.stored_images import TextLines
from fedgen.scores import FrechetReference

SITES = {"north": ["CCO", "c1ccccc1", "CC(=O)O", "CCN", "CCC"], "south": ["O=C=O", "C#N", "FC(F)F", "CCl", "CBr"]}
MADE = ["CCCl", "CCBr", "CCF", "C(", "OCC"]


@pytest.fixture
def files(tmp_path):
    """A generated file, of which a line is no molecule, and one a client; names stand behind some molecules."""
    for name, texts in SITES.items():
        (tmp_path / f"{name}.smi").write_text("".join(f"{text} {name}-{i}\n" for i, text in enumerate(texts)))
    (tmp_path / "made.txt").write_text("\n".join(MADE) + "\n\n")
    return tmp_path / "made.txt", [tmp_path / f"{name}.smi" for name in SITES]


def test_molecules_a_line_are_scored_and_bad_lines_counted_and_named(files):
    made, sites = files
    evaluation = StoredEvaluation(made, sites, "chemnet")
    records = {record.name: record for record in evaluation.records()}
    embedding = evaluation.embedding
    reference = FrechetReference.from_features([embedding(texts) for texts in SITES.values()])
    expected = reference.score(embedding([text for text in MADE if text != "C("])).values
    assert records["fid_avg"].value == pytest.approx(expected["avg"], rel=1e-4)
    assert records["fid_all"].value == pytest.approx(expected["all"], rel=1e-4)
    assert records["fid_all"].num_generated == 4
    assert "1 of 5 lines of" in records["fid_all"].note
    assert evaluation.skipped == [f"{made}, line 4: C( has no features in chemnet"]


def test_the_command_prints_fcd_and_names_bad_lines(files, monkeypatch, capsys):
    made, sites = files
    monkeypatch.chdir(made.parent)
    names = [path.name for path in sites]
    assert main(["evaluate", "--generated", "made.txt", "--clients", *names, "--preset", "fcd"]) == 0
    assert "made.txt, line 4: C( has no features in chemnet" in capsys.readouterr().out
    scored = json.loads((made.parent / "scores.json").read_text())
    assert {record["score"] for record in scored["records"]} == {"fcd"}


def test_what_molecules_are_is_scored_of_every_line(files):
    made, sites = files
    options = StoredOptions(scores=["validity", "novelty"])
    records = {record.name: record for record in StoredEvaluation(made, sites, "bytes", options=options).records()}
    assert records["validity_all"].value == 4 / 5
    assert records["novelty_all"].value == 3 / 4  # CCBr is in the south, written the other way round


def test_texts_and_images_are_not_mixed_up(files, tmp_path):
    made, sites = files
    with pytest.raises(ValueError, match=r"made\.txt holds texts, and embedding pixels takes images"):
        StoredEvaluation(made, sites, "pixels")
    (tmp_path / "latin.txt").write_bytes("Kohlensäure\n".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("\n\n")
    for name, what in {"latin.txt": "UTF-8", "empty.txt": "no lines"}.items():
        with pytest.raises(ValueError, match=what):
            StoredEvaluation(tmp_path / name, sites, "chemnet")


def test_features_of_texts_are_kept(files, tmp_path):
    _, sites = files
    (tmp_path / "good.smi").write_text("CCO\nCCN\nCCC\n")
    options = StoredOptions(cache=FeatureCache(tmp_path / "cache"))
    first = score_stored(tmp_path / "good.smi", sites, "chemnet", options=options)
    assert len(list((tmp_path / "cache").iterdir())) == 3
    again = score_stored(tmp_path / "good.smi", sites, "chemnet", options=options)
    assert [record.value for record in again] == [record.value for record in first]
    assert len(TextLines(tmp_path / "good.smi")) == 3
