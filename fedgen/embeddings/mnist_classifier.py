"""Features of a classifier that the kit trains itself, on 4,000 MNIST digits: a second embedding that no loss has seen.

Its weights are made on first use (half a minute on one core) and kept; they need no download. Measured: 98.9 percent
of 1,000 other MNIST digits are classified rightly, and 78 percent of scikit-learn's 8 x 8 digits, which it never saw.
"""

import json
import os
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.data import MNIST5k
from fedgen.embeddings.base import Embedding
from fedgen.embeddings.names import LOGITS, SEED
from fedgen.embeddings.names import MNIST_CLASSIFIER as NAME
from fedgen.embeddings.small_classifier import ClassifierOptions, SmallClassifier, fitted, train_classifier
from fedgen.embeddings.weights import load_into, read_state
from fedgen.io.files import parse_json
from fedgen.io.tensor_files import read_safetensors, write_safetensors
from fedgen.own_code import warn
from fedgen.seeds import generator, isolated

SIDE, CLASSES, HELD_OUT = 28, 10, 1000
EPOCHS = 14
VERSION = 1  # of the training: another one makes other weights
FOLDER_VARIABLE = "FEDGEN_CACHE"


class MNISTClassifier(Embedding):
    """Features [N, 128] (or logits [N, 10]) of a `SmallClassifier` of MNIST digits.

    Grey images of any size, resized to 28 x 28 (bilinear, antialiased). Unrelated to every published network, and it
    sees digits as digits: made for scoring generators of digits whose loss used another embedding. Generators of MNIST
    itself are scored on a network that was trained on images of their clients.

    Args:
        weights: a file of weights as `weights_path` names it; None for that file, which is made if it is not there.
        seed: of the training; other seeds are other embeddings: "classifier-mnist5k-seed1".
        layer: "features", or "logits", for the Inception Score: "classifier-mnist5k-logits".
    """

    def __init__(self, weights: str | Path | None = None, seed: int = 0, layer: str = "features") -> None:
        if layer not in ("features", LOGITS):
            raise ValueError(f"layer must be 'features' or {LOGITS!r}, got {layer!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
        with isolated():
            network = SmallClassifier(1, SIDE, CLASSES)
        path = Path(weights).expanduser() if weights is not None else weights_path(seed)
        state = read_state(path) if weights is not None or path.is_file() else make_weights(seed, path)
        load_into(network, state, str(path))
        name = "-".join([NAME, *([f"{SEED}{seed}"] if seed else []), *([LOGITS] if layer == LOGITS else [])])
        settings = {"resize": "bilinear antialiased", "size": SIDE, "layer": layer}
        dim = CLASSES if layer == LOGITS else network.head.in_features
        super().__init__(name, dim, network, channels=1, settings=settings)
        self.layer = layer

    def features(self, levels: Tensor) -> Tensor:
        return self.network(levels) if self.layer == LOGITS else self.network.features(levels)


def weights_path(seed: int = 0) -> Path:
    """Return the file that keeps the weights of a seed: in the folder that the variable FEDGEN_CACHE names, or
    ~/.cache/fedgen.
    """
    folder = os.environ.get(FOLDER_VARIABLE) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedgen"
    return Path(folder).expanduser() / f"{NAME}-seed{seed}-v{VERSION}.safetensors"


def make_weights(seed: int, path: str | Path) -> dict[str, Tensor]:
    """Trains the classifier, writes its weights with its accuracy (safetensors), and returns them.

    Where the file cannot be written, that costs a warning and another training next time.

    Args:
        seed: of the training.
        path: of the file.
    """
    examples = MNIST5k().load("train")
    held_out, chosen = split_digits(len(examples))
    digits = examples.subset(chosen)
    options = ClassifierOptions(epochs=EPOCHS, seed=seed)
    title = f"training {NAME}, once"
    network = train_classifier(digits.inputs, digits.labels, CLASSES, options, distorted, title)
    rest = examples.subset(held_out)
    accuracy = float((network.classify(rest.inputs) == rest.labels).double().mean())
    state = network.state_dict()
    about = {"name": NAME, "seed": seed, "accuracy": accuracy, "held_out": HELD_OUT, "images": examples.name}
    try:
        write_safetensors(path, state, {"about": json.dumps(about)})
    except OSError as error:
        warn(f"cannot keep {path} ({error.strerror}); set {FOLDER_VARIABLE} to a folder")
    return state


def split_digits(count: int) -> tuple[Tensor, Tensor]:
    """Positions of the digits that the accuracy is measured on, and of those that are trained on; of no seed."""
    order = torch.randperm(count, generator=generator(0, NAME, "held out"))
    return order[:HELD_OUT], order[HELD_OUT:]


def accuracy_of(path: str | Path) -> float:
    """The share of 1,000 held-out MNIST digits that the classifier of a file of `make_weights` gets right.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is another file, or damaged.
    """
    metadata = read_safetensors(path)[1]
    try:
        return float(parse_json(metadata["about"])["accuracy"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not say its accuracy ({error!r}); remove it, and it is made again") from error


def distorted(levels: Tensor, draws: torch.Generator) -> Tensor:
    """Digits of other sizes, widths, slants and places, half of the batches at a lower resolution.

    Digits of other collections fill their frame and are blurred where they were enlarged.

    Args:
        levels: grey levels float [n, 1, H, W], black being 0.
        draws: a CPU generator.
    """
    zoom, aspect, angle = (2 * torch.rand(3, len(levels), generator=draws) - 1) * torch.tensor([[0.3], [0.15], [0.2]])
    shift = (2 * torch.rand(len(levels), 2, generator=draws) - 1) * 0.15
    wide, high = (zoom - 0.15 + aspect).exp(), (zoom - 0.15 - aspect).exp()
    rows = [wide * angle.cos(), -wide * angle.sin(), shift[:, 0], high * angle.sin(), high * angle.cos(), shift[:, 1]]
    maps = torch.stack(rows, 1).view(-1, 2, 3).to(levels)
    levels = F.grid_sample(levels, F.affine_grid(maps, list(levels.shape), align_corners=False), align_corners=False)
    side = levels.shape[-1]
    if torch.rand((), generator=draws) < 0.5:
        return levels
    low = int(torch.randint(8, side, (), generator=draws))
    return fitted(fitted(levels, low), side)
