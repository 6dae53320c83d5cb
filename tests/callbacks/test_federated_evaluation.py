"""The evaluation at rounds: when, what it stores, and that training does not notice it."""

import copy
import re

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
from fedgen.callbacks.score_logging import log_grid
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.evaluation import mixture, read_records, sampler_of
from fedgen.evaluation.image_sampling import inside
from fedgen.federated import FedAvgStrategy
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator
from tests.callbacks.modules import Points, evaluation, fit
from tests.federated.modules import make_data, make_trainer, same, weights
from tests.quick import first_quick

NAMES = {f"{score}_{how}" for score in ("fid", "kid") for how in ("avg", "all", "worst")}
KEYS = NAMES | {f"report/{name}" for name in NAMES}


def rounds_in(folder):
    return sorted({r.round for r in read_records(folder / "scores.jsonl") if r.round is not None})


@pytest.mark.parametrize(
    ("rounds", "every", "expected"), first_quick([(4, 2, [1, 3]), (5, 2, [1, 3, 4]), (2, 10, [1])], several=True)
)
def test_every_nth_round_and_the_last_are_evaluated(tmp_path, rounds, every, expected):
    fit(tmp_path, rounds, [evaluation(every_n_rounds=every)])
    assert rounds_in(tmp_path) == expected


def test_the_untrained_model_and_the_floor_are_stored_too(tmp_path):
    fit(tmp_path, 2, [evaluation(at_start=True)])
    records = read_records(tmp_path / "scores.jsonl")
    assert rounds_in(tmp_path) == [-1, 1]
    assert {r.name for r in records if r.is_floor and r.split == "train"} == NAMES
    assert {r.checkpoint for r in records} == {None}  # nobody keeps checkpoints here


def test_all_columns_reach_callback_metrics_and_loggers_with_rounds_as_steps(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="csv")
    trainer = fit(tmp_path, 4, [evaluation()], logger=logger)
    assert set(trainer.callback_metrics) >= KEYS
    last = {r.name: r.value for r in read_records(tmp_path / "scores.jsonl") if r.split == "train" and r.round == 3}
    assert {k: float(trainer.callback_metrics[k]) for k in last} == pytest.approx(last, rel=1e-6)
    lines = (tmp_path / "csv" / "metrics.csv").read_text().splitlines()
    header, rows = lines[0].split(","), [line.split(",") for line in lines[1:]]
    assert set(header) >= {*KEYS, "fid_clients/p10", "report/kid_clients/p90", "fid_all_floor"}
    assert [row[header.index("step")] for row in rows if row[header.index("fid_avg")]] == ["1", "3"]


@pytest.mark.slow
def test_each_evaluation_is_one_line_wherever_output_goes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    fit(tmp_path, 4, [evaluation(report=True)])
    told = [line for line in capsys.readouterr().out.splitlines() if " done): " in line]
    n = r"-?[\d.]+(e-\d+)?(±[\d.]+)?"
    line = rf"round 1 \(2 done\): fid_avg {n}, fid_all {n} \(real {n}, {n}\), kid_all {n} \(real {n}\)"
    assert re.fullmatch(line, told[0])
    assert told[1].startswith("round 3 (4 done): fid_avg ")
    fit(tmp_path / "silent", 2, [evaluation()])
    assert " done): " not in capsys.readouterr().out


@pytest.mark.slow
def test_training_does_not_notice_the_evaluation(tmp_path):
    plain, watched = Points(), Points()
    fit(tmp_path / "a", 3, [], plain)
    fit(tmp_path / "b", 3, [evaluation(every_n_rounds=1, at_start=True, report=True, page=True)], watched)
    assert same(weights(plain), weights(watched))
    assert [m.training for m in plain.modules()] == [m.training for m in watched.modules()]


# the EMA of the generator is always in eval mode, and Lightning says so
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Found .* module.s. in eval mode")
def test_a_gan_of_digits_trains_to_the_same_bits_and_leaves_a_grid(tmp_path):
    states = []
    for callbacks in ([], [evaluation(every_n_rounds=1, embeddings=["pixels"], grid=9)]):
        torch.manual_seed(0)
        module = WGANGP(SmallGenerator(width=4), SmallCritic(width=4), n_critic=2, ema_decay=0.9)
        strategy = FedAvgStrategy(3, cohort_size=3, seed=0)
        logger = TensorBoardLogger(tmp_path, name="", version="logs")
        trainer = make_trainer(strategy, 2, callbacks=callbacks, default_root_dir=tmp_path, logger=logger)
        trainer.fit(module, FederatedDataModule(Digits(), ByClass(), batch_size=8))
        states.append(weights(module))
    assert same(*states)
    assert sorted(p.name for p in (tmp_path / "samples").iterdir()) == ["round=00000.png", "round=00001.png"]
    first = read_records(tmp_path / "scores.jsonl")[0]
    assert first.reference == "digits/train, 10 clients, 1442 images"
    logs = EventAccumulator(str(tmp_path / "logs")).Reload()
    tags = set(logs.Tags()["scalars"])  # TensorBoard groups by what stands before the first slash
    assert {"fid/avg", "fid/all", "fid/all_floor", "kid/avg_floor", "report/fid/all", "fid/clients/p50"} <= tags
    assert not {"fid_avg", "fid_all"} & tags
    assert [event.step for event in logs.Scalars("fid/all_floor")] == [0, 1]
    assert logs.Tags()["images"] == ["samples"]


