"""Marks wherever a score is shown whose embedding a training loss used."""

import io

import pytest
from rich.console import Console

from fedgen.cli.run import ranking_table, remarks_on
from fedgen.evaluation import Columns, compare, comparison_table, inversion_table, score_table, select, selection_table
from fedgen.evaluation.marks import axis_of, explained, mark_in, mark_of, strongest
from tests.evaluation.samples import record
from tests.evaluation.test_selection import column

USED = {"optimised_on": ["pixels"]}


def text(table):
    console = Console(file=io.StringIO(), width=300)
    console.print(table)
    return " ".join(console.file.getvalue().split())


def both(**options):
    """avg and all of three rounds."""
    return [
        *column("fid_avg", {0: 3.0, 1: 2.0, 2: 1.0}, **options),
        *column("fid_all", {0: 1.0, 1: 2.0, 2: 3.0}, **options),
    ]


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ({}, ""),
        ({"optimised_on": ["vgg16"]}, ""),
        ({"optimised_on": ["pixels"]}, "*"),
        ({"optimised_on": ["pixels"], "split": "report"}, "(*)"),
        ({"embedding": "efficientnet-lite0", "optimised_on": ["efficientnet-lite0-32"]}, "(*)"),
        ({"embedding": "inception-v3-compat-192", "optimised_on": ["inception-v3-compat"]}, "(*)"),
        ({"embedding": "classifier-mnist5k", "optimised_on": ["efficientnet-lite0-32"]}, ""),
    ],
)
def test_the_mark_tells_the_losses_own_images_from_a_weaker_tie(options, mark):
    found = record(**options)
    assert mark_of(found) == mark
    assert found.is_optimised == bool(mark)
    assert len(explained([found])) == bool(mark)
    assert mark_in(found.embedding, found.optimised_on, held_out=found.split == "report") == mark


def test_a_column_has_the_strongest_of_its_marks():
    assert strongest([record(), record(**USED, split="report"), record(**USED)]) == "*"
    assert strongest([record(), record(**USED, split="report")]) == "(*)"


def test_score_tables_mark_the_heading_and_explain_it():
    shown = score_table(both(**USED))
    assert [heading.header for heading in shown.columns] == ["round", "fid_avg *", "fid_all *"]
    assert "look at another embedding" in shown.caption
    held_out = score_table(both(**USED, split="report"))
    assert [heading.header for heading in held_out.columns][1:] == ["fid_avg (*)", "fid_all (*)"]
    assert "held-out" in held_out.caption
    assert "*" not in score_table(both()).caption


def test_the_selection_marks_the_choice_and_the_held_out_value():
    records = [*both(**USED), *both(**USED, split="report")]
    shown = text(selection_table(records))
    assert "fid_avg *" in shown
    assert "(*) " in shown
    assert "a training loss used this embedding:" in shown
    assert "on other images than these" in shown
    assert "*" not in text(selection_table(both()))


def test_comparisons_mark_their_columns():
    shown = text(inversion_table(both(**USED)))
    assert "fid_avg * / fid_all *" in shown
    assert "look at another embedding" in shown
    other = [*both(**USED), *column("fid_all", {0: 1.0, 1: 2.0}, embedding="vgg16", **USED)]
    comparison = compare(other, "fid_all", "vgg16/fid_all")
    assert comparison.marks == ("*", "")
    assert "fid_all * / vgg16/fid_all " in text(comparison_table(comparison, other))


def test_a_choice_by_a_marked_column_is_explained_in_words():
    records = [*both(**USED), *column("fid_all", {0: 1.0, 1: 2.0}, embedding="vgg16", **USED)]
    ranking = select(records, "fid_all")
    assert all(entry.mark == "*" and entry.optimised for entry in ranking)
    assert "1.0±5.0 *" in text(ranking_table(ranking, "fid_all", "title"))
    words = " ".join(remarks_on(records, "fid_all"))
    assert "fid_all is in embedding pixels, and a training loss used pixels." in words
    assert "Choose by vgg16/fid_all: this choice follows what the model was optimised on." in words
    assert remarks_on(records, "vgg16/fid_all") == []
    alone = " ".join(remarks_on(both(**USED), "fid_all"))
    assert "Score the checkpoints in another embedding" in alone


def test_how_models_sampled_is_said_beside_a_choice():
    records = column("fid_all", {0: 1.0}, sampling={"steps": 25})
    assert remarks_on(records, "fid_all") == ["fid_all: sampled with steps 25"]


def test_axes_carry_the_mark():
    assert axis_of(record(**USED)) == "FID * (lower is better)"
    assert axis_of(record()) == "FID (lower is better)"
    assert Columns.of([record()]).name(record(**USED)) == "fid_avg"  # what is monitored keeps its name
