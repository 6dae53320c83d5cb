"""Ranks where intervals allow one, answers, and the command that prints them."""

import pytest

from fedgen.__main__ import main
from fedgen.benchmark.entry import read_entry
from fedgen.benchmark.leaderboard import answers_of, read_all, standings_of
from tests.benchmark.entry_files import CENTRALISED, FEDERATED, LOCAL, make_form, write_form


def entries_of(folder, **ratios):
    cells = {"fedavg": FEDERATED, "local": LOCAL, "centralised": CENTRALISED}
    return [read_entry(write_form(folder, cell=cells[name], ratios=own)) for name, own in ratios.items()]


def test_intervals_that_are_apart_give_ranks(tmp_path):
    found = entries_of(tmp_path, fedavg=(3.0, 3.0), local=(5.0, 5.0), centralised=(2.0, 2.0))
    (standing,) = standings_of(found)
    assert [entry.name for entry in standing.entries] == [CENTRALISED, FEDERATED, LOCAL]
    assert [standing.rank(entry) for entry in standing.entries] == ["1", "2", "3"]
    assert [answer.order for answer in answers_of(found)] == [
        "wgan-gp / centralised < wgan-gp / fedavg < wgan-gp / local"
    ]


def test_intervals_that_overlap_give_none(tmp_path):
    # log 2 and log 3 lie 0.4 apart; with two seeds 2.9 and 3.1 reach 12.7 times their error, 0.42, to either side
    found = entries_of(tmp_path, fedavg=(2.9, 3.1), local=(900.0, 900.0), centralised=(2.0, 2.0))
    (standing,) = standings_of(found)
    assert [standing.rank(entry) for entry in standing.entries] == ["1 to 2", "1 to 2", "3"]
    assert "wgan-gp / centralised ~ wgan-gp / fedavg < wgan-gp / local" in answers_of(found)[0].order
    (both,) = standings_of(found[:1] + found[2:])
    assert {both.rank(entry) for entry in both.entries} == {"cannot be told"}


def test_an_entry_that_diverged_is_last_and_has_no_rank_of_its_own(tmp_path):
    form = make_form(LOCAL)
    found = entries_of(tmp_path, fedavg=(3.0, 3.0), centralised=(2.0, 2.0))
    for run in form["runs"]:
        run["records"][0]["value"] = "nan"
    form["claims"] |= {"number": None, "low": None, "high": None, "parts": {}}
    write_form(tmp_path, form)
    entries, refused = read_all([tmp_path])
    assert refused == []
    (standing,) = standings_of(entries)
    assert [entry.name for entry in standing.entries] == [CENTRALISED, FEDERATED, LOCAL]
    assert standing.rank(standing.entries[-1]) == "cannot be told"
    assert len(found) == 2


def test_a_refused_entry_is_named_and_the_others_are_shown(tmp_path, capsys):
    write_form(tmp_path, cell=CENTRALISED)
    form = make_form(FEDERATED)
    form["claims"]["number"] = 1.0
    path = write_form(tmp_path, form)
    assert main(["benchmark", "table", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "centralised" in shown
    assert f"entry {FEDERATED} ({path}) is refused: it claims number 1, and its stored records show 2" in shown


def test_texts_of_a_refused_entry_move_no_cursor(tmp_path, capsys):
    form = make_form(FEDERATED)
    form["runs"][0]["records"] += 2 * [{**form["runs"][0]["records"][0], "score": "\x1b[2J"}]
    write_form(tmp_path, form)
    assert main(["benchmark", "table", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert r"the model's \x1b[2J_avg in efficientnet-lite0-32 of seed 0 is there 2 times" in shown


def test_two_entries_of_one_cell_are_not_ranked_against_each_other(tmp_path):
    first, second = write_form(tmp_path / "a"), write_form(tmp_path / "b")
    entries, (refused,) = read_all([tmp_path / "a", tmp_path / "b"])
    assert [entry.path for entry in entries] == [first]
    assert refused == f"entry {FEDERATED} ({second}) is refused: {first} is of the same cell"


def test_the_table_shows_numbers_intervals_and_costs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    entries_of(tmp_path, fedavg=(3.0, 3.0), local=(5.0, 5.0))
    assert main(["benchmark", "table", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    first, second = (line for line in lines if line[:3] in (["1", "wgan-gp", "3"], ["fedavg", "3", "to"]))
    assert first == ["1", "wgan-gp", "3", "3", "3", "300", "kB", "12", "800", "MB"]
    assert second == ["fedavg", "3", "to", "3"]
    assert "2 seeds; 30 rounds of 2 local iterations, 5 of 10 clients in each" in shown
    floors = (
        "FID of real images in avg and all: efficientnet-lite0-32 2 and 2, classifier-mnist5k 2 and 2, pixels 2 and 2"
    )
    assert floors in " ".join(shown.split())
    assert "What does training together bring" in shown
    assert "  wgan-gp / fedavg < wgan-gp / local" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "tinny"], "there is no suite 'tinny'; did you mean tiny? known: tiny"),
        (
            ["run", "tiny", "--cells", "digits/by-class/wgan-gp/fedavgg"],
            "did you mean 'digits/by-class/wgan-gp/fedavg'",
        ),
        (["run", "tiny", "--parallel", "0"], "--parallel 0: expected 1 or more"),
        (["run", "tiny", "--entry", "torch.nn.Linear"], "--entry torch.nn.Linear: give a class"),
        (["run", "tiny", "--entry", "nowhere.Mine"], "there is no module 'nowhere'"),
        (["table", "nowhere"], "nowhere has no entries; give a folder"),
        (["tabel"], "benchmark 'tabel': give run or table; did you mean 'table'?"),
    ],
)
def test_mistakes_are_told_before_any_training(arguments, said, capsys):
    assert main(["benchmark", *arguments]) == 2
    assert said in capsys.readouterr().err