class Experiment:
    """What a logger wraps, with one method that takes images."""

    def __init__(self, method):
        self.seen = []
        setattr(self, method, lambda *args, **options: self.seen.append((args, options)))


class Logging:
    def __init__(self, experiment, **attributes):
        self.experiment = experiment
        self.__dict__.update(attributes)


def test_grids_reach_every_kind_of_logger_that_shows_images():
    tensorboard, comet, mlflow = Experiment("add_image"), Experiment("log_image"), Experiment("log_image")
    wandb = Experiment("log_image")
    wandb_logger = Logging(object(), log_image=wandb.log_image)
    loggers = [Logging(tensorboard), Logging(comet), Logging(mlflow, run_id="r"), wandb_logger, Logging(object())]
    log_grid(loggers, torch.zeros(3, 5, 7, dtype=torch.uint8), 4)
    (((name, picture, step), _),) = tensorboard.seen
    assert (name, tuple(picture.shape), step) == ("samples", (3, 5, 7), 4)
    assert wandb.seen[0][1]["images"][0].shape == (5, 7, 3)
    assert wandb.seen[0][1]["step"] == comet.seen[0][1]["step"] == mlflow.seen[0][1]["step"] == 4
    assert mlflow.seen[0][0][0] == "r"


def test_local_only_training_is_scored_as_the_mixture_of_the_clients_models(tmp_path):
    module, judge = Points(), evaluation()
    trainer = fit(tmp_path, 2, [judge], module, {"personal": ["*"]})
    records = [r for r in read_records(tmp_path / "scores.jsonl") if not r.is_floor]
    assert {r.note.split("; ")[0] for r in records} == {"mixture of local models"}
    sample = sampler_of(module)
    samplers = [inside(lambda k=k: trainer.strategy.client_model(k), sample) for k in range(3)]
    shares = torch.tensor([9.0, 15.0, 6.0]) / 30
    again = judge.evaluator.evaluate(mixture(samplers, shares), 1)
    assert [r.value for r in again.records] == [r.value for r in records]
    assert judge.evaluator.evaluate(sample, 1).records[0].value != records[0].value


@pytest.mark.slow
def test_resuming_drops_scores_that_are_measured_again(tmp_path):
    whole, part = Points(), Points()
    fit(tmp_path / "whole", 6, module=whole)
    fit(tmp_path / "part", 4, module=part)
    assert rounds_in(tmp_path / "part") == [1, 3]
    fit(tmp_path / "part", 6, module=Points(), ckpt_path=tmp_path / "part" / "round=00001.ckpt")
    whole_scores, part_scores = ((tmp_path / name / "scores.jsonl").read_bytes() for name in ("whole", "part"))
    assert whole_scores == part_scores
    assert rounds_in(tmp_path / "part") == [1, 3, 5]


def test_a_round_that_was_cut_short_is_not_evaluated(tmp_path):
    class Cut(Points):
        def on_train_batch_end(self, *args):
            self.trainer.should_stop = True

    with pytest.warns(UserWarning, match="short"):
        fit(tmp_path, 1, module=Cut())
    assert rounds_in(tmp_path) == []
    assert not list(tmp_path.glob("*.ckpt"))


def test_a_run_stopped_early_is_evaluated_at_its_end(tmp_path):
    class Stopped(Points):
        def on_train_epoch_end(self):
            self.trainer.should_stop = self.current_epoch == 2

    trainer = fit(tmp_path, 50, [evaluation(every_n_rounds=20), RoundCheckpoint()], Stopped())
    assert rounds_in(tmp_path) == [2]
    assert set(trainer.callback_metrics) >= KEYS
    assert {p.name for p in tmp_path.glob("*.ckpt")} == {"last.ckpt", "round=00002.ckpt"}


def test_centralised_training_is_scored_against_the_same_clients(tmp_path):
    trainer = make_trainer("auto", 2, callbacks=[evaluation()], default_root_dir=tmp_path)
    trainer.fit(Points(), make_data(held_out=0.25))
    assert rounds_in(tmp_path) == [1]
    assert read_records(tmp_path / "scores.jsonl")[0].num_clients == 3


class Sampleless(L.LightningModule):
    training_step = Points.training_step
    configure_optimizers = Points.configure_optimizers

    def __init__(self):
        super().__init__()
        self.net = Points().net


class Flat(Points):
    def sample(self, num_images, generator=None):
        return super().sample(num_images, generator)[:, :2]


