"""One thread per process: the tests' tensors are small, and what they compute must not depend on the machine."""

import gc
import os
import shutil
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import torch

from fedgen.embeddings import Embedding, load_embedding

torch.set_num_threads(1)
# What is imported and collected stays: looking through it for garbage took half of the collection,
# and more of every full pass later.
gc.disable()
os.fsync = lambda _: None  # tests kill processes, and no machine: what is written need not reach the disk
# Lightning, once it is imported, looks through all installed packages for each Trainer: they do not change in tests
metadata.entry_points = cache(metadata.entry_points)
# Adam asks before each step how many GPUs there are, and PyTorch looks for a library each time: a tenth of small fits
torch.cuda._device_count_nvml = cache(torch.cuda._device_count_nvml)


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


# of slow tests, those that take a minute or more
LONGEST = (
    "test_kills.py",
    "federated/test_ranks.py",
    "experiments/paired/test_short_runs.py",
    "training/test_fit.py",
    "flower/test_flower_strategy.py",
    "evaluation/test_rank_scores.py",
    "flower/test_federation.py",
    "benchmark/test_run.py",
    "flower/test_fine_tuning.py",
    "benchmark/test_own.py",
    "experiments/participation/test_short_runs.py",
    "flower/test_kept_images.py",
)


def may_have_slow_tests(path: Path) -> bool:
    """Whether a file marks tests as slow, by itself, by tests/quick.py or by the fixture of tests/fuzz/conftest.py."""
    return any(word in path.read_text() for word in ("slow", "first_quick", "first_and_others", "copies"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test-slow` imports only files with slow tests, a third of all: each of its processes would take seconds."""
    only_slow = config.option.markexpr.startswith("slow")
    is_file = collection_path.suffix == ".py"
    return True if only_slow and is_file and not may_have_slow_tests(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, and of them the longest files, so that several processes end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    missed = [path for path in slow if not may_have_slow_tests(path)]
    assert not missed, f"`make test-slow` would not collect {missed}: see may_have_slow_tests"
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, order.get(item.path, len(order))))
