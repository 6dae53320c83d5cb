"""Which embedding sees what is wrong with images: KID of real images with a known fault, over the floor.

Of each data set two disjoint sets of real images are drawn. KID between them is the floor. Then the second set gets one
of four mild faults: a blur, noise, one class (or photograph) left out, copies of few images. A figure is the rise of
KID over the floor in units of its standard error, the root of the sum of both squared errors: the mean over three
draws, with the least and the largest. A table follows; bold is what is seen, a rise of 3 or more in every draw.

    python -m benchmarks.which_embedding [--sets digits clothes] [--embeddings pixels timm/resnet18] [--images 1000]
    python -m benchmarks.which_embedding --folder scans [--side 64] [--channels 1]   # own images, in class folders

Clothes need Debian's package dataset-fashion-mnist, molecules `.[molecules]` and molsets; a set whose files are
missing is left out. Seven minutes of one core.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from benchmarks.report import report
from fedgen import seeds
from fedgen.data import DataSet, Digits, Examples, FashionMNIST, ImageFolder, MNIST5k, Moses, PhotoPatches
from fedgen.embeddings import Embedding, embed, load_embedding
from fedgen.scores import KernelReference

FAULTS = ("blur", "noise", "class left out", "copies")
BLUR = torch.tensor([1, 6, 1]) / 8  # of variance 1/4: a standard deviation of half a pixel
NOISE = 8  # grey levels of 255, standard deviation
COPIED, ORIGINALS = 0.2, 10  # share of images that are copies, and of how many images
LEAST, DRAWS = 3, 3  # standard errors that count as seen, in every draw
IMAGES = ("pixels", "efficientnet-lite0", "efficientnet-lite0-32", "classifier-mnist5k")
TEXTS = ("bytes", "chemnet")
SETS: dict[str, DataSet] = {
    "photographs": PhotoPatches(),
    "microscope and retina": PhotoPatches(channels=1, photos=("cell", "retina", "tissue")),
    "clothes": FashionMNIST(),
    "digits": Digits(),
    "mnist5k": MNIST5k(),
    "molecules": Moses(most=5000),
}
Rises = dict[str, list[float]]  # of each fault, one a draw


def blurred(images: Tensor) -> Tensor:
    """Images uint8 [N, C, H, W] under the kernel `BLUR` along both sides; edges are repeated."""
    levels = pad(images.flatten(0, 1).unsqueeze(1).float(), (1, 1, 1, 1), mode="replicate")
    found = conv2d(conv2d(levels, BLUR.view(1, 1, 3, 1)), BLUR.view(1, 1, 1, 3))
    return found.round().to(torch.uint8).reshape(images.shape)


def noisy(images: Tensor, generator: torch.Generator, deviation: float = NOISE) -> Tensor:
    """Images uint8 with independent normal noise, cut off at 0 and 255."""
    noise = deviation * torch.randn(images.shape, generator=generator)
    return (images + noise).round().clamp(0, 255).to(torch.uint8)


def kept(groups: Tensor, draw: int) -> Tensor:
    """Places of the images outside one group: that nearest to a tenth of all, in the next draw the second nearest."""
    names, sizes = groups.unique(return_counts=True)
    order = names[(sizes / len(groups) - 0.1).abs().argsort(stable=True)]
    return (groups != order[draw % (len(order) - 1)]).nonzero().squeeze(1)


def copied(count: int) -> Tensor:
    """Places of `count` images, of which the last fifth are the first ten over and over."""
    places = torch.arange(count)
    number = round(COPIED * count)
    places[count - number :] = torch.arange(number) % ORIGINALS
    return places


def rises(real: Tensor, floor: Tensor, faulty: Mapping[str, Tensor]) -> dict[str, float]:
    """The rise of KID over the floor in standard errors, from features of each set."""
    reference = KernelReference.from_features([real])
    base = reference.score(floor)
    found = {}
    for name, features in faulty.items():
        score = reference.score(features)
        error = (base.errors["all"] ** 2 + score.errors["all"] ** 2) ** 0.5
        found[name] = (score.values["all"] - base.values["all"]) / error
    return found


def measure(embedding: Embedding, data: Examples, most: int) -> Rises:
    """The rises of all faults over draws of at most `most` images a side; molecules have no blur or noise."""
    groups = data.labels if len(data.classes) > 1 or data.owners is None else data.owners
    count = min(most, len(data) // 2)
    found: Rises = {}
    for draw in range(DRAWS):
        generator = seeds.generator(draw, "which embedding", data.name)
        chosen = torch.randperm(len(data), generator=generator)[: 2 * count]
        real, floor = (embed(embedding, data.inputs[part]) for part in chosen.split(count))
        others = data.inputs[chosen[count:]]
        images = {} if embedding.kind == "texts" else {"blur": blurred(others), "noise": noisy(others, generator)}
        faulty = {name: embed(embedding, made) for name, made in images.items()}
        if len(groups.unique()) > 1:
            faulty["class left out"] = floor[kept(groups[chosen[count:]], draw)]
        faulty["copies"] = floor[copied(count)]
        for name, rise in rises(real, floor, faulty).items():
            found.setdefault(name, []).append(rise)
    return found


def row(data: str, embedding: str, found: Rises) -> str:
    """A line of the table: the mean rise of each fault, in bold if it is seen in every draw."""
    cells = []
    for fault in FAULTS:
        values = found.get(fault, [])
        mean = f"{sum(values) / len(values):.1f}" if values else ""
        cells.append(f"**{mean}**" if values and min(values) >= LEAST else mean)
    return f"| {' | '.join([data, embedding, *cells])} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all figures and the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--embeddings", nargs="+", help="all that are there by default")
    parser.add_argument("--images", type=int, default=1000, help="a side, at most")
    parser.add_argument("--folder", help="own images in place of the sets, as ImageFolder reads them")
    parser.add_argument("--side", type=int, help="pixels that they are resized to")
    parser.add_argument("--channels", type=int, default=3, choices=(1, 3))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    own = {"own": ImageFolder(options.folder, options.side, options.channels)} if options.folder else None
    lines = [f"| {' | '.join(['data', 'embedding', *FAULTS])} |", f"|{'---|' * (2 + len(FAULTS))}"]
    for name, source in (own or {key: SETS[key] for key in options.sets}).items():
        try:
            data = source.load("test" if name == "clothes" else "train")
        except (FileNotFoundError, ImportError) as error:
            print(f"{name} left out: {error}", file=sys.stderr)
            continue
        for embedding in map(load_embedding, options.embeddings or (TEXTS if name == "molecules" else IMAGES)):
            if embedding.channels == 1 < data.inputs.shape[1]:
                continue  # of grey images only
            found = measure(embedding, data, options.images)
            for fault, values in found.items():
                unit = f"standard errors, {min(values):.3g} to {max(values):.3g}"
                report(f"{name}, {embedding.name}: {fault}", sum(values) / len(values), unit)
            lines.append(row(name, embedding.name, found))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
