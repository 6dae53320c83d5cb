"""What experiments leave."""

import json

import pytest

from fedgen.experiments.results import load_results, save_results


def test_numbers_are_stored_with_settings_and_versions_and_found_by_settings(tmp_path):
    path = save_results(tmp_path, "toy", {"seed": 1}, {"value": [1.5]})
    stored = json.loads(path.read_text())
    assert stored["experiment"] == "toy"
    assert {"python", "torch", "fedgen"} <= set(stored["versions"])
    assert load_results(tmp_path, {"seed": 1}) == {"value": [1.5]}
    assert load_results(tmp_path, {"seed": 2}) is None
    assert load_results(tmp_path / "elsewhere", {"seed": 1}) is None


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"results.json is damaged.*remove it"):
        load_results(tmp_path, {})
