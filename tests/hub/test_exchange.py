"""Models come back from their folders as they were, hostile folders are refused, and the hub gets all files."""

import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch

from fedgen.evaluation import read_records
from fedgen.hub import from_pretrained, push_to_hub, save_pretrained
from fedgen.hub.exchange import MODELS
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator
from tests.hub.conftest import MAKERS
from tests.trainers import same_state

# diffusers takes its time to import, and a diffusion model to draw
DIFFUSION = ("DDPM", "EDM", "FlowMatching", "VAE")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in DIFFUSION)) for n in MAKERS])
def test_every_model_comes_back_with_its_weights_settings_and_images(name, make, tmp_path):
    model = make(name)
    save_pretrained(model, tmp_path / "folder")
    found = from_pretrained(tmp_path / "folder")
    assert type(found) is type(model)
    assert same_state(found, model)
    assert json.loads(json.dumps(dict(found.hparams))) == json.loads(json.dumps(dict(model.hparams)))
    if hasattr(model, "sample"):
        drawn = [one.sample(2, torch.Generator().manual_seed(1)) for one in (model, found)]
        texts = isinstance(drawn[0], list)
        assert drawn[0] == drawn[1] if texts else torch.equal(*drawn)
        samples = "samples.txt" if texts else "samples.png"
        assert (tmp_path / "folder" / samples).exists()
        assert f"({samples})" in (tmp_path / "folder" / "README.md").read_text()


def test_a_flow_comes_back(tmp_path):
    pytest.importorskip("normflows", reason="the extra flows")
    from fedgen.models import Glow
    from fedgen.models.networks import GlowNetwork

    model = Glow(GlowNetwork(image_size=8, channels=1, levels=1, depth=1, width=4)).eval()
    save_pretrained(model, tmp_path)
    assert same_state(from_pretrained(tmp_path), model)


def test_every_class_is_tried_here():
    assert {*MAKERS, "Glow"} == set(MODELS)


def test_a_folder_of_diffusers_is_a_ddpm(make, tmp_path):
    model = make("DDPM")
    model.save_pretrained(tmp_path)
    assert type(from_pretrained(tmp_path)).__name__ == "DDPM"


class Stranger(SmallGenerator):
    """A network of somebody else."""


def test_what_nobody_could_load_is_not_saved(tmp_path):
    model = WGANGP(Stranger(latent_dim=3, width=2), SmallCritic(width=2))
    with pytest.raises(ValueError, match="test_exchange"):
        save_pretrained(model, tmp_path)
    with pytest.raises(ValueError, match="Linear"):
        save_pretrained(torch.nn.Linear(1, 1), tmp_path)
    own = type("WGANGP", (WGANGP,), {})(SmallGenerator(latent_dim=3, width=2), SmallCritic(width=2))
    with pytest.raises(ValueError, match="WGANGP"):
        save_pretrained(own, tmp_path)


GENERATOR = {"class_path": "fedgen.models.networks.SmallGenerator", "init_args": {"width": 2}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class": "os.system"}, "names the class 'os.system'"),
        ({"class": "EmpiricalGenerator"}, "which is none of DDPM"),
        ({"class": ["GAN"]}, "which is none of DDPM"),
        ({"format": "other"}, "is not of a model of fedgen"),
        ({"version": 2}, "has version 2"),
        ({"arguments": []}, "arguments or optimised_on"),
        ({"optimised_on": [1]}, "arguments or optimised_on"),
        ({"arguments": {"generator": "/etc/passwd"}}, "its generator is '/etc/passwd'"),
        ({"arguments": {"generator": {"class_path": "os.system", "init_args": {}}}}, "fedgen cannot rebuild"),
        ({"arguments": {"generator": GENERATOR | {"init_args": {"width": 10**6}}}}, "of a larger network"),
        ({"arguments": {"nothing": 1}}, "no checkpoint of a WGANGP"),
    ],
)
def test_hostile_settings_are_refused(change, message, make, tmp_path):
    save_pretrained(make("WGANGP"), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    arguments = config["arguments"]
    config |= change
    if isinstance(config["arguments"], dict):
        config["arguments"] = arguments | config["arguments"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(("name", "argument"), [("StyleGAN2", "weights"), ("DDPM", "pretrained")])
def test_a_folders_settings_name_no_other_file(name, argument, make, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    save_pretrained(make(name), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["arguments"][argument] = "stranger/model"
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"its {argument} is 'stranger/model'"):
        from_pretrained(tmp_path)


def test_damaged_and_missing_files_are_refused(make, tmp_path):
    save_pretrained(make("WGANGP"), tmp_path)
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError):
        from_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="config"):
        from_pretrained(tmp_path.parent)
    with pytest.raises(FileNotFoundError, match="name"):
        from_pretrained(tmp_path / "nowhere")


def test_a_models_name_on_the_hub_is_fetched_without_code(make, tmp_path, monkeypatch):
    save_pretrained(make("WGANGP"), tmp_path)
    asked = {}

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert type(from_pretrained("owner/model", revision="v1")) is WGANGP
    assert asked == {"name": "owner/model", "revision": "v1", "allow_patterns": ["*.json", "*.safetensors"]}


class FakeApi:
    """The calls that the hub would get, and what lies in the uploaded folder."""

    def __init__(self, token=None):
        self.calls = [("token", token)]
        FakeApi.last = self

    def create_repo(self, repo_id, private, exist_ok):
        self.calls.append(("create", repo_id, private, exist_ok))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, repo_id, folder_path, commit_message):
        self.calls.append(("upload", repo_id))
        self.files = {path.name for path in Path(folder_path).iterdir()}


def test_the_hub_gets_weights_settings_card_and_samples(make, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    push_to_hub(make("WGANGP"), "owner/model", token="secret")
    api = FakeApi.last
    assert api.calls == [("token", "secret"), ("create", "owner/model", True, True), ("upload", "owner/model")]
    assert api.files == {"config.json", "model.safetensors", "README.md", "samples.png"}


@pytest.mark.slow
def test_a_run_folder_gives_its_best_checkpoint_and_a_card_of_its_records(run, make, tmp_path):
    best = min(
        (r for r in read_records(run / "scores.jsonl") if r.name == "fid_all" and r.is_model), key=lambda r: r.value
    )
    (run / "recipe.yaml").write_text("model: {class_path: fedgen.models.WGANGP}\n")
    card = save_pretrained(run, tmp_path / "folder", license="apache-2.0")
    text = (tmp_path / "folder" / "README.md").read_text()
    assert text == card.text()
    assert card.facts["rounds"] == str(best.round + 1)
    assert f"{best.value:.3g}"[:3] in text
    assert len(card.facts["hash of the partition"]) == 32
    assert card.facts["privacy"] == "none: trained without differential privacy"
    assert type(from_pretrained(tmp_path / "folder")) is WGANGP
    (run / "recipe.yaml").write_text("model: {class_path: somebody.Model}\n")
    with pytest.raises(ValueError, match="somebody"):
        save_pretrained(run, tmp_path / "folder")
    (run / "recipe.yaml").unlink()
    given = save_pretrained(make("WGANGP"), tmp_path / "folder", run=run, round=1)
    assert (given.facts["rounds"], given.facts["clients"], given.recipe) == ("2", "2", "")
    assert given.facts["privacy"] == "no epsilon was logged"  # nobody says what trained it
