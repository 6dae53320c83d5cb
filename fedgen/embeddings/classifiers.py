"""Features of a classifier that the kit trains itself, on 4,000 MNIST digits: a second embedding that no loss has seen.

Its weights are made on first use (half a minute on one core) and kept; they need no download. Measured: 98.9 percent
of 1,000 other MNIST digits are classified rightly, and 78 percent of scikit-learn's 8 x 8 digits, which it never saw.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen import seeds
from fedgen.data import MNIST5k
from fedgen.data.lazy_examples import LazyInputs
from fedgen.embeddings.base import Embedding, fitted, load_into, read_state
from fedgen.embeddings.names import LOGITS, SEED
from fedgen.embeddings.names import MNIST_CLASSIFIER as NAME
from fedgen.images import quantise
from fedgen.io.tensor_files import write_safetensors
from fedgen.own_code import warn
from fedgen.progress import track

LARGEST = 64  # pixels a side; larger images are resized to it
HIDDEN = 128  # features
BATCH = 256  # images classified at once
SIDE, CLASSES, HELD_OUT = 28, 10, 1000
EPOCHS = 14
VERSION = 1  # of MNIST's training: another one makes other weights
FOLDER_VARIABLE = "FEDGEN_CACHE"

Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class ClassifierOptions:
    """Options for training a classifier: Adam, its rate falling linearly to 0.

    Args:
        epochs: passes over the images.
        seed: of the initial weights and the order of the images.
        batch_size: images a step.
        learning_rate: the first one.
    """

    epochs: int = 10
    seed: int = 0
    batch_size: int = 64
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("seed", 0), ("batch_size", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < float("inf"):
            raise ValueError(f"learning_rate must be a positive number, got {rate!r}")


class SmallClassifier(nn.Module):
    """Stages of convolution, BatchNorm, ReLU and pooling down to 3 or 4 pixels, then 128 features and the logits.

    Args:
        channels: of the images.
        side: 2 to 64 pixels; images of other sizes are resized to side x side (bilinear, antialiased).
        num_classes: at least 2.
        width: channels of the first stage, doubled by each further one.
    """

    def __init__(self, channels: int, side: int, num_classes: int, width: int = 16) -> None:
        super().__init__()
        if not 2 <= side <= LARGEST or channels < 1 or num_classes < 2:
            found = f"{side} pixels, {channels} channels and {num_classes} classes"
            raise ValueError(f"a small classifier takes 2 to {LARGEST} pixels and at least 2 classes, got {found}")
        self.channels, self.side, self.num_classes = channels, side, num_classes
        layers: list[nn.Module] = []
        before = channels
        while side >= 6 or not layers:
            layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
            before, width, side = width, 2 * width, side // 2
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * side**2, HIDDEN), nn.ReLU())
        self.head = nn.Linear(HIDDEN, num_classes)

    def features(self, levels: Tensor) -> Tensor:
        """Features [N, 128] of grey levels 0..255, float [N, C, H, W]."""
        return self.body(fitted(levels, self.side) / 127.5 - 1)

    def forward(self, levels: Tensor) -> Tensor:
        """Logits [N, classes] of grey levels 0..255, float [N, C, H, W]."""
        return self.head(self.features(levels))

    def logits(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of uint8 images, or of float images in [-1, 1], which are quantised."""
        return self((images if images.dtype == torch.uint8 else quantise(images)).float())

    @torch.no_grad()
    def classify(self, images: Tensor) -> Tensor:
        """The likeliest class of each uint8 image, int64 [N], on the CPU; in eval mode."""
        device = self.head.weight.device
        self.eval()
        return torch.cat([self.logits(part.to(device)).argmax(1).cpu() for part in images.split(BATCH)])


def train_classifier(
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    options: ClassifierOptions | None = None,
    augment: Augment | None = None,
    description: str = "training a classifier",
) -> SmallClassifier:
    """A classifier of these images, in eval mode, on their device.

    The same images and options give the same one on the same machine; global random streams are left as they were.

    Args:
        images: uint8 [N, C, H, W], at least 2.
        labels: int64 [N], 0 to num_classes - 1.
        num_classes: of the data, whether or not all of them occur.
        options: of the training.
        augment: (grey levels float [n, C, H, W], generator) to others, drawn anew for each batch.
        description: text of the progress bar.
    """
    options = options or ClassifierOptions()
    check_labelled(images, labels, num_classes)
    device = images.device
    # Some callers are in inference mode or under autocast, where training would fail or differ.
    with seeds.isolated(), torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        seeds.seed_all(options.seed, "small classifier")
        draws = seeds.generator(options.seed, "small classifier", "batches")
        orders = (torch.randperm(len(images), generator=draws) for _ in range(options.epochs))
        # BatchNorm cannot take a last batch of a single image
        batches = [part for order in orders for part in order.split(options.batch_size) if len(part) > 1]
        labels = labels.to(device)
        network = SmallClassifier(images.shape[1], min(max(images.shape[2:]), LARGEST), num_classes).to(device)
        optimizer = torch.optim.Adam(network.parameters(), options.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
        for chosen in track(batches, description, total=sum(map(len, batches)), unit="images", step=len):
            positions = chosen.to(device)
            levels = images[positions].float()
            levels = levels if augment is None else augment(levels, draws)
            loss = F.cross_entropy(network(levels), labels[positions])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def check_labelled(images: Tensor | LazyInputs, labels: Tensor, num_classes: int) -> None:
    """Raise ValueError unless all are uint8 images with a label each."""
    if images.dtype != torch.uint8 or images.ndim != 4 or len(images) < 2:
        raise ValueError(f"a classifier needs at least 2 images uint8 [N, C, H, W], got {images.dtype} {images.shape}")
    if labels.dtype != torch.int64 or labels.shape != (len(images),):
        raise ValueError(f"labels must be int64 [{len(images)}], one an image, got {labels.dtype} {list(labels.shape)}")
    if not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels run from {span} but must be 0 to {num_classes - 1}")


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
        _ = ClassifierOptions(seed=seed)  # which refuses what is no seed
        with seeds.isolated():
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
    folder = os.environ.get(FOLDER_VARIABLE) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fedgen"
    return Path(folder).expanduser() / f"{NAME}-seed{seed}-v{VERSION}.safetensors"


def make_weights(seed: int, path: str | Path) -> dict[str, Tensor]:
    """Trains the classifier, writes its weights with its accuracy (safetensors), and returns them."""
    examples = MNIST5k().load("train")
    held_out, chosen = split_digits(len(examples))
    digits = examples.subset(chosen)
    options = ClassifierOptions(epochs=EPOCHS, seed=seed)
    network = train_classifier(digits.inputs, digits.labels, CLASSES, options, distorted, f"training {NAME}, once")
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
    order = torch.randperm(count, generator=seeds.generator(0, NAME, "held out"))
    return order[:HELD_OUT], order[HELD_OUT:]


def distorted(levels: Tensor, draws: torch.Generator) -> Tensor:
    """Digits of other sizes, widths, slants and places, half of the batches at a lower resolution."""
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