@pytest.mark.parametrize(
    ("options", "module", "error", "message"),
    [
        ({"embeddings": ["pixels"]}, Points, ValueError, r"pixels takes images \[N, C, H, W\], got shape \[2, 3\]"),
        ({"embeddings": ["pixxels"]}, Points, ValueError, "did you mean pixels"),
        ({"embeddings": [{"size": 64}]}, Points, ValueError, "needs its name"),
        ({"scores": ["fdi"]}, Points, ValueError, "unknown score 'fdi'"),
        ({"scores": ["is"]}, Points, ValueError, "needs logits, which embedding identity does not give"),
        (
            {"scores": ["recall"], "num_images": 4},
            Points,
            ValueError,
            r"num_images\) has 4 image\(s\), and recall needs 6",
        ),
        ({"scores": ["ll"]}, Points, TypeError, r"Points has no method log_prob\(points\)"),
        ({}, Sampleless, TypeError, "Sampleless has no method sample"),
        ({}, Flat, ValueError, r"samples images of shape \[2\], but the clients' are \[3\]"),
    ],
)
def test_mistakes_are_found_before_training(tmp_path, options, module, error, message):
    module = module()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(error, match=message):
        fit(tmp_path, 2, [evaluation(**options)], module)
    assert same(before, module.state_dict())


def test_a_client_with_one_image_is_found_before_training(tmp_path):
    trainer = make_trainer(FedAvgStrategy(2), 1, callbacks=[evaluation()], default_root_dir=tmp_path)
    with pytest.raises(ValueError, match="split"):
        trainer.fit(Points(), make_data((12, 1)))


def test_other_data_modules_are_refused_with_the_remedy(tmp_path):
    trainer = make_trainer("auto", 1, callbacks=[evaluation()], default_root_dir=tmp_path)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.zeros(4)))
    with pytest.raises(TypeError, match="FederatedDataModule"):
        trainer.fit(Points(), loader)


def test_an_unwritable_folder_is_found_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="write"):
        fit(tmp_path, 1, [evaluation(dirpath=tmp_path / "file" / "run")])


class Dense(Points):
    """With a density, that of a standard normal around a learned mean."""

    def log_prob(self, points):
        return -((points - self.net[-1].bias) ** 2).sum(1) / 2


def test_any_score_is_logged_at_rounds(tmp_path):
    scores = ["fid", {"name": "precision", "k": 1}, "ll", "memorisation"]
    trainer = fit(tmp_path, 2, [evaluation(scores=scores, aggregates=["power-2"])], Dense())
    shown = set(trainer.callback_metrics)
    assert {"fid_power-2", "precision_worst", "report/precision_all", "ll_avg", "memorisation_all"} <= shown
    assert not {"precision_power-2", "report/memorisation_all"} & shown
    records = read_records(tmp_path / "scores.jsonl")
    assert {r.score for r in records if r.is_floor} == {"fid", "precision"}
    assert {r.score for r in records if r.higher_is_better} == {"precision", "ll"}


def test_a_density_is_not_asked_of_a_mixture_of_local_models(tmp_path):
    with pytest.raises(ValueError, match="density"):
        fit(tmp_path, 1, [evaluation(scores=["ll"])], Dense(), {"personal": ["*"]})


@pytest.mark.slow
def test_a_monitor_of_a_score_by_which_more_is_better_needs_mode_max(tmp_path):
    best = ModelCheckpoint(tmp_path / "best", monitor="precision_avg", mode="max", filename="{epoch}")
    judge = evaluation(every_n_rounds=1, scores=[{"name": "precision", "k": 1}])
    fit(tmp_path, 5, [judge, best])
    records = read_records(tmp_path / "scores.jsonl")
    values = {r.round: r.value for r in records if not r.is_floor and r.split == "train" and r.aggregate == "avg"}
    assert float(best.best_model_score) == pytest.approx(max(values.values()), rel=1e-6)
    with pytest.warns(UserWarning, match="precision_avg"):
        fit(tmp_path / "mode", 1, [evaluation(scores=[{"name": "precision", "k": 1}]), EarlyStopping("precision_avg")])
    with pytest.warns(UserWarning, match="memorisation_all"):
        fit(tmp_path / "other", 1, [evaluation(scores=["memorisation"]), EarlyStopping("memorisation_all")])
    with pytest.raises(ValueError, match="precision_avg"):
        fit(tmp_path, 1, [evaluation(scores=[{"name": "precision", "k": 1}]), EarlyStopping("recall_all", mode="max")])


def test_several_embeddings_and_a_cache_folder(tmp_path):
    options = {"embeddings": ["identity", {"name": "identity"}]}
    with pytest.raises(ValueError, match="identity"):
        fit(tmp_path, 1, [evaluation(**options)])
    fit(tmp_path, 1, [evaluation(cache_folder=tmp_path / "features")])
    assert list((tmp_path / "features").glob("*.safetensors"))


def test_a_second_evaluation_is_refused_because_its_columns_would_hide_the_first_ones(tmp_path):
    with pytest.raises(ValueError, match="FederatedEvaluation"):
        fit(tmp_path, 1, [evaluation(), evaluation(every_n_rounds=1)])


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="every_n_rounds"):
        FederatedEvaluation(every_n_rounds=0)
