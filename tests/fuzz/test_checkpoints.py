"""Damaged checkpoints, in every place that reads one. torch.load takes flipped bits; the archive's checksums do not."""

import copy

import lightning
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.evaluation.runs.rebuild import load_weights, local_models
from fedgen.federated import AtomicCheckpointIO, FedAdam, FedAvgStrategy, Scaffold
from fedgen.io.tensor_files import read_torch
from fedgen.models import WGANGP
from fedgen.models.checkpoint_file import read_checkpoint, read_generator, rebuild_model
from fedgen.models.networks import SmallCritic, SmallGenerator
from fedgen.models.stylegan2 import StyleGAN2, StyleGAN2Discriminator, StyleGAN2Generator
from fedgen.models.stylegan2.stylegan2 import read_trained_networks
from fedgen.training.fit import progress_of
from tests.federated.modules import TwoOptimizers, make_data, make_trainer
from tests.fuzz.damage import REFUSALS, Lost, equal, fuzz, refuses
from tests.quick import first_and_others


def read_weights(path):
    """What an evaluation takes of a checkpoint."""
    module = TwoOptimizers()
    return dict(module.state_dict()), local_models(module, load_weights(module, path))


READERS = {
    "checkpoint": read_checkpoint,
    "resumed": AtomicCheckpointIO().load_checkpoint,
    "progress": progress_of,
    "weights": read_weights,
    "generator": read_generator,
    "model": lambda path: rebuild_model(WGANGP, path),
    "stylegan2": lambda path: vars(read_trained_networks(path)),
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Two rounds with all that a federation keeps."""
    path = tmp_path_factory.mktemp("federation") / "last.ckpt"
    trainer = start(2)
    trainer.fit(TwoOptimizers(), make_data())
    trainer.save_checkpoint(path)
    return path


def start(rounds):
    options = {"optimizer_state": "keep", "personal": ["b.*"], "server_optimizer": FedAdam, "seed": 0}
    return make_trainer(FedAvgStrategy(1, client_algorithm=Scaffold(), **options), rounds)


@pytest.fixture(scope="module")
def gan(tmp_path_factory):
    torch.manual_seed(0)
    networks = SmallGenerator(latent_dim=3, width=2), SmallCritic(width=2)
    return save(WGANGP(*networks), tmp_path_factory.mktemp("gan") / "gan.ckpt")


@pytest.fixture(scope="module")
def stylegan2(tmp_path_factory):
    shared = {"image_size": 8, "channels": 1, "channel_base": 32}
    networks = (
        StyleGAN2Generator(latent_dim=4, style_dim=4, mapping_layers=2, **shared),
        StyleGAN2Discriminator(**shared),
    )
    return save(StyleGAN2(*networks), tmp_path_factory.mktemp("stylegan2") / "stylegan2.ckpt")


def save(module, path):
    """A checkpoint as Lightning writes it before any training."""
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=1)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
    return path


def fresh(kind, request, folder):
    """A copy of the checkpoint that a reader takes."""
    name = kind if kind == "stylegan2" else "gan" if kind in ("generator", "model") else "federation"
    path = folder / "a.ckpt"
    path.write_bytes(request.getfixturevalue(name).read_bytes())
    return path


@pytest.mark.parametrize("kind", READERS)
def test_damaged_checkpoints_are_refused_or_harmless(kind, request, tmp_path, copies):
    path = fresh(kind, request, tmp_path)
    valid = ("torch", "old torch") if kind == "resumed" else ()  # what it holds is for the trainer to judge
    fuzz(READERS[kind], path, valid=valid, copies=copies, least=400)


def changed(path, change, sound):
    """A file of a checkpoint's content with something else in it: changed in place, or another is given back."""
    content = copy.deepcopy(sound)
    other = change(content)
    torch.save(content if other is None else other, path)
    return path


def put(*keys, value):
    """A change: another value at a place, or without `value` none."""

    def change(content):
        for key in keys[:-1]:
            content = content[key]
        if value is LOST:
            del content[keys[-1]]
        else:
            content[keys[-1]] = value

    return change


LOST, NAN = Lost(), float("nan")
HUGE = torch.zeros(1).expand(2**40)
COMMON = {
    "no dictionary": lambda _: [1],
    "sparse": put("more", value={"a": [torch.eye(2).to_sparse()]}),
    "quantized": lambda content: content.update(more=(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),)),
    "no state": put("state_dict", value=LOST),
    **{f"state_dict {value!r}": put("state_dict", value=value) for value in (None, [], 3, {1: torch.ones(1)})},
    **{f"hyper_parameters {value!r}": put("hyper_parameters", value=value) for value in (None, [], "x", {1: 2})},
    **{f"epoch {value!r}": put("epoch", value=value) for value in (-1, "3", 1.5, True, None, torch.tensor(3))},
    **{f"optimised_on {value!r}": put("optimised_on", value=value) for value in ("vgg16", 3, [3], {"a": 1}, None)},
}
COUNT = ("loops", "fit_loop", "epoch_progress", "current", "processed")
PROGRESS = {
    **{f"without {' '.join(COUNT[:n])}": put(*COUNT[:n], value=LOST) for n in range(1, 6)},
    **{f"rounds {value!r}": put(*COUNT, value=value) for value in (-1, "2", 2.0, True, None, [2])},
    **{f"loops {value!r}": put("loops", value=value) for value in (None, [], 3, {})},
    **{f"callbacks {value!r}": put("callbacks", value=value) for value in ([], 3, {"a": 3}, {"a": {"wait_count": 1}})},
}


