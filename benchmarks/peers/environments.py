"""Where the peers are installed: an environment for each, as their pins exclude one another's and the kit's."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

FOLDER = Path(__file__).parent / ".venv"


def python_of(peer: str) -> str:
    """The interpreter of the environment that holds a peer, made if it is not there or asks for something else.

    Packages that the kit has and the peer does not pin, torch among them, are the kit's: the arithmetic is the same.

    Args:
        peer: "pfl" or "flower", the name of the requirements file.

    Raises:
        subprocess.CalledProcessError: if the peer cannot be installed.
    """
    requirements, folder = Path(__file__).with_name(f"{peer}.txt"), FOLDER / peer
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = f"{sys.prefix}\n{requirements.read_text()}"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {peer} into {folder}", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        kits = sysconfig.get_path("purelib")
        Path(_own_packages(folder), "kit.pth").write_text(kits)  # looked up after the environment's own
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
        subprocess.run(install, check=True)
        ready.write_text(wanted)
    return str(python)


def packages_of(peer: str) -> str:
    """The folder of what a peer has beside the kit's packages; the environment is made as by `python_of`."""
    python_of(peer)
    return _own_packages(FOLDER / peer)


def _own_packages(folder: Path) -> str:
    return sysconfig.get_path("purelib", "venv", {"base": str(folder)})
