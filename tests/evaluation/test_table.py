"""Tables that fit a terminal and say what was measured."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from fedgen.evaluation import (
    Run,
    append_records,
    compare,
    comparison_table,
    inversion_table,
    print_report,
    score_table,
    score_tables,
    selection_table,
)
from fedgen.reports.sentences import verdict
from tests.evaluation.samples import record
from tests.evaluation.test_selection import RECORDS, column

FLOOR = [record(s, a, 0.5, None, generator="floor", num_generated=40) for s in ("fid", "kid") for a in ("avg", "all")]


def text(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


def test_scores_have_a_row_a_round_and_one_for_the_floor():
    lines = text(score_table([*FLOOR, *RECORDS])).splitlines()
    title = " ".join(" ".join(lines[:2]).split())
    measured = "digits/train, 2 clients, 100 images, embedding pixels, weights by examples, seed 0"
    assert title == f"50 generated images against {measured}"
    rows = [line for line in lines if line.strip().startswith("│")]
    assert [row.split("│")[1].strip() for row in rows] == ["0", "1", "2", "floor"]
    assert "10.0±5.0" in rows[0]
    assert "40 real images" in " ".join(" ".join(lines).split())


def test_texts_are_no_images():
    texts = [replace(one, reference="moses/train, 2 clients, 12796 texts") for one in (*FLOOR, *RECORDS)]
    said = " ".join(text(score_table(texts)).split())
    assert "50 generated texts against moses/train, 2 clients, 12,796 texts, embedding" in said
    assert "40 real texts" in said
    assert "images" not in said
    assert replace(texts[0], reference="reals").noun == "images"


def test_of_one_checkpoint_nothing_is_chosen(tmp_path):
    append_records(tmp_path / "scores.jsonl", [*FLOOR, *(one for one in RECORDS if one.round == 0)])
    console = Console(file=io.StringIO(), width=100)
    print_report(tmp_path, console)
    assert not re.search("Selected|alike|bold", console.file.getvalue())


def test_a_note_stands_once_below_several_tables():
    noted = [replace(one, note="of few images") for one in RECORDS if one.split == "train"]
    captions = [str(table.caption) for table in score_tables(noted, width=40)]
    assert ["of few images" in caption for caption in captions] == [True] + [False] * (len(captions) - 1)
    assert len(captions) > 1


def test_stored_images_have_a_row_of_their_scores_too():
    """They have no round."""
    stored = [replace(one, round=None, checkpoint=None) for one in RECORDS if one.round == 0 and one.split == "train"]
    table = score_table([*FLOOR, *stored])
    assert [str(cell) for cell in table.columns[0].cells] == ["generated", "floor"]
    assert table.columns[0].header == ""
    for own in table.columns[1:]:
        assert all(own.cells), own.header
    assert "10.0±5.0" in text(table)


def test_columns_of_other_splits_and_embeddings_are_explained_where_they_are_printed():
    other = [replace(one, embedding="vgg16") for one in RECORDS if one.split == "train"]
    records = [*RECORDS, *(replace(one, split="report") for one in RECORDS), *other]
    said = " ".join(text(inversion_table(records)).split())
    assert "report/: another sample, against data not used in training or selection" in said
    assert "vgg16/: in that embedding; others: in pixels" in said
    chosen = " ".join(text(selection_table(records)).split())
    assert "vgg16/: in that embedding" in chosen
    two = " ".join(text(comparison_table(compare(records, "report/fid_avg", "vgg16/kid_all"), records)).split())
    assert "report/: another sample, against data" in two
    assert "vgg16/: in that embedding; others: in pixels" in two
    assert "report/" not in chosen  # none of its columns is called so
    assert "else" not in text(inversion_table([one for one in RECORDS if one.split == "train"]))


def test_names_are_no_markup():
    odd = [
        record("fid", a, 1.0, r, reference="my[/data]/train", embedding="[bold]", note="[x]")
        for a in ("avg", "all")
        for r in (0, 1)
    ]
    assert "my[/data]/train, embedding [bold]" in " ".join(text(score_table(odd)).split())
    assert "fid_avg" in text(selection_table([record(), *odd]))
    assert "[bold]/fid_avg" in text(selection_table([record(), *odd]))


def test_a_split_or_embedding_without_scores_is_an_error():
    with pytest.raises(ValueError, match="report"):
        score_table(RECORDS, "report")


def test_the_selection_shows_the_choice_of_each_column_and_its_report():
    report = column("fid_all", {2: 55.0}, split="report")
    rows = [line for line in text(selection_table([*FLOOR, *RECORDS, *report])).splitlines() if "_" in line]
    cells = [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]
    assert [row[:2] for row in cells] == [["fid_avg", "1"], ["fid_all", "2"], ["kid_avg", "2"], ["kid_all", "2"]]
    assert [row[3] for row in cells] == ["", "55.0±5.0", "", ""]


def test_inversions_are_counted_and_listed():
    shown = text(inversion_table(RECORDS))
    told = "fid_avg and fid_all order 1 of 3 pairs of checkpoints differently, 1 for sure"
    assert told in " ".join(shown.split())
    assert "fid_avg / fid_all" in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if " / " in line]
    assert rows == [
        ["fid_avg / fid_all", "0.33", "round 1", "round 2", "yes"],
        ["kid_avg / kid_all", "1.00", "no pair inverted", "", ""],
    ]
    alone = inversion_table(RECORDS[:1])
    assert alone.title == "no checkpoints are scored in both avg and all"
    assert "none" in text(alone)


def test_the_title_counts_by_columns_as_the_conclusions_do():
    report = [
        *column("fid_avg", {1: 1.0, 2: 2.0}, split="report"),
        *column("fid_all", {1: 2.0, 2: 1.0}, split="report"),
    ]
    title = str(inversion_table([*RECORDS, *report]).title)
    said = verdict([one for one in RECORDS if one.score == "fid"])["avg and all"]
    told = [line for line in said if " order " in line]
    assert title.split("; ") == [
        told[0].rstrip("."),
        "report/fid_avg and report/fid_all order 1 of 1 pairs of checkpoints differently, 1 for sure",
    ]
    alike = [*column("fid_avg", {1: 1.0, 2: 2.0}), *column("fid_all", {1: 1.0, 2: 2.0})]
    assert inversion_table(alike).title == "avg and all order all pairs of checkpoints alike"


def test_of_very_many_inverted_pairs_some_are_listed_and_all_counted():
    rounds = range(12)
    records = [*column("fid_avg", {k: float(k) for k in rounds}), *column("fid_all", {k: -float(k) for k in rounds})]
    shown = text(inversion_table(records))
    assert "order 66 of 66 pairs of checkpoints differently" in shown
    assert "and 36 more pairs" in shown
    assert shown.count("round ") == 2 * 30


def test_two_columns_are_compared_in_a_table_of_their_own():
    shown = text(comparison_table(compare(RECORDS, "fid_avg", "kid_all"), RECORDS))
    told = "fid_avg and kid_all order 1 of 3 pairs of checkpoints differently, 1 for sure: tau 0.33"
    assert told in " ".join(shown.split())
    assert "kid_all prefers" in shown


def test_the_best_is_bold_and_the_caption_says_which_way():
    from rich.text import Text

    table = score_table([*column("fid_avg", {0: 2.0, 1: 1.0}), *column("recall_all", {0: 0.5, 1: 0.25})])
    assert "higher is better for recall, lower for fid" in table.caption
    cells = [[Text.from_markup(cell) for cell in column.cells] for column in table.columns[1:]]
    assert [[bool(cell.spans) for cell in column] for column in cells] == [[False, True], [True, False]]
    assert score_table(RECORDS).caption.startswith("lower is better; ± standard error")


def test_another_number_of_images_in_a_column_is_said():
    records = column("fid_avg", {0: 1.0}) + column("kid_avg", {0: 1.0}, num_generated=60)
    assert "kid_avg: 60 images, pixels, weights by examples, seed 0" in score_table(records).caption
    assert "images, pixels" not in score_table(records[:1]).caption


def test_scores_that_do_not_fit_beside_each_other_get_tables_of_their_own():
    records = [r for name in ("fid", "kid", "density") for a in ("avg", "all") for r in column(f"{name}_{a}", {0: 1.0})]

    def headings(width):
        return [[c.header for c in table.columns[1:]] for table in score_tables(records, width=width)]

    both = ["fid_avg", "fid_all", "kid_avg", "kid_all"]
    assert headings(80) == [both, ["density_avg", "density_all"]]
    assert headings(200) == [[*both, "density_avg", "density_all"]]
    assert headings(10) == [both[:2], both[2:], ["density_avg", "density_all"]]
    for table in score_tables(records):
        console = Console(file=io.StringIO(), width=80)
        console.print(table)
        assert "…" not in console.file.getvalue()


def test_memorisation_ranks_nothing_unless_asked():
    values = {0: 0.2, 1: 0.5}
    records = column("memorisation_avg", values) + column("memorisation_all", {0: 0.6, 1: 0.1})
    assert "none" in text(inversion_table(records))
    assert not selection_table(records).rows
    assert len(compare(records, "memorisation_avg", "memorisation_all").pairs) == 1
    assert "nearest 0.5, the value of a generator without memory" in score_table(records).caption
    shown = score_table(records).columns
    assert [["[bold]" in cell for cell in heading.cells] for heading in shown[1:]] == [[False, True], [True, False]]


def test_power_means_are_columns_and_worst_is_not():
    shown = [*column("fid_avg", {0: 2.0}), *column("fid_worst", {0: 3.0}), *column("fid_power-2", {0: 2.5})]
    assert [heading.header for heading in score_table(shown).columns] == ["round", "fid_avg", "fid_power-2"]


def test_a_report_prints_all_of_it_and_warns_of_optimised_scores(tmp_path):
    optimised = column("fid_avg", {0: 1.0}, embedding="vgg16", optimised_on=["vgg16"])
    append_records(tmp_path / "scores.jsonl", [*FLOOR, *RECORDS, *optimised])
    console = Console(file=io.StringIO(), width=100)
    print_report(Run(tmp_path), console)
    shown = " ".join(console.file.getvalue().split())
    parts = (
        "embedding pixels",
        "embedding vgg16",
        "Selected by each column",
        "fid_avg and fid_all order 1 of 3 pairs",
        "proves little",
    )
    for part in parts:
        assert part in shown


def test_values_that_do_not_compare_are_never_shown_in_one_column(tmp_path):
    recalls = [record("recall", round=round, score_settings={"k": 3 + round}) for round in (0, 1)]
    kids = [record("kid", round=round) for round in (0, 1)]
    append_records(tmp_path / "scores.jsonl", [record(round=0), record(round=1, num_generated=51), *recalls, *kids])
    with pytest.warns(UserWarning, match="checkpoint") as warned:
        shown = Run(tmp_path).records
    assert len(warned) == 1
    assert [(one.name, one.round) for one in shown] == [
        ("fid_avg", 1),
        ("recall_avg", 0),
        ("kid_avg", 0),
        ("kid_avg", 1),
    ]


def test_a_choice_among_equals_is_no_silent_one():
    shown = selection_table(column("recall_all", {0: 0.0, 1: 0.3, 2: 0.3}) + column("fid_all", {0: 2.0, 1: 1.0}))
    assert list(shown.columns[1].cells) == ["1 (of 2 equal)", "1"]


def test_a_checkpoint_that_is_not_kept_is_said():
    gone = [replace(one, checkpoint=None) for one in column("fid_all", {0: 2.0, 1: 2.0})]
    assert list(selection_table(gone).columns[1].cells) == ["0 (of 2 equal, not kept)"]


def test_numbers_are_whole_on_80_columns():
    values = {0: 0.9999301, 1: 0.9999302}
    own = [replace(one, standard_error=7e-05) for one in column("novelty_all", values, embedding="a-name-of-bytes")]
    records = [*RECORDS, *own, *(replace(one, split="report") for one in own)]
    console = Console(file=io.StringIO(), width=80)
    console.print(selection_table(records))
    assert console.file.getvalue().count("0.999930±0.000070") == 2


def test_names_of_columns_are_not_cut_off():
    shown = column("precision_power--1", {round: 0.1 * round for round in range(3)})
    records = [replace(one, split=split) for split in ("train", "test") for one in shown]
    console = Console(file=io.StringIO(), width=60)
    console.print(selection_table(records))
    assert "…" not in console.file.getvalue()