def weight(name, shape):
    """Changes of one weight that no network has, and that copying into a network would hide."""
    sound = torch.zeros(shape)
    values = {
        "NaN": sound + NAN,
        "infinite": sound + float("inf"),
        "of whole numbers": sound.long(),
        "complex": sound + 0j,
        "boolean": sound.bool(),
        "of another shape": torch.zeros(*shape, 1),
        "transposed": torch.zeros(*reversed(shape)),
        "one number": torch.zeros(()),
        "huge": HUGE,
        "sparse": sound.to_sparse(),
        "a list": [0.0],
        "missing": LOST,
    }
    return {f"{name} {what}": put("state_dict", name, value=value) for what, value in values.items()}


def one_of(*keys, values):
    return {f"{' '.join(map(str, keys))} {str(value)[:40]}": put(*keys, value=value) for value in values}


SETTINGS = ("hyper_parameters", "generator")
CLASSES = (
    "os.system",
    "fedgen.models.nothing.Network",
    "fedgen.models.networks.network.build",
    "fedgen.models.",
    "",
    3,
)
CLASSES = (*CLASSES, "fedgen.models.gan.gan.WGANGP", "fedgen.models..networks.SmallGenerator", None, ["a"], LOST)
ARGUMENTS = ({"colour": 1}, {"width": -1}, {"width": "2"}, {"width": 0}, {"width": NAN}, {"width": 10**9}, None, [], 3)
ARGUMENTS = (*ARGUMENTS, {"latent_dim": 2**40}, {"width": 10**40}, {"width": [2]}, {1: 2}, {"image_size": 2**20}, LOST)
GENERATOR = {
    **one_of(*SETTINGS, values=(None, [], {}, "SmallGenerator", LOST)),
    **one_of(*SETTINGS, "class_path", values=CLASSES),
    **one_of(*SETTINGS, "init_args", values=ARGUMENTS),
    **weight("generator.body.0.weight", (2, 3)),
    "another weight": put("state_dict", "generator.body.9.weight", value=torch.zeros(2)),
}
KINDS = (torch.int64, torch.bool, torch.complex64)
OTHER_KINDS = [torch.zeros(4, 3, dtype=kind) for kind in KINDS]
SERVER = ("fedavg", "server_optimizer", "state", "param_groups", 0)
OPTIMIZER = ("optimizer_states", 0, "param_groups", 0)


