"""The shipped recipes with a `split`, at a size that trains in seconds; written to the working directory."""

from pathlib import Path

import yaml

from tests.data.bible_file import some_verses, write_bible

RECIPES = Path(__file__).parents[3] / "recipes"
BOOKS = ["Ge", "Exo", "Lev", "Num", "Josh", "Ruth", "Job", "Psa", "Isa", "Dan"]


def write(name, rounds, split, model=None, data=None):
    """The recipe with rounds of one iteration of two clients, another split, and what else is given of its parts."""
    settings = yaml.safe_load((RECIPES / name).read_text())
    settings["trainer"]["max_epochs"] = rounds
    settings["trainer"]["strategy"]["init_args"] |= {"communication_interval": 1, "cohort_size": 2}
    settings["model"]["init_args"] |= model or {}
    settings["data"]["init_args"]["data"]["init_args"] |= data or {}
    settings["data"]["init_args"]["split"]["init_args"] = split
    path = Path("tiny.yaml").absolute()
    path.write_text(yaml.safe_dump(settings))
    return path


def digits_recipe():
    """A DDPM of 8 x 8 digits of twelve writers."""
    network = yaml.safe_load((RECIPES / "ddpm_style_shift.yaml").read_text())["model"]["init_args"]["network"]
    network["init_args"] |= {"image_size": 8, "widths": [8], "layers": 1}
    model = {"network": network, "sampler": {"class_path": "fedgen.models.Sampler", "init_args": {"steps": 2}}}
    data = {"num_writers": 12, "shrink": 4, "held_out": 0.9}
    return write("ddpm_style_shift.yaml", 4, {"unparticipating": 0.33, "max_examples": 12}, model, data)


def classifier_recipe():
    """A classifier of digits of twelve writers."""
    split = {"unparticipating": 0.33, "max_examples": 12}
    return write("classifier_style_shift.yaml", 2, split, data={"num_writers": 12})


def text_recipe():
    """A narrow model of ten short books."""
    file = write_bible(Path("bible.data").absolute(), some_verses(BOOKS))
    model = {"length": 16, "width": 8, "layers": 1, "heads": 1}
    split = yaml.safe_load((RECIPES / "bible_text.yaml").read_text())["data"]["init_args"]["split"]["init_args"]
    return write("bible_text.yaml", 2, split | {"max_examples": 8}, model, {"length": 16, "path": str(file)})
