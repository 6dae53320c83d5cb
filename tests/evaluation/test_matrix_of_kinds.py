"""Every kind of samples through every door gives the FID that its formula gives of the features."""

import json
from functools import cache

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import Dataset

from fedgen import FedAvgStrategy, FederatedDataModule, FederatedEvaluation, load_embedding, select
from fedgen.callbacks import RoundCheckpoint
from fedgen.cli.stored import evaluate_stored
from fedgen.embeddings import ModuleEmbedding, embed
from fedgen.evaluation import Evaluator, ScoreRecord, evaluate_run, read_records
from fedgen.evaluation.image_sampling import draw_images, mixture, sampler_of
from fedgen.losses import EmbeddedLoss, FastFIDLoss
from fedgen.metrics import FederatedFrechetDistance
from fedgen.scores import FrechetReference
from fedgen.scores.frechet.frechet import fid_from_messages, fid_message, frechet_distance
from fedgen.statistics import FixedPoint, add, gaussian_from_message, gaussian_to_sums, mask, summarize
from tests.evaluation.kinds import SHAPES, Noise, OfKind, plain_fid, store
from tests.federated.modules import make_trainer

KINDS = list(SHAPES)
MADE, ROUNDS, SEED = 40, 2, 5
NAMES = ("fid_all", "fid_avg")


def close(value):
    return pytest.approx(value, rel=1e-6, abs=1e-9)


@cache
def embedding_of(kind):
    return load_embedding(f"tests.evaluation.kinds.embed_{kind}")


@cache
def clients_of(kind):
    return {name: OfKind(kind, number).load() for number, name in enumerate("ab")}


def features_of(kind):
    """The clients' features."""
    return [embed(embedding_of(kind), own.inputs) for own in clients_of(kind).values()]


def made_at(kind, checkpoint, round):
    """The samples that a checkpoint's model gives an evaluation."""
    model = Noise(kind)
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["state_dict"])
    return draw_images(sampler_of(model), MADE, SEED, round)


def plain_at(kind, folder):
    """The scores of a folder's checkpoints by the formula, by round."""
    paths = {int(path.stem.split("=")[1]): path for path in sorted(folder.glob("**/round=*.ckpt"))}
    assert len(paths) == ROUNDS
    made = {round: embed(embedding_of(kind), made_at(kind, path, round)) for round, path in paths.items()}
    return {round: plain_fid(features_of(kind), one) for round, one in made.items()}


def by_round(records):
    """The model's scores by round and name."""
    found = {}
    for one in records:
        if one.is_model and one.name in NAMES:
            found.setdefault(one.round, {})[one.name] = one.value
    return found


