"""Recorded scores are those of the checkpoints, where callbacks write other weights than the module trains."""

from itertools import pairwise

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback, ModelCheckpoint

import fedgen.callbacks.federated_evaluation as watched
from fedgen.callbacks import RoundCheckpoint
from fedgen.evaluation import Evaluator, evaluate_run, read_records
from tests.callbacks.modules import Points, Validated, fit
from tests.callbacks.modules import evaluation as cheapest
from tests.federated.modules import make_data, make_trainer, same, weights


def evaluation(**options):
    """Each round, without pictures."""
    return cheapest(**{"every_n_rounds": 1, "grid": 0, **options})


def average(**options):
    """The average that the kit advises, with a memory of two rounds."""
    settings = {"decay": 0.5, "update_every_n_steps": 0, "update_starting_at_epoch": 0, **options}
    return EMAWeightAveraging(**settings)


def saver(folder, **options):
    """Lightning's own checkpoints, under the names of RoundCheckpoint."""
    names = {"filename": "round={epoch:05d}", "auto_insert_metric_name": False}
    return ModelCheckpoint(folder, save_top_k=-1, **names, **options)


class Mean(Callback):
    """A user's average of all rounds, which checkpoints hold in place of the weights."""

    def __init__(self):
        self.sums, self.rounds = {}, 0

    def on_train_start(self, trainer, pl_module):
        self.sums, self.rounds = {name: torch.zeros_like(p) for name, p in pl_module.named_parameters()}, 0

    def on_train_epoch_end(self, trainer, pl_module):
        self.rounds += 1
        for name, parameter in pl_module.named_parameters():
            self.sums[name] += parameter.detach()

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["state_dict"].update({name: total / max(self.rounds, 1) for name, total in self.sums.items()})
        del checkpoint["optimizer_states"]  # which such callbacks do for smaller files


class AroundValidation(Callback):
    """A user's average that stands in the module during validation alone."""

    def on_validation_start(self, trainer, pl_module):
        self.kept = weights(pl_module)
        for parameter in pl_module.parameters():
            parameter.data.zero_()

    def on_validation_end(self, trainer, pl_module):
        pl_module.load_state_dict(self.kept)


def values(records):
    return {record.identity: record.value for record in records if not record.is_floor}


def recorded(folder):
    return values(read_records(folder / "scores.jsonl"))


def recomputed(folder, module=None):
    """The scores of the checkpoints, as `fedgen evaluate` measures them from the files."""
    judge = Evaluator(make_data(held_out=0.25), embeddings=["identity"], num_images=40)
    return values(evaluate_run(folder, module or Points(), judge))


