"""One thread per process: the tests' tensors are small, and what they compute must not depend on the machine."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedgen.embeddings import Embedding, load_embedding
from tests.launched import leave_out_what_takes_time

torch.set_num_threads(1)
# What is imported and collected stays: looking through it for garbage took half of the collection,
# and more of every full pass later.
gc.disable()
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has its background jobs ignore
leave_out_what_takes_time()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_seed_of_another_test() -> Iterator[None]:
    """Lightning leaves the seed of a fit in the environment, which later fits and evaluations of the process take."""
    os.environ.pop("PL_GLOBAL_SEED", None)
    yield
    os.environ.pop("PL_GLOBAL_SEED", None)


@pytest.fixture
def blank_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's curves take a third of a short training to draw: here they are a picture of one pixel."""
    from PIL import Image

    from fedgen.io.files import atomic_write
    from fedgen.reports.figures import curves

    def write_pixel(figure: object, path: str | Path, dpi: int = 0) -> Path:
        with atomic_write(path) as file:
            Image.new("L", (1, 1)).save(file, "png")
        return Path(path)

    monkeypatch.setattr(curves, "save_picture", write_pixel)


@pytest.fixture(scope="session")
def clip_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CLIP with random weights, so that nothing is downloaded."""
    from tests.random_networks import save_clip

    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def inception_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard Inception with random weights."""
    from tests.random_networks import save_inception

    return save_inception(tmp_path_factory.mktemp("inception"))


@pytest.fixture(scope="session")
def clip(clip_weights: Path) -> Embedding:
    return load_embedding("clip-vit-b-32", weights=clip_weights)


MISSING = "browser tests need {}: `make test-browser` installs it on Debian as root; -m 'not browser' leaves them out"


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window; a failure, not a skip, where it is missing."""
    program, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not program or not driver:
        pytest.fail(MISSING.format("chromium and chromedriver (apt-get install chromium chromium-driver)"))
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        pytest.fail(MISSING.format("selenium (pip install selenium)"))
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


# of slow tests, those that take twenty seconds or more
LONGEST = (
    "test_kills.py",
    "experiments/paired/test_short_runs.py",
    "federated/test_ranks.py",
    "flower/test_federation.py",
    "test_recipes.py",
    "training/test_fit.py",
    "experiments/participation/test_short_runs.py",
    "flower/test_fine_tuning.py",
    "foreign/test_sweep.py",
    "flower/test_kept_images.py",
    "flower/test_flower_strategy.py",
    "experiments/engine/test_fit_process.py",
    "experiments/paired/test_untrained_runs.py",
    "test_package.py",
)


# what a file's text has where it marks tests, by itself, by tests/quick.py or by the fixture of tests/fuzz/conftest.py
WORDS = {"slow": ("slow", "first_quick", "first_and_others", "copies"), "browser": ("browser",)}


def may_have(mark: str, path: Path) -> bool:
    text = path.read_text()
    return any(word in text for word in WORDS[mark])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Who asks for tests of one mark imports only files that have some: each process would take seconds."""
    mark = config.option.markexpr.partition(" ")[0]
    is_file = collection_path.suffix == ".py"
    return True if mark in WORDS and is_file and not may_have(mark, collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, and of them the longest files, so that several processes end together."""
    marked = {(mark, item.path) for mark in WORDS for item in items if item.get_closest_marker(mark)}
    missed = [(mark, path) for mark, path in marked if not may_have(mark, path)]
    assert not missed, f"make test-slow or test-browser would not collect {missed}: see WORDS"
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, order.get(item.path, len(order))))
