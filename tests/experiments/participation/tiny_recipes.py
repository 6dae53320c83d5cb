"""The shipped recipes with a `split`, at a size that trains in a moment; written to the working directory."""

from dataclasses import replace
from pathlib import Path

import torch
import yaml
from torch import nn

from fedgen.data import DataSet, Digits
from fedgen.data.sets.without_download import deal_evenly
from fedgen.models.networks.network import Network
from tests.data.bible_file import some_verses, write_bible

RECIPES = Path(__file__).parents[3] / "recipes"
BOOKS = ["Ge", "Exo", "Lev", "Num", "Josh", "Ruth", "Job", "Psa", "Isa", "Dan"]
WRITERS = 12


class Written(DataSet):
    """Digits of 8 x 8 pixels, dealt evenly to writers: read in a moment, as no styles are rendered."""

    name, splits = "written", ("train",)

    def read(self, split):
        found = Digits().load(split).subset(range(240))
        names = tuple(f"writer {writer}" for writer in range(WRITERS))
        return replace(found, owners=deal_evenly(found.labels, WRITERS, seed=0), owner_names=names)


class Velocities(Network):
    """Of pixels, from those around them and the time; diffusers, which takes seconds to import, is not needed."""

    image_shape = (1, 8, 8)

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 1, 3, padding=1))

    def forward(self, images, times):
        return self.body(torch.cat([images, times.view(-1, 1, 1, 1).expand_as(images)], dim=1))


def write(name, rounds, split, model, data):
    """The recipe with rounds of one iteration of two clients, and other parts."""
    settings = yaml.safe_load((RECIPES / name).read_text())
    settings["trainer"]["max_epochs"] = rounds
    settings["trainer"]["strategy"]["init_args"] |= {"communication_interval": 1, "cohort_size": 2}
    settings["data"]["init_args"]["data"] = data
    settings["data"]["init_args"]["split"]["init_args"] |= split
    settings["model"] |= model
    path = Path("tiny.yaml").absolute()
    path.write_text(yaml.safe_dump(settings))
    return path


def of_writers(name, rounds, model):
    """The recipe over a dozen writers, all of whom may train but four, who never do."""
    split = {"unparticipating": 0.33, "participating": 1.0, "max_examples": 12}
    return write(name, rounds, split, model, {"class_path": f"{__name__}.Written"})


def digits_recipe():
    """A flow of digits, which is trained on and scored by losses as the recipe's DDPM is."""
    network = {"class_path": f"{__name__}.Velocities"}
    flow = {"network": network, "lr": 2e-3, "sampler": {"solver": "euler", "steps": 2}}
    return of_writers("ddpm_style_shift.yaml", 2, {"class_path": "fedgen.models.FlowMatching", "init_args": flow})


def classifier_recipe():
    """A classifier of digits."""
    return of_writers("classifier_style_shift.yaml", 2, {"init_args": {"image_size": 8}})


def text_recipe():
    """A narrow model of ten short books."""
    file = write_bible(Path("bible.data").absolute(), some_verses(BOOKS))
    model = {"length": 16, "width": 8, "layers": 1, "heads": 1, "lr": 0.003}
    data = {"class_path": "fedgen.data.BibleKJV", "init_args": {"length": 16, "path": str(file)}}
    return write("bible_text.yaml", 2, {"max_examples": 8}, {"init_args": model}, data)
