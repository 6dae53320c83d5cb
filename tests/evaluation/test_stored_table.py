"""What the tables of stored sets say."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedgen.evaluation import PeerEvaluation, StoredEvaluation, StoredOptions, client_table, client_tables, peer_table
from fedgen.evaluation.records import say_error


@pytest.fixture
def save(tmp_path):
    """Writes features of a number of images to a file."""

    def write(name, count=12, shift=0.0):
        features = np.random.default_rng(len(name)).normal(size=(count, 3)) + shift
        np.savez(tmp_path / f"{name}.npz", features=features)
        return tmp_path / f"{name}.npz"

    return write


def text(table, width=160):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def rows(table):
    lines = [line for line in text(table).splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_clients_come_best_first_with_their_weights_and_errors(save):
    evaluation = StoredEvaluation(save("generated"), [save("far", 12, 5.0), save("near", 36)])
    found = rows(client_table(evaluation, evaluation.records()))
    assert [row[0] for row in found] == ["near", "far", "avg", "over clients", "all", "over clients", "worst"]
    assert [row[1:3] for row in found[:2]] == [["36", "0.75"], ["12", "0.25"]]
    assert all("±" in cell for row in found for cell in row[3:])
    assert found[4][1] == "48"


def test_of_a_score_by_which_more_is_better_the_highest_client_comes_first(save):
    options = StoredOptions(scores=[{"name": "coverage", "k": 2}, "fid"], aggregates=["power-2"])
    evaluation = StoredEvaluation(save("generated"), [save("far", 12, 5.0), save("near", 36)], options=options)
    table = client_table(evaluation, evaluation.records())
    found = rows(table)
    assert [row[0] for row in found][:2] == ["near", "far"]
    assert table.caption.startswith("higher is better for coverage, lower for fid, ± standard error")
    power = next(row for row in found if row[0] == "power-2")
    assert power[3] == ""  # lower is better where powers above 1 lean towards the badly served
    assert float(power[4]) > 0


def test_scores_that_do_not_fit_beside_each_other_get_tables_of_their_own(save):
    names = ["fid", "kid", "kid-rbf", "density", "coverage"]
    scores = [{"name": name, "k": 2} if name in ("density", "coverage") else name for name in names]
    evaluation = StoredEvaluation(save("generated"), [save("near", 36)], options=StoredOptions(scores=scores))
    records = evaluation.records()
    tables = client_tables(evaluation, records, 80)
    assert [[c.header for c in table.columns[3:]] for table in tables] == [names[:2], names[2:4], names[4:]]
    assert all("…" not in text(table, 80) for table in tables)
    assert len(client_tables(evaluation, records, 200)) == 1


def test_clients_come_in_one_order_in_all_tables(save):
    options = StoredOptions(scores=["fid", "kid", "sw1"])
    evaluation = StoredEvaluation(save("generated"), [save("far", 12, 5.0), save("near", 36)], options=options)
    turned = [
        replace(record, per_client=[-value for value in record.per_client]) if record.score == "sw1" else record
        for record in evaluation.records()
    ]
    tables = client_tables(evaluation, turned, 80)
    assert [[row[0] for row in rows(table)][:2] for table in tables] == [["near", "far"]] * 2


def test_errors_over_clients_stand_below_avg_and_all(save):
    evaluation = StoredEvaluation(save("generated"), [save("far", 12, 5.0), save("near", 36)])
    records = evaluation.records()
    found = rows(client_table(evaluation, records))
    assert [row[3:] for row in found if row[0] == "over clients"] == [
        [f"±{say_error(record.error_over_clients)}" for record in records if record.aggregate == aggregate]
        for aggregate in ("avg", "all")
    ]
    one = StoredEvaluation(save("generated"), [save("near", 36)])
    assert "over clients" not in [row[0] for row in rows(client_table(one, one.records()))]


def test_large_numbers_are_written_out(tmp_path):
    mu, sigma = np.zeros(3), np.eye(3)
    for name in ("made", "large", "small"):
        np.savez(tmp_path / f"{name}.npz", mu=mu, sigma=sigma)
    counts = {"large": 1281167.0, "small": 2.0}
    paths = [tmp_path / f"{name}.npz" for name in counts]
    evaluation = StoredEvaluation(tmp_path / "made.npz", paths, options=StoredOptions(counts=counts))
    records = evaluation.records()
    assert records[0].reference.endswith("2 clients, 1281169 images")
    assert [row[1] for row in rows(client_table(evaluation, records))] == ["1281167", "2", "", "1281169", ""]


def test_the_ends_of_many_clients_are_shown(save):
    clients = [save(f"client{k}", 5, k / 10) for k in range(45)]
    evaluation = StoredEvaluation(save("generated"), clients)
    found = rows(client_table(evaluation, evaluation.records()))
    assert len(found) == 30 + 1 + 3 + 2
    assert found[15][0] == "... 15 more ..."


@pytest.mark.slow
def test_the_two_kids_are_told_apart(save):
    evaluation = PeerEvaluation(save("generated"), save("real"), subset_size=10)
    found = rows(peer_table(evaluation, evaluation.records()))
    assert [row[0] for row in found] == ["fid", "kid", "kid_subsets"]
    assert found[1][3] == "all images; standard error"
    assert found[2][3] == "100 subsets of 10 images, as torch-fidelity draws them; deviation over them"


def test_a_missing_kid_over_subsets_is_explained(save):
    evaluation = PeerEvaluation(save("generated"), save("real", 20))
    shown = " ".join(text(peer_table(evaluation, evaluation.records())).split())
    assert "torch-fidelity's kid needs 1000 images per set, but the smaller has 12" in shown
    assert "as torch-fidelity prints it" not in shown  # features of nobody knows what


def test_the_clean_fid_preset_promises_fid_alone(save):
    evaluation = PeerEvaluation(save("generated"), save("real"), "clean-fid", subset_size=10)
    shown = text(peer_table(evaluation, evaluation.records()))
    assert "kid_subsets" not in shown
    assert "torch-fidelity" not in shown
