"""Stock ModelCheckpoint and EarlyStopping see evaluated rounds only, in any order of the callbacks."""

import copy
import pickle
from contextlib import nullcontext

import lightning as L
import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from fedgen.callbacks import RoundCheckpoint
from fedgen.evaluation import read_records
from tests.callbacks.modules import Points, Validated, evaluation, fit
from tests.quick import first_quick

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


def by_round(folder, name="kid_avg"):
    records = read_records(folder / "scores.jsonl")
    return {r.round: r.value for r in records if not r.is_floor and r.split == "train" and r.name == name}


def in_order(first, callbacks):
    return [evaluation(), *callbacks] if first else [*callbacks, evaluation()]


@pytest.mark.slow
@pytest.mark.parametrize(  # every pair of two of the three is there
    ("first", "at_epoch_end", "module"),
    [
        *((True, None, Points), (True, True, Validated), (True, False, Points)),
        *((False, None, Validated), (False, True, Points), (False, False, Validated)),
    ],
)
def test_checkpoints_are_those_of_the_best_evaluated_rounds(tmp_path, first, at_epoch_end, module):
    best = ModelCheckpoint(
        tmp_path / "best", monitor="kid_avg", save_top_k=2, filename="{epoch}", save_on_train_epoch_end=at_epoch_end
    )
    fit(tmp_path, 8, in_order(first, [best]), module(), num_sanity_val_steps=0)
    values = by_round(tmp_path)
    assert list(values) == [1, 3, 5, 7]
    expected = sorted(sorted(values, key=values.get)[:2])
    assert sorted(int(p.stem.split("=")[1]) for p in (tmp_path / "best").iterdir()) == expected
    kept = {int(path.split("epoch=")[1].split(".")[0]): float(value) for path, value in best.best_k_models.items()}
    assert kept == pytest.approx({round: values[round] for round in expected}, rel=1e-6)


@pytest.mark.parametrize("module", first_quick([Points, Validated]))
@pytest.mark.parametrize("first", [True, False])
def test_patience_counts_evaluations(tmp_path, first, module):
    stopping = EarlyStopping("kid_avg", patience=2, min_delta=1e9)
    trainer = fit(tmp_path, 50, in_order(first, [stopping]), module(), num_sanity_val_steps=0)
    # the first evaluation (round 1) sets the mark, those of rounds 3 and 5 exhaust the patience
    assert list(by_round(tmp_path)) == [1, 3, 5]
    assert trainer.current_epoch == 6
    assert stopping.stopped_epoch == 5


def test_callbacks_that_monitor_something_else_are_left_alone(tmp_path):
    every = ModelCheckpoint(tmp_path / "every", monitor="val_loss", save_top_k=-1, filename="{epoch}")
    fit(tmp_path, 4, [evaluation(), every], Validated(), num_sanity_val_steps=0)
    assert len(list((tmp_path / "every").iterdir())) == 4


@pytest.mark.slow
def test_hooks_are_given_back_after_training_and_after_an_error(tmp_path):
    class Failing(Points):
        def on_train_epoch_end(self):
            raise RuntimeError("stop here")

    for module, expected in ((Points(), nullcontext()), (Failing(), pytest.raises(RuntimeError, match="stop"))):
        stopping = EarlyStopping("kid_avg")
        with expected:
            fit(tmp_path / type(module).__name__, 1, [stopping, evaluation()], module)
        assert not {"on_train_epoch_end", "on_validation_end"} & set(vars(stopping))


def test_gated_callbacks_can_be_copied_and_pickled_while_training_runs(tmp_path):
    copies = []

    class Copying(L.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            judge = next(c for c in trainer.callbacks if hasattr(c, "evaluated_round"))
            stopping = trainer.early_stopping_callback
            copies.append(copy.deepcopy([stopping, judge])[0])
            copies.append(pickle.loads(pickle.dumps([stopping, judge]))[0])

    fit(tmp_path, 1, [EarlyStopping("kid_avg"), evaluation(), Copying()])
    assert all(c.on_train_epoch_end.args[0] is c for c in copies)
    assert len(copies) == 2


def test_a_misspelt_score_is_found_before_training(tmp_path):
    with pytest.raises(ValueError, match="kid_mean"):
        fit(tmp_path, 1, [EarlyStopping("kid_mean"), evaluation()])


@pytest.mark.slow
def test_states_survive_a_resume(tmp_path):
    def callbacks():
        return [EarlyStopping("kid_avg", patience=3, min_delta=1e9), evaluation(), RoundCheckpoint()]

    fit(tmp_path, 4, callbacks())
    trainer = fit(tmp_path, 50, callbacks(), ckpt_path="last")
    assert trainer.current_epoch == 8  # rounds 1, 3, 5, 7: one mark and three without improvement
