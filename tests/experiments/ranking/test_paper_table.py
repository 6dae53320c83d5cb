"""A published table read again, on made-up ones."""

from pathlib import Path

import pytest
import torch

from fedgen.experiments.ranking import paper_table as experiment


@pytest.fixture(autouse=True)
def _few_subsets(monkeypatch):
    monkeypatch.setattr("fedgen.experiments.ranking.paper_table.SUBSETS", 4)


HEADER = "class,fid_all,fid_avg,kid_all,kid_avg\n"


def write_table(path: Path, noise: float, generators: int = 30) -> Path:
    """KID-all even between 0.02 and 0.2, KID-avg 0.05 above it but for the noise, in three digits."""
    random = torch.Generator().manual_seed(0)
    lines = []
    for number, off in enumerate(torch.randn(generators, generator=random).tolist()):
        kid = 0.02 + 0.18 * number / generators
        lines.append(
            f"{number},{100 + number:.1f},{130 + (number - 9) ** 2:.1f},{kid:.3f},{kid + 0.05 + noise * off:.3f}\n"
        )
    path.write_text("# made up\n" + HEADER + "".join(lines))
    return path


def test_inverted_pairs_and_gaps_by_hand():
    columns = {"kid_avg": ["3", "1", "2"], "kid_all": ["1", "0.5", "1.5"]}
    rows = experiment.rows_of_table({"class": list("abc"), **columns, "fid_avg": "123", "fid_all": "123"})
    row = experiment.describe(rows)["kid"]
    assert row["inverted"] == [[2, 0]]
    assert row["pairs"] == 3
    assert row["tau"] == pytest.approx(1 / 3)
    assert row["gap"] == pytest.approx({"mean": 1.0, "min": 0.5, "max": 2.0, "sd": 0.75**0.5, "spread": 1.5})


def test_rounding_ties_pairs_and_inverts_none_and_noise_inverts_some():
    all = [0.02 + 0.0005 * place for place in range(60)]
    constant = experiment.explain([value + 0.05 for value in all], all, digits=3, repeats=5, seed=0)
    assert (constant["exact"], constant["rounded"], constant["noise"]) == (0, 0, 0)
    assert constant["tied by rounding"] > 20
    assert constant["noisy"] == [0] * 5
    off = torch.randn(60, generator=torch.Generator().manual_seed(1)).tolist()
    noisy = experiment.explain([value + 0.05 + 0.002 * one for value, one in zip(all, off)], all, 3, 5, 0)
    assert noisy["noise"] == pytest.approx(0.002, rel=0.25)
    assert min(noisy["noisy"]) > 50


@pytest.mark.slow
def test_without_the_table_it_shows_what_random_subsets_do_to_constant_gaps(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "SUBSETS", 4)
    experiment.paper_table(output=tmp_path, quick=True)
    printed = capsys.readouterr().out
    assert "as expected: all images invert 0 pairs by KID" in printed
    assert "as expected: rounding alone inverts 0" in printed
    assert "--table FILE.csv reads it again" in " ".join(printed.split())
    assert not (tmp_path / "paper_table.png").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,fid_all\na,1\nb,2\nc,3\n", "lacks the columns fid_avg, kid_all, kid_avg"),
        (HEADER + "a,1,2,3,4\n", "holds under 3 generators"),
        (HEADER + "a,1,2,3,4\na,1,2,3,4\nb,1,2,3,4\n", "class 'a' is there twice"),
        (HEADER + "a,1,2,3,4\nb,1,2,O.3,4\nc,1,2,3,4\n", "kid_all of class 'b' is 'O.3', which is no number"),
        (HEADER + "a,1,2,3,4\nb,1,2,3\nc,1,2,3,4\n", "line 3 has not the 5 fields"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        experiment.read_table(path)
    with pytest.raises(FileNotFoundError, match="CSV"):
        experiment.read_table(tmp_path / "nowhere.csv")
