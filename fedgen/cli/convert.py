"""`fedgen convert`: other people's networks as files of the kit."""

from collections.abc import Sequence
from pathlib import Path

from fedgen.flags import run_function


def convert_networks(source: Path, target: Path, half: bool = False, overwrite: bool = False) -> None:
    """Converts a StyleGAN2 to safetensors: NVIDIA's network pickle, of which nothing can run, or a run's checkpoint.

    The target holds generator, its moving average and discriminator with their settings:
    `StyleGAN2.from_file(target).sample(16)`, or `weights: target` in a recipe.

    Args:
        source: the pickle of stylegan2-ada-pytorch, e.g. ffhq.pkl; or a checkpoint of `fedgen fit`, .ckpt.
        target: the file to write, e.g. ffhq.safetensors.
        half: round weights to float16, for half the size.
        overwrite: replace the target if it exists.
    """
    if target.suffix != ".safetensors":
        raise ValueError(f"{target}: name it {target.with_suffix('.safetensors').name}, as its content is")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; choose another name, or replace it with --overwrite")

    from fedgen.io.files import in_bytes, require_writable
    from fedgen.models.stylegan2.network_file import read_official_networks as read
    from fedgen.progress import make_console

    require_writable(target.parent)
    if source.suffix == ".ckpt":
        from fedgen.models.stylegan2.stylegan2 import read_trained_networks as read
    found = read(source)
    found.write(target, half)
    console = make_console()
    for name, network in found.networks.items():
        settings = network.settings
        classes = "" if settings["num_classes"] is None else f", {settings['num_classes']} classes"
        shape = f"{settings['image_size']} x {settings['image_size']}, {settings['channels']} channels{classes}"
        console.print(f"{name}: {sum(p.numel() for p in network.parameters()):,} parameters, {shape}")
    console.print(f"{target}: {in_bytes(target.stat().st_size)}")


def convert(arguments: Sequence[str]) -> int:
    return run_function(convert_networks, arguments, "fedgen convert")