def federation(kind):
    return FederatedDataModule(clients_of(kind), batch_size=12, held_out=0.0, seed=SEED)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a training of each kind, scored in every round; trained once."""

    @cache
    def train(kind):
        folder = tmp_path_factory.mktemp(kind)
        judge = FederatedEvaluation(1, [embedding_of(kind)], MADE, ["fid", "kid"], seed=SEED, report=False, page=False)
        callbacks = [judge, RoundCheckpoint(folder, every_n_rounds=1)]
        options = {"callbacks": callbacks, "default_root_dir": folder, "enable_checkpointing": True}
        make_trainer(FedAvgStrategy(2), ROUNDS, **options).fit(Noise(kind), federation(kind))
        return folder

    return train


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_records_the_plain_score_in_every_round(kind, trained):
    folder = trained(kind)
    records = read_records(folder / "scores.jsonl")
    plain = plain_at(kind, folder)
    assert by_round(records) == {round: close(scores) for round, scores in plain.items()}
    fid = next(one for one in records if one.name == "fid_all" and one.is_model)
    assert fid.reference.endswith(f"2 clients, 60 {kind}")
    assert fid.standard_error > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_s_checkpoints_are_scored_again_alike(kind, trained):
    folder = trained(kind)
    found = evaluate_run(folder, Noise(kind), Evaluator(federation(kind), [embedding_of(kind)], MADE, seed=SEED))
    assert by_round(found) == {round: close(scores) for round, scores in plain_at(kind, folder).items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_by_the_plain_score_is_selected(kind, trained):
    folder = trained(kind)
    plain = plain_at(kind, folder)
    for name in NAMES:
        found = select(folder, name)
        assert [one.round for one in found] == sorted(plain, key=lambda round: plain[round][name])
        assert found[0].value == close(min(scores[name] for scores in plain.values()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_direct_scores_of_features_are_those_recorded(kind, trained):
    folder = trained(kind)
    recorded = by_round(read_records(folder / "scores.jsonl"))[0]
    made = embed(embedding_of(kind), made_at(kind, next(folder.glob("**/round=00000.ckpt")), 0))
    score = FrechetReference.from_features(features_of(kind)).score(made)
    assert {name: score.values[name.removeprefix("fid_")] for name in NAMES} == close(recorded)


class Apart(Noise):
    """A model of which clients can keep a part; the other one changes nothing."""

    def __init__(self, kind):
        super().__init__(kind)
        self.common = torch.nn.Parameter(torch.tensor(0.0))

    def training_step(self, batch, batch_idx):
        target = batch[0].float().mean() / (100 if self.kind == "texts" else 1)
        return (self.shift - target).square() + self.common.square()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("personal", ["*", "shift"])
def test_clients_own_models_are_scored_together_or_each_with_the_plain_score(kind, personal, tmp_path):
    judge = FederatedEvaluation(2, [embedding_of(kind)], MADE, ["fid"], seed=SEED, report=False, page=False)
    strategy, module = FedAvgStrategy(2, personal=[personal]), Apart(kind)
    make_trainer(strategy, ROUNDS, callbacks=[judge], default_root_dir=tmp_path).fit(module, federation(kind))
    samplers = []
    for own in range(2):
        client = Noise(kind)
        client.shift.data = strategy.personal_tensors[own]["shift"]
        samplers.append(sampler_of(client))
    assert client.shift.data != strategy.personal_tensors[0]["shift"]
    if personal == "*":  # no model is shared: the mixture of all is scored
        made = draw_images(mixture(samplers, torch.tensor([0.4, 0.6])), MADE, SEED, ROUNDS - 1)
        plain = plain_fid(features_of(kind), embed(embedding_of(kind), made))
    else:
        made = [embed(embedding_of(kind), draw_images(sampler, MADE, SEED, ROUNDS - 1)) for sampler in samplers]
        alone = [plain_fid([own], part)["fid_all"] for own, part in zip(features_of(kind), made)]
        plain = {"fid_avg": 0.4 * alone[0] + 0.6 * alone[1]}
    assert by_round(read_records(tmp_path / "scores.jsonl"))[ROUNDS - 1] == close(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_sums_over_clients_give_the_plain_score(kind):
    made = embed(embedding_of(kind), draw_images(sampler_of(Noise(kind)), MADE, SEED, 0))
    clients, generated = features_of(kind), summarize(made)

    def total(messages):
        code = FixedPoint(len(clients), 30)
        return code.decode(add(*(mask(code.encode(one), k, len(clients), 7) for k, one in enumerate(messages))))

    pooled = gaussian_from_message(total([gaussian_to_sums(summarize(own)) for own in clients]))
    avg = fid_from_messages(total([fid_message(own, generated) for own in clients]))
    found = {"fid_all": frechet_distance(pooled, generated)[0], "fid_avg": avg}
    assert found == close(plain_fid(clients, made))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_stored_files_give_the_plain_score(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = draw_images(sampler_of(Noise(kind)), MADE, SEED, 0)
    is_array = kind in ("images", "texts")  # a folder's arrays are floats
    paths = [store(tmp_path / name, own.inputs, not is_array) for name, own in clients_of(kind).items()]
    # of points one array would be features
    arguments = ["--generated", store(tmp_path / "made", made, kind == "points"), "--clients", *paths]
    assert evaluate_stored([*map(str, arguments), "--embedding", f"tests.evaluation.kinds.embed_{kind}"]) == 0
    content = json.loads((tmp_path / "scores.json").read_text())
    records = [ScoreRecord.from_json(one) for one in content["records"]]
    plain = plain_fid(features_of(kind), embed(embedding_of(kind), made))
    assert {one.name: one.value for one in records if one.name in NAMES} == close(plain)
    assert records[0].reference.endswith(f"60 {kind}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_flower_clients_answers_give_the_plain_score(kind, tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)  # where there are no tests for the app to take along
    from fedgen.flower.app.app_sides import run_server
    from fedgen.flower.app.apps import client_app
    from fedgen.flower.app.write_app import write_app
    from tests.flower.loopback import Loopback, Node
    from tests.flower.runs import recipe

    kit, data = "tests.evaluation.kinds", {"kind": kind}
    scores = {"every_n_rounds": 1, "num_images": MADE, "scores": ["fid", "kid"], "seed": SEED, "page": False}
    scores["embeddings"] = [f"{kit}.embed_{kind}"]
    settings = recipe(ROUNDS, scores, {"class_path": f"{kit}.Noise", "init_args": data})
    settings["trainer"]["callbacks"].append(
        {"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 1}}
    )
    settings["data"]["init_args"] |= {"held_out": 0.0}
    write_app(settings, {"class_path": f"{kit}.OfKind", "init_args": data}, tmp_path / "app", 2, "")
    path = tmp_path / "app" / "federation" / "recipe.yaml"
    run = {"clients": 2, "output": str(tmp_path / "run"), "wait": 0.5}
    nodes = {}
    for number, name in enumerate("ab"):
        own = tmp_path / f"{name}.yaml"
        own.write_text(yaml.safe_dump({"data": {"class_path": f"{kit}.OfKind", "init_args": data}}))
        config = {"data-config": str(own), "state-path": str(tmp_path / f"state-{name}"), "name": name}
        config |= {"partition-id": number, "num-partitions": 2}
        nodes[10 + number] = Node(client_app(path), config, run)
    run_server(path, Loopback(nodes), run)
    records = read_records(tmp_path / "run" / "scores.jsonl")
    plain = plain_at(kind, tmp_path / "run")
    assert by_round(records) == {round: close(scores) for round, scores in plain.items()}
    assert next(one for one in records if one.is_model).reference.endswith(f"60 {kind}")


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_an_embedding_of_another_kind_says_what_it_wants_and_what_it_got_before_training(kind, other):
    if kind == other:
        Evaluator(federation(kind), [embedding_of(other)], MADE)
        return
    with pytest.raises(ValueError, match=rf"embedding .* takes {other} \[N, .*: kind/train has {kind}; take an embed"):
        Evaluator(federation(kind), [embedding_of(other)], MADE)


@pytest.mark.parametrize("kind", ["points", "series", "volumes"])
def test_identity_takes_all_floats_flattened_and_nan_is_refused(kind):
    own = clients_of(kind)["a"].inputs
    identity = load_embedding("identity")
    assert torch.equal(embed(identity, own), own.flatten(1))
    spoilt = own.clone()
    spoilt[3].view(-1)[0] = torch.nan
    with pytest.raises(ValueError, match="sample 3 holds NaN"):
        embed(identity, spoilt)
    with pytest.raises(ValueError, match=f"{kind} hold NaN or infinity"):
        draw_images(lambda count, draws: spoilt[:count], 10, 0, 0, chunk=10)
    with pytest.raises(ValueError, match="uint8"):
        identity(own.byte())


def test_a_forgotten_channel_and_an_unknown_kind_have_their_remedy():
    with pytest.raises(ValueError, match=r"series choose another embedding, .*; grey images need a channel"):
        embed(load_embedding("pixels"), torch.zeros(4, 8, 8))
    with pytest.raises(ValueError, match="kind must be one of images, points, series, volumes, arrays, got 'video'"):
        ModuleEmbedding(torch.nn.Flatten(), kind="video")
    with pytest.raises(ValueError, match="input_range='unit' is for images; volumes are taken as they are"):
        ModuleEmbedding(torch.nn.Flatten(), input_range="unit", kind="volumes")
    assert ModuleEmbedding(torch.nn.Flatten(), kind="arrays")(torch.ones(2, 1, 2, 2, 2, 2)).shape == (2, 16)


def test_a_folder_of_arrays_is_samples_of_one_shape(tmp_path):
    from fedgen.evaluation.stored.stored_images import Reading
    from fedgen.evaluation.stored.stored_sets import open_sets

    folder = store(tmp_path / "series", clients_of("series")["a"].inputs, True)
    (stored,) = open_sets([folder], Reading())
    assert (stored.images.kind, stored.count) == ("series", 24)
    assert torch.equal(torch.cat(list(stored.images.batches(1, 7))), clients_of("series")["a"].inputs)
    np.save(folder / "0003.npy", np.full((2, 5), np.nan, np.float32))
    with pytest.raises(ValueError, match="series hold NaN"):
        list(stored.images.batches(1, 7))
    np.save(folder / "0003.npy", np.zeros((2, 6), np.float32))
    with pytest.raises(ValueError, match="samples if they are floats of one shape"):
        open_sets([folder], Reading())


# ------------------------------------------------------------------ other scores and readers


@pytest.mark.parametrize("kind", ["points", "series", "volumes"])
def test_other_scores_a_metric_and_a_loss_take_floats(kind):
    own, names = clients_of(kind), ["fid", "kid", "precision", "recall", "coverage"]
    evaluator = Evaluator(federation(kind), [embedding_of(kind)], MADE, scores=names, seed=SEED)
    records = evaluator.evaluate(sampler_of(Noise(kind))).records
    assert {one.score for one in records} == set(names)
    assert all(one.standard_error is not None for one in records if one.name == "kid_all")
    made = draw_images(sampler_of(Noise(kind)), MADE, SEED, 0)
    metric = FederatedFrechetDistance(num_clients=2, embedding=embedding_of(kind), aggregate=("all", "avg"))
    for number, part in [(None, made), *enumerate(one.inputs for one in own.values())]:
        metric.update(part, client=number)
    plain = plain_fid(features_of(kind), embed(embedding_of(kind), made))
    assert {name: float(value) for name, value in metric.compute().items()} == close(plain)
    loss = EmbeddedLoss(FastFIDLoss(), [embedding_of(kind)])
    loss.set_references([one.inputs for one in own.values()])
    value = loss(made.requires_grad_())
    assert float(value.detach()) == pytest.approx(plain["fid_all"], rel=1e-3)
    value.backward()
    assert made.grad.abs().sum() > 0


class Scans(Dataset):
    """Volumes that are read one by one, with NaN in some."""

    def __init__(self, spoilt=()):
        self.volumes, self.spoilt = OfKind("volumes", 0).load().inputs, spoilt

    def __len__(self):
        return len(self.volumes)

    def __getitem__(self, position):
        return self.volumes[position] * (torch.nan if position in self.spoilt else 1), 0


def test_volumes_of_a_dataset_are_those_in_memory_and_nan_is_refused():
    data = FederatedDataModule({"a": Scans(), "b": Scans()}, held_out=0.0)
    clients = [client.train_examples for client in data.clients]
    assert [one.kind for one in clients] == ["volumes", "volumes"]
    assert torch.equal(clients[0].inputs[:], Scans().volumes)
    spoilt = FederatedDataModule({"a": Scans([5]), "b": Scans()}, held_out=0.0)
    with pytest.raises(ValueError, match="volumes hold NaN or infinity"):
        Evaluator(spoilt, [embedding_of("volumes")], MADE).prepare()
