"""A server of trainings that has imported diffusers, too: `python -m tests.experiments.diffusion_server SOCKET`.

Each fork of the kit's own would import it for seconds.
"""

from diffusers import UNet2DModel

from fedgen.cli.fit_server import import_kit, main


def prepare():
    import_kit()
    assert UNet2DModel  # which diffusers loads when it is asked for


if __name__ == "__main__":
    main(prepare)
