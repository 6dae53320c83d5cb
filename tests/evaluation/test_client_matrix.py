"""Each client's own model on each client's images: against every pair scored alone."""

import json

import pytest
import torch

from fedgen.callbacks import RoundCheckpoint
from fedgen.evaluation import ClientMatrix, Evaluator, client_matrices, matrix_of_run, matrix_table, sampler_of
from fedgen.evaluation.own_models import own_in_place
from tests.evaluation.places import Averaged, Criticised, Placed, federation, fit
from tests.evaluation.test_own_models import by_place, plain

NAMES = [f"owner {number}" for number in range(4)]


def matrix(values, higher=False, count=2, errors=None):
    names, reference = tuple(NAMES[:count]), f"digits/train, {count} clients"
    told = torch.tensor(values).double(), errors, higher
    return ClientMatrix("fid", "train", "pixels", reference, names, names, *told, num_generated=100, round=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Placed, Averaged])
def test_each_cell_is_one_clients_model_scored_alone_on_one_clients_images(tmp_path, kind):
    data = federation(4, unparticipating=None)
    trainer = fit(tmp_path, module := kind(), data, [RoundCheckpoint()])
    personal = trainer.strategy.personal_tensors
    found = client_matrices(module, plain(data, scores=["fid", "kid"]), personal, 1)
    assert [(one.split, one.score) for one in found] == [
        (split, score) for split in ("train", "report") for score in ("fid", "kid")
    ]
    assert all((one.models, one.clients) == (tuple(NAMES), tuple(NAMES)) for one in found)
    assert [client.name for client in data.clients] == NAMES
    matrices = {(one.split, one.score): one for one in found}
    for split in plain(data).splits:
        for column in range(4):
            alone = Evaluator([split.of_one(column)], ["identity"], 40, ["fid", "kid"], seed=3)
            for row in range(4):
                with own_in_place(module, personal[row]):
                    records = alone.evaluate(sampler_of(module), 1).records
                own = {record.score: record for record in records if record.aggregate == "avg" and record.is_model}
                assert len(own) == 2
                for score, record in own.items():
                    one = matrices[split.name, score]
                    assert float(one.values[row, column]) == pytest.approx(record.value, rel=1e-6)
                    assert float(one.errors[row, column]) == pytest.approx(record.per_client_errors[0], rel=1e-4)


@pytest.mark.slow
def test_the_diagonal_is_what_each_client_scores_in_the_usual_evaluation(tmp_path):
    data = federation()
    fit(tmp_path, Placed(), data)
    found = {(one.split, one.score): one for one in matrix_of_run(tmp_path, Placed(), plain(data))}
    usual = by_place(tmp_path)
    for split in ("part_train", "part_val"):
        for score in ("kid", "loss"):
            one, record = found[split, score], usual[split, score, "avg"]
            assert list(one.clients) == record.client_names
            diagonal = [float(one.values[place]) for place in one.own]
            assert diagonal == pytest.approx(record.per_client, rel=1e-6)
    unseen = found["unpart", "kid"]
    assert unseen.own == []
    assert unseen.models == found["part_train", "kid"].clients
    assert unseen.words.startswith("kid of own models on images of clients that never train: ")


def test_who_had_no_turn_yet_has_the_servers_model(tmp_path):
    data = federation(4, unparticipating=None)
    trainer = fit(tmp_path, module := Placed(), data, [RoundCheckpoint()], 1, cohort_size=2)
    (one, _) = client_matrices(module, plain(data, scores=["kid"]), trainer.strategy.personal_tensors)
    absent = [number for number in range(4) if number not in trainer.strategy.personal_tensors]
    assert len(absent) == 2
    assert torch.equal(one.values[absent[0]], one.values[absent[1]])
    assert not torch.equal(one.values[0], one.values[1]) or not torch.equal(one.values[1], one.values[2])
    assert torch.equal(module.place.own, torch.zeros(2))


def test_a_run_keeps_its_matrix_as_json(tmp_path):
    data = federation(4, unparticipating=None)
    fit(tmp_path, Placed(), data, [RoundCheckpoint()])
    found = matrix_of_run(tmp_path, Placed(), plain(data, scores=["fid"]))
    stored = json.loads((tmp_path / "client_matrix.json").read_text())
    assert stored["version"] == 1
    assert [one["values"] for one in stored["matrices"]] == [one.values.tolist() for one in found]
    assert stored["matrices"][0]["errors"] == found[0].errors.tolist()
    assert stored["matrices"][0]["checkpoint"] == "round=00001.ckpt"
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        matrix_of_run(tmp_path, Placed(), plain(data), 9)


def test_models_that_are_all_one_have_no_matrix(tmp_path):
    data = federation(4, unparticipating=None)
    fit(tmp_path, Placed(), data, [RoundCheckpoint()], personal=[])
    with pytest.raises(ValueError, match="matrix"):
        matrix_of_run(tmp_path, Placed(), plain(data))
    fit(tmp_path / "critic", Criticised(), data, [RoundCheckpoint()])
    with pytest.raises(ValueError, match="depend"):
        matrix_of_run(tmp_path / "critic", Criticised(), plain(data, scores=["kid"]))
    assert not (tmp_path / "critic" / "client_matrix.json").exists()


def test_it_says_how_far_own_models_fit_their_own_clients_alone():
    assert matrix([[1.0, 5.0], [3.0, 2.0]]).words == (
        "fid on a client's own images 1.5, on others' 4 on average; the own model is the best one for 2 of 2 clients"
    )
    assert matrix([[1.0, 5.0], [0.5, 2.0]]).best == [1, 1]
    assert "best one for 1 of 2" in matrix([[1.0, 5.0], [0.5, 2.0]]).words
    assert matrix([[1.0, 5.0], [0.5, 2.0]], higher=True).best == [0, 0]
    assert "on others' none on average" in matrix([[1.0]], count=1).words


def test_a_table_has_the_best_of_each_clients_images_bold():
    errors = torch.full((2, 2), 0.3)
    table = matrix_table(matrix([[1.0, 5.0], [3.0, 2.0]], errors=errors))
    assert [list(column.cells) for column in table.columns] == [
        ["owner 0", "owner 1"],
        ["[bold]1.00±0.30[/bold]", "3.00±0.30"],
        ["5.00±0.30", "[bold]2.00±0.30[/bold]"],
    ]
    assert "the own model is the best one for 2 of 2 clients" in str(table.caption)
    assert list(matrix_table(matrix([[1.0, 5.0], [3.0, 2.0]], errors=errors), errors=False).columns[1].cells) == [
        "[bold]1[/bold]",
        "3",
    ]
