import urllib.error
import urllib.request

import pytest


@pytest.fixture
def offline(monkeypatch):
    """No server answers."""

    def fail(*args, **options):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