def kept(*keys, like, shape, step=True):
    """Changes of what an optimizer keeps of a parameter, which its next step, or none, would stumble over.

    All of the first name, some of others and of those without steps.
    """
    tensors = [torch.zeros(shape, dtype=kind) for kind in KINDS]
    values = (LOST, 3, "x", [], {}, *tensors, torch.zeros(1), torch.zeros(*shape, 1), torch.full(shape, NAN))
    found = {}
    for name in like:
        lost_alone = values[1:] if not step else (*values, None)  # SGD begins a momentum anew
        lost_alone = lost_alone if step and name == like[0] else lost_alone[-4:]
        found |= {f"{keys} {name} {number}": put(*keys, name, value=value) for number, value in enumerate(lost_alone)}
    if step:
        found |= one_of(*keys, "step", values=(LOST, -1, "3", None, [], True, NAN, torch.zeros(2), torch.tensor(True)))
    return found | one_of(*keys, values=(None, [], 3, "x"))


STATE = {
    **one_of("fedavg", values=(None, [], {}, 3)),
    **one_of("fedavg", "version", values=(None, 0, 3, 99, -1, "1", 1.0, True, LOST)),
    **one_of(
        "fedavg", "iterations", values=(None, [], {"0": 2}, {0: -2}, {0: "2"}, {0: 2.5}, {-1: 2}, {None: 2}, LOST)
    ),
    **one_of("fedavg", "personal", values=(None, [], {0: None}, {"0": {}}, {0: [1]}, {0: {"b.weight": 3}}, LOST)),
    **one_of("fedavg", "personal", 0, "b.weight", values=(torch.zeros(1), torch.zeros(4, 2), HUGE, [0.0])),
    **one_of("fedavg", "personal", 0, "b.weight", values=(torch.full((2, 4), NAN), torch.full((2, 4), float("-inf")))),
    **one_of("fedavg", "personal", 0, "b.weight", values=[torch.zeros(2, 4, dtype=kind) for kind in KINDS]),
    **one_of("fedavg", "left_out", values=(None, {}, [3], [{"round": 1}], "nobody", LOST)),
    **one_of("fedavg", "remarks", values=(None, {}, [3], [{"round": 1}], "nobody")),  # older states have none
    **one_of("fedavg", "local", values=(None, [], {}, {"clients": None}, {"clients": {"0": []}}, LOST)),
    **one_of("fedavg", "server_optimizer", values=(LOST,)),
    **one_of("fedavg", "algorithm", values=(LOST,)),
}
OTHERS = dict([*STATE.items()][::4])  # the check that evaluations make of all
RESUMED = {
    **one_of("optimizer_states", values=([],)),
    **one_of("fedavg", "local", "clients", 0, values=([], [{}], [{}, {}, {}], [{9: {}}, {}], [{"0": {}}, {}], 3, None)),
    **one_of("fedavg", "local", "clients", 0, values=([{0: 3}, {}], [{0: {"x": HUGE}}, {}], [[], []], [None, None])),
    **one_of("fedavg", "personal", 0, values=({}, {"c.weight": torch.zeros(1)})),
    **kept("fedavg", "local", "clients", 0, 0, 0, like=("exp_avg_sq", "exp_avg"), shape=(4, 3)),
    **kept("fedavg", "local", "clients", 0, 1, 0, like=("momentum_buffer",), shape=(2, 4), step=False),
    **kept("fedavg", "server_optimizer", "state", "state", 0, like=("v", "m"), shape=(4, 3)),
    **one_of("fedavg", "server_optimizer", "state", "param_groups", values=(None, [], [{}], [3], LOST)),
    **one_of(*SERVER, "lr", values=(-1.0, NAN, "0.1", None, True, [], LOST)),
    **one_of(*SERVER, "beta1", values=(NAN, "0.1", None, LOST)),
    **one_of(*SERVER, "bias_correction", values=("yes", 1, None, LOST)),
    **one_of(*SERVER, "params", values=(None, [0], [1, 0], [True, 1], [0.0, 1], LOST)),
    **one_of("optimizer_states", values=(None, {}, [3, 4], [{}, {}], "xy")),
    **one_of("optimizer_states", 0, "state", values=(None, [], {9: {}}, {0: 3}, {0: {"exp_avg": 3, "step": 1}}, LOST)),
    **one_of(*OPTIMIZER, "lr", values=(-1.0, NAN, "0.1", None, torch.zeros(2), LOST)),
    **one_of(*OPTIMIZER, "betas", values=(0.9, (0.9,), (0.9, "0.99"), (NAN, 0.99), None, LOST)),
    **one_of("state_dict", values=(None, [], 3, {1: torch.ones(1)}, LOST)),
    **one_of(
        "fedavg", "server_optimizer", values=(None, {}, [], 3, {"name": "FedAdam"}, {"name": "Adam", "state": {}})
    ),
    **one_of("fedavg", "algorithm", values=(None, {}, [], {"server": {}}, {"server": [], "clients": {}})),
    **one_of("fedavg", "algorithm", "server", "a.weight", values=(torch.zeros(1), torch.full((4, 3), NAN), 3, None)),
    **one_of("fedavg", "algorithm", "server", "a.weight", values=OTHER_KINDS),
    **one_of("fedavg", "algorithm", "clients", 0, "a.weight", values=OTHER_KINDS),
    **one_of("fedavg", "algorithm", "clients", 0, values=({"a.weight": torch.zeros(3, 4)}, {"x": torch.zeros(1)}, [3])),
    **one_of("fedavg", "algorithm", "clients", values=([], {None: {}}, {"a": {}})),
    **weight("a.weight", (4, 3)),
    **OTHERS,
}
CHANGED = {
    "checkpoint": COMMON,
    "progress": PROGRESS,
    "generator": GENERATOR,
    "weights": {**weight("a.weight", (4, 3)), **STATE},
    "model": {**weight("generator.body.0.weight", (2, 3)), **one_of(*SETTINGS, "init_args", values=ARGUMENTS)},
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(("kind", "whats"), first_and_others(CHANGED))
def test_whole_checkpoints_of_wrong_content_are_refused(kind, whats, request, tmp_path):
    path = fresh(kind, request, tmp_path)
    sound = read_torch(path)
    for what in whats:
        refuses(READERS[kind], changed(path, CHANGED[kind][what], sound), what=what)


@pytest.mark.parametrize(("kind", "whats"), first_and_others({"resumed": RESUMED}))
def test_no_training_goes_on_from_a_checkpoint_of_wrong_content(kind, whats, request, tmp_path):
    def resume(path):
        trainer = start(2)
        trainer.fit(TwoOptimizers(), make_data(), ckpt_path=path)

    path = fresh(kind, request, tmp_path)
    sound = read_torch(path)
    for what in whats:
        refuses(resume, changed(path, RESUMED[what], sound), (*REFUSALS, MisconfigurationException), what)


@pytest.mark.slow
def test_an_unchanged_checkpoint_is_taken_by_all_of_them(federation, gan, tmp_path):
    """What the tests above refuse, they refuse for what was changed."""
    path = tmp_path / "a.ckpt"
    for source, kinds in ((federation, ("checkpoint", "progress", "weights")), (gan, ("generator", "model"))):
        path.write_bytes(source.read_bytes())
        for kind in kinds:
            expected = READERS[kind](path)
            changed(path, lambda content: None, read_torch(path))
            assert equal(READERS[kind](path), expected)
    path.write_bytes(federation.read_bytes())
    changed(path, lambda content: None, read_torch(path))
    trainer = start(3)
    trainer.fit(TwoOptimizers(), make_data(), ckpt_path=path)
    assert trainer.current_epoch == 3
