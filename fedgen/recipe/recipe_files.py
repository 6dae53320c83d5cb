"""Recipes' files: where they lie (here, in a checkout, in the installed package), and the keys of their settings."""

import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

from fedgen.class_paths import nearest

CHECKOUT = Path(__file__).parent.parent.parent / "recipes"
INSTALLED = "share/fedgen/recipes"  # below the environment's prefix; pyproject.toml puts them there
SUFFIXES = (".yaml", ".yml")
OPTIONS = ("--config", "-c")
FLAGS = ("--local_only", "--centralised", "--explain")  # options of `fedgen fit` without a value
TIME = "Time:"  # begins the line of a recipe's leading comment that says how long it takes and where it ends
SENTENCE = re.compile(r"(?<!\bal)(?<!\be\.g)\.(?= [A-Z`]|$)")
PARTS = ("trainer", "model", "data", "seed_everything", "ckpt_path", "threads", "explain", "local_only", "centralised")
WRITTEN = ("optimizer", "lr_scheduler")  # by LightningCLI, into the recipes that runs keep
INCLUDED = ("config",)  # another recipe, below this one
UNABLE = "Unable to serialize instance "  # what jsonargparse writes in the place of a value that it has no text for


def recipe_folders() -> list[Path]:
    """The folders that hold recipes and are there: `recipes` here, the checkout's, the installed one."""
    found = [Path("recipes"), CHECKOUT, Path(sysconfig.get_path("data")) / INSTALLED]
    try:
        files = metadata.files("fedgen") or []
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        files = []
    found += [Path(str(one.locate())).resolve().parent for one in files if INSTALLED in one.as_posix()][:1]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def known_recipes() -> dict[str, Path]:
    """Recipes by name, the quickstart first; of one name the first folder's."""
    found: dict[str, Path] = {}
    for folder in recipe_folders():
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items(), key=lambda item: (item[0] != "quickstart", item[0])))


def find_recipe(text: str) -> Path | None:
    """The file of a recipe: a path, or a name such as "quickstart.yaml" or "quickstart"; None if none is."""
    if "\n" in text or Path(text).is_file():
        return Path(text) if "\n" not in text else None
    names = [text] if text.endswith(SUFFIXES) else [text, f"{text}.yaml"]
    places = [folder / name for folder in (Path(), *recipe_folders()) for name in names]
    return next((place for place in places if place.is_file()), None)


def name_of(path: str) -> str:
    """Return how a recipe's file can be asked for: by its name, if that finds it, or by its path."""
    found = find_recipe(Path(path).stem)
    return Path(path).stem if found and Path(path).exists() and found.samefile(path) else path


def with_recipe(arguments: Sequence[str]) -> list[str]:
    """The arguments of `fedgen fit` with the files of recipes that are given by name, behind --config or alone."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        before = arguments[place - 1] if place else ""
        if before in OPTIONS:
            found.append(str(find_recipe(argument) or argument))
        elif option == "--config" and equals:
            found.append(f"{option}={find_recipe(value) or value}")
        elif not argument.startswith("-") and (not before or before in FLAGS):
            found += ["--config", str(find_recipe(argument) or argument)]
        else:
            found.append(argument)
    return found


def given_recipes(arguments: Sequence[str]) -> list[str]:
    """The recipes' files among the arguments that `with_recipe` gives; not a recipe's text in a file's place."""
    named = [value for option, value in zip(arguments, [*arguments[1:], ""]) if option in OPTIONS]
    named += [one.partition("=")[2] for one in arguments if one.startswith("--config=")]
    return [text for text in named if "\n" not in text and not text.lstrip().startswith("{")]


def read_given(text: str) -> Any:
    """The settings of a recipe by its path or name; FileNotFoundError with the nearest, ValueError if it is none."""
    path = find_recipe(text)
    if path is None:
        raise FileNotFoundError(f"there is no recipe {text}{suggest_recipe(Path(text).name)}")
    from fedgen.io.files import read_yaml  # and NumPy with it, which a command's help does without

    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not a recipe: it has no settings such as trainer, model and data")
    for key in settings:
        if str(key).partition(".")[0] not in (*PARTS, *WRITTEN, *INCLUDED):
            hint = nearest(str(key), PARTS)
            raise ValueError(f"{path}: Option {str(key)!r} is not accepted{hint}; a recipe has {', '.join(PARTS)}")
    check_lost(path, settings)
    for key in _empty(settings):
        raise ValueError(f"{path}: {key} is empty; give the class's arguments below it, or remove the line")
    return settings


def suggest_recipe(name: str) -> str:
    """Return what to say of a recipe that is not there: "; did you mean ...?", or how recipes are given."""
    close = nearest(name.removesuffix(".yaml"), list(known_recipes()))
    return f"{close or '; give a path, such as my_recipe.yaml'} (`fedgen recipes` lists the names)"


def describe(path: Path) -> str:
    """The first sentence of a recipe's leading comment; "" if it has none."""
    return SENTENCE.split(" ".join(_leading_comment(path)), maxsplit=1)[0]


def time_and_score(path: Path) -> str:
    """The line "Time: 2 min. FID-all: 3.2; real images: 1.1." of a recipe's leading comment; "" without."""
    return next((line for line in _leading_comment(path) if line.startswith(TIME)), "")


def _leading_comment(path: Path) -> list[str]:
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return [line.removeprefix("#").strip() for line in lines]


def flatten(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted keys; of lists of classes, each by its class's name or its place."""
    if isinstance(settings, Mapping) and settings:
        items = [flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in settings.items()]
    elif isinstance(settings, list) and any(isinstance(part, Mapping) for part in settings):
        items = [flatten(part, f"{prefix}.{name}") for name, part in zip(_names(settings), settings)]
    else:
        return {prefix: settings}
    return {key: value for item in items for key, value in item.items()}


def _names(parts: list[Any]) -> list[str]:
    """Names of a list's parts: the class's, where no other part has it, or the place."""
    paths = [part.get("class_path") if isinstance(part, Mapping) else None for part in parts]
    return [
        path.rsplit(".", 1)[-1] if isinstance(path, str) and paths.count(path) == 1 else str(place)
        for place, path in enumerate(paths)
    ]


def check_lost(path: Any, settings: Any) -> None:
    """Raises ValueError, naming the key, where a recipe has the words that earlier releases wrote for an object."""
    for key, value in flatten(settings).items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and one.startswith(UNABLE):
                raise ValueError(
                    f"{path}: {key} is {one!r}: the release that wrote this file could not store the value; replace it"
                    " by its class_path and init_args (or its number), or remove the line"
                )


def _empty(settings: Any, prefix: str = "") -> list[str]:
    """The dotted keys of each `init_args:` with nothing below it."""
    if isinstance(settings, list):
        return [key for place, part in enumerate(settings) for key in _empty(part, f"{prefix}.{place}")]
    if not isinstance(settings, Mapping):
        return []
    here = "class_path" in settings and "init_args" in settings and settings["init_args"] is None
    below = [one for key, part in settings.items() for one in _empty(part, f"{prefix}.{key}" if prefix else str(key))]
    return [*([f"{prefix}.init_args"] if here else []), *below]


def texts_in(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, Mapping | Sequence):
        for value in settings.values() if isinstance(settings, Mapping) else settings:
            yield from texts_in(value)