def in_order(first, callbacks):
    return callbacks if first else callbacks[::-1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of three rounds of which nothing is averaged."""
    folder = tmp_path_factory.mktemp("plain")
    fit(folder, 3, [evaluation()])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(  # every pair of two of the three is there
    ("first", "make", "keep"),
    [(True, average, RoundCheckpoint), (True, Mean, saver), (False, average, saver), (False, Mean, RoundCheckpoint)],
)
def test_recorded_scores_are_those_of_the_checkpoints(tmp_path, plain, first, make, keep):
    callbacks = in_order(first, [make(), evaluation(at_start=keep is RoundCheckpoint)])
    module = Points()
    fit(tmp_path, 3, [*callbacks, keep(tmp_path)], module)
    found = {key: value for key, value in recorded(tmp_path).items() if key[1] >= 0}
    assert {key[1] for key in found} == {0, 1, 2}
    assert found == recomputed(tmp_path)
    assert all(found[key] != value for key, value in recorded(plain).items() if key[1] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_of_the_best_score_has_that_score(tmp_path, first):
    best = saver(tmp_path, monitor="fid_all")
    fit(tmp_path, 3, [*in_order(first, [average(), evaluation()]), best], Validated())
    found = recomputed(tmp_path, Validated())
    assert found == recorded(tmp_path)
    assert float(best.best_model_score) == pytest.approx(
        min(v for k, v in found.items() if k[2][0] == "train" and k[2][2:] == ("fid", "all"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_training_does_not_notice(tmp_path, first):
    """The last checkpoint has the weights that train and optimizers; the module ends with the average."""
    modules, saved = [Points(), Points()], []
    for module, name, watching in zip(modules, "ab", ([], [evaluation(at_start=True)])):
        keep = RoundCheckpoint(every_n_rounds=1)
        fit(tmp_path / name, 4, [*in_order(first, [average(), *watching]), keep], module)
        saved.append(torch.load(tmp_path / name / "last.ckpt", weights_only=True))
    assert same(*map(weights, modules))
    for part in ("state_dict", "current_model_state"):
        assert same(*(checkpoint[part] for checkpoint in saved))
    assert not same(saved[0]["state_dict"], saved[0]["current_model_state"])
    assert saved[0]["optimizer_states"] == saved[1]["optimizer_states"]


@pytest.mark.slow
@pytest.mark.parametrize(("personal", "first"), [(["net.4.*"], True), (["*"], False)])
def test_clients_own_models_are_scored_beside_the_average(tmp_path, personal, first):
    modules = [Points(), Points()]
    for module, name, watching in zip(modules, "ab", ([], [evaluation()])):
        callbacks = [*in_order(first, [average(), *watching]), RoundCheckpoint(every_n_rounds=1)]
        fit(tmp_path / name, 3, callbacks, module, {"personal": personal})
    assert same(*map(weights, modules))
    assert recorded(tmp_path / "b") == recomputed(tmp_path / "b")


def test_a_run_stopped_early_is_scored_as_it_was_saved(tmp_path):
    class Stopped(Points):
        def on_train_epoch_end(self):
            self.trainer.should_stop = self.current_epoch == 2

    fit(tmp_path, 50, [evaluation(every_n_rounds=20), average(), RoundCheckpoint()], Stopped())
    assert recorded(tmp_path) == recomputed(tmp_path)


@pytest.mark.slow
def test_an_average_of_steps_without_rounds_is_scored_too(tmp_path):
    callbacks = [evaluation(), average(update_every_n_steps=1), RoundCheckpoint()]
    trainer = make_trainer("auto", 2, callbacks=callbacks, default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(Points(), make_data(held_out=0.25))
    assert recorded(tmp_path) == recomputed(tmp_path)


def test_an_evaluation_that_raises_puts_the_weights_back(tmp_path):
    class Failing(Points):
        def sample(self, num_images, generator=None):
            if self.trainer.current_epoch == 1:
                seen.append(weights(self))
                raise RuntimeError("out of memory")
            return super().sample(num_images, generator)

    module, seen = Failing(), []
    note = LambdaCallback(on_train_epoch_end=lambda trainer, module: seen.append(weights(module)))
    with pytest.raises(RuntimeError, match="memory"):
        fit(tmp_path, 3, [note, evaluation(), average()], module)
    _, live, scored = seen
    assert same(live, weights(module))
    assert not same(live, scored)


@pytest.mark.slow
@pytest.mark.parametrize(
    "callbacks",
    [
        lambda folder: [RoundCheckpoint()],
        lambda folder: [AroundValidation(), RoundCheckpoint()],
        lambda folder: [average(), saver(folder, save_weights_only=True)],
    ],
    ids=["no average", "during validation alone", "weights alone"],
)
def test_what_trains_is_scored_where_checkpoints_hold_it(tmp_path, plain, monkeypatch, callbacks):
    """No checkpoint is made for it. Lightning asks no callback about one of weights alone."""
    monkeypatch.setattr(watched, "checkpoint_of", None)
    fit(tmp_path, 3, [evaluation(), *callbacks(tmp_path)], Validated())
    assert recorded(tmp_path) == recorded(plain) == recomputed(tmp_path, Validated())


@pytest.mark.slow
def test_a_callback_that_saves_something_else_changes_no_score(tmp_path):
    note = LambdaCallback(on_save_checkpoint=lambda trainer, module, checkpoint: checkpoint.update(mine=1))
    for folder, callbacks in ((tmp_path / "plain", []), (tmp_path, [note])):
        fit(folder, 2, [evaluation(), *callbacks, RoundCheckpoint()])
    assert recorded(tmp_path) == recorded(tmp_path / "plain")


def test_the_evaluation_moves_behind_what_swaps_weights_and_no_further(tmp_path):
    """What comes after both still finds this round's scores."""
    reader = LambdaCallback(
        on_train_epoch_end=lambda trainer, module: found.append(trainer.callback_metrics["fid_all"])
    )
    found, judge, swaps = [], evaluation(), average()
    trainer = fit(tmp_path, 2, [judge, swaps, reader, RoundCheckpoint()])
    given = [one for one in trainer.callbacks if one in (judge, swaps, reader)]
    assert given == [swaps, judge, reader]
    assert isinstance(trainer.callbacks[-1], RoundCheckpoint)
    assert all(a != b for a, b in pairwise(found))
