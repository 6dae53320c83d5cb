"""Diffusion models in the folders of diffusers: a UNet2DModel and a scheduler, as safetensors and JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedgen.extras import need
from fedgen.io.field_types import fault
from fedgen.io.files import write_json
from fedgen.io.hub_folders import find_folder
from fedgen.models.diffusion.diffusion_schedule import BETAS, PREDICTIONS, NoiseSchedule, Prediction
from fedgen.models.networks.diffusers_folder import CONFIG, read_body, read_settings
from fedgen.models.networks.unet import UNet

SCHEDULER, LABELS = "scheduler_config.json", "fedgen.json"
_SAID = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule")


def read_pretrained(name: str | Path) -> tuple[UNet, NoiseSchedule | None, Prediction | None]:
    """The network, its noise schedule and what it predicts; the last two are None for a folder without a scheduler.

    Weights are read from safetensors alone, and no code of the folder is run.

    Args:
        name: a folder, as DDPMPipeline.save_pretrained or UNet2DModel.save_pretrained leave it, or a name on the hub.

    Raises:
        FileNotFoundError: if there is no such folder, or it lacks the network's config.json or weights.
        ValueError: if its weights are pickles, not all that the network has, or damaged, or it holds another kind of
            model. A flipped bit that leaves a number in the weights cannot be seen: they carry no checksum.
    """
    folder = find_folder(name)
    unet = folder / "unet" if (folder / "unet").is_dir() else folder
    missing = f"{name} is no diffusers folder of an image diffusion model"
    body = read_body(unet, "UNet2DModel", missing, "fedgen trains")
    if body.config.in_channels != body.config.out_channels or not _is_size(body.config.sample_size):
        raise ValueError(
            f"{unet / CONFIG}: in_channels={body.config.in_channels}, out_channels={body.config.out_channels},"
            f" sample_size={body.config.sample_size}; fedgen needs as many channels out as in, and a size"
        )
    classes = _read_labels(folder / LABELS)
    try:
        network = UNet.around(body.config, classes)
    except Exception as error:  # settings from a file may fail in any way
        raise ValueError(f"{unet / CONFIG}: fedgen has no such network ({error})") from error
    network.body.load_state_dict(body.state_dict())
    for path in (folder / "scheduler" / SCHEDULER, folder / SCHEDULER):
        if path.is_file():
            return network, *read_schedule_file(path)
    return network, None, None


def write_pretrained(folder: str | Path, network: nn.Module, schedule: NoiseSchedule, prediction: Prediction) -> None:
    """Writes a folder that `diffusers.DDPMPipeline.from_pretrained` loads.

    Raises:
        TypeError: if the network is not a UNet.
        ValueError: if it is one of patches or of BatchNorm, which UNet2DModel is not.
    """
    diffusers = need("diffusers", "diffusion", "a folder of diffusers")
    if not isinstance(network, UNet):
        raise TypeError(f"diffusers can hold a UNet, not a {type(network).__name__}; save its state_dict instead")
    if network.patch > 1 or network.settings["normalisation"] != "group":
        raise ValueError(
            f"diffusers has no network of patch={network.patch}, normalisation={network.settings['normalisation']!r};"
            " share it by fedgen.hub.save_pretrained"
        )
    settings = schedule.settings(prediction)
    scheduler = diffusers.DDPMScheduler(**settings, variance_type=schedule.variance, clip_sample=schedule.clip)
    pipeline: Any = diffusers.DDPMPipeline(unet=network.body, scheduler=scheduler)
    pipeline.save_pretrained(folder, safe_serialization=True)
    if network.num_classes is None:
        (Path(folder) / LABELS).unlink(missing_ok=True)  # of a conditional model that was in this folder before
    else:
        write_json(Path(folder) / LABELS, {"num_classes": network.num_classes})


def read_schedule_file(path: Path) -> tuple[NoiseSchedule, Prediction]:
    """The noise schedule in a scheduler's file, and what the network predicts.

    Raises:
        ValueError: if it is no scheduler's, damaged, or has a setting that fedgen does not have.
    """
    config = read_settings(path)
    missing = [key for key in ("_class_name", *_SAID) if key not in config]
    if missing:  # diffusers would take its defaults
        raise ValueError(f"{path} does not say {', '.join(missing)}, as schedulers' files do; copy the folder again")
    return read_schedule(config, path)


def read_schedule(config: Mapping[str, Any], path: Path) -> tuple[NoiseSchedule, Prediction]:
    """The noise schedule in a scheduler's config, and what the network predicts.

    Raises:
        ValueError: naming the setting that fedgen does not have.
    """
    kinds, predictions = {v: k for k, v in BETAS.items()}, {v: k for k, v in PREDICTIONS.items()}
    variances = {"fixed_small": "fixed_small", "fixed_small_log": "fixed_small", "fixed_large": "fixed_large"}
    known: dict[str, Any] = {
        "beta_schedule": list(kinds),
        "prediction_type": list(predictions),
        "variance_type": [*variances, None],
        "trained_betas": [None],
        "rescale_betas_zero_snr": [False],
        "thresholding": [False],
        "clip_sample_range": [1.0],
        "clip_sample": [True, False],
    }
    for key, hint in {"num_train_timesteps": int, "beta_start": float, "beta_end": float, "clip_sample": bool}.items():
        if key in config and (wrong := fault(config[key], hint)):
            raise ValueError(f"{path}: {key} {wrong}; copy the folder again")
    default = {"beta_schedule": "linear", "prediction_type": "epsilon", "variance_type": "fixed_small"}
    found = {key: config.get(key, default.get(key, values[0])) for key, values in known.items()}
    for key, values in known.items():
        if found[key] not in values:
            raise ValueError(f"{path}: {key}={found[key]!r} is none that fedgen has: {', '.join(map(repr, values))}")
    try:
        schedule = NoiseSchedule(
            kind=kinds[found["beta_schedule"]],  # type: ignore[arg-type]
            timesteps=config.get("num_train_timesteps", 1000),
            beta_start=config.get("beta_start", 1e-4),
            beta_end=config.get("beta_end", 0.02),
            variance=variances[found["variance_type"] or "fixed_small"],  # type: ignore[arg-type]
            clip=config.get("clip_sample", True),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return schedule, predictions[found["prediction_type"]]  # type: ignore[return-value]


def _is_size(size: Any) -> bool:
    sides = size if isinstance(size, (list, tuple)) and len(size) == 2 else [size]
    return all(type(side) is int and side > 0 for side in sides)


def _read_labels(path: Path) -> int | None:
    """The number of classes that a folder of ours says its network knows; None if it says nothing."""
    if not path.is_file():
        return None
    classes = read_settings(path).get("num_classes")
    if type(classes) is not int or classes < 1:
        raise ValueError(f"{path} has num_classes={classes!r}, which is no number of classes; copy the folder again")
    return classes
