# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # The same recipe on Flower
#
# This tutorial trains a recipe in one process, then on two clients that keep their images. Both give the same model and
# scores, to rounding. It needs `pip install ".[flower]"` and about a minute.

# %%
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import create_connection, socket

import torch
from torchvision.utils import save_image

import fedgen

BIN = Path(sys.executable).parent  # where fedgen, flwr and their commands are installed
environment = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "FLWR_HOME": str(
        Path("flwr").absolute()
    ),  # Flower's own settings, here for this tutorial
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds that a message may wait, not 1
    "OMP_NUM_THREADS": "1",
}

# %% [markdown]
# Each of two hospitals has a folder of images: scikit-learn's even or odd digits.

# %%
digits = fedgen.Digits().read("train")
for index in range(600):
    label = int(digits.labels[index])
    folder = Path("hospitals", ("even", "odd")[label % 2], str(label))
    folder.mkdir(parents=True, exist_ok=True)
    save_image(digits.inputs[index] / 255, folder / f"{index:04}.png")

# %% [markdown]
# The recipe trains a small WGAN-GP over the two hospitals for two rounds of ten iterations.

# %%
recipe = """
threads: 1
trainer:
  accelerator: cpu
  max_epochs: 2
  logger: false
  enable_progress_bar: false
  strategy: {class_path: fedgen.FedAvgStrategy, init_args: {communication_interval: 10}}
  callbacks:
    - class_path: fedgen.FederatedEvaluation
      init_args: {every_n_rounds: 2, num_images: 500, embeddings: [pixels], scores: [fid], grid: 0}
model:
  class_path: fedgen.WGANGP
  init_args:
    generator: {class_path: fedgen.models.networks.SmallGenerator}
    critic: {class_path: fedgen.models.networks.SmallCritic}
data:
  class_path: fedgen.FederatedDataModule
  init_args:
    data:
      class_path: fedgen.data.ImageFolder
      init_args: {root: hospitals, owner_folders: true, channels: 1}
    partition: fedgen.clients.partitions.Natural
"""
_ = Path("digits.yaml").write_text(recipe)


def run(command):
    """Run a command to its end; return what it printed."""
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


# %% [markdown]
# ## In one process

# %%
_ = run("python -W ignore -m fedgen fit --config digits.yaml --seed_everything 0")

# %% [markdown]
# ## As an app
#
# `deploy` writes the app: the recipe and two small modules.

# %%
deploy = "python -W ignore -m fedgen deploy digits.yaml app --clients 2"
print(run(f"{deploy} --data ImageFolder --settings '{{\"channels\": 1}}'"))
for path in sorted(Path("app").rglob("*.*")):
    print(path)

# %% [markdown]
# Server and clients run here on one machine, without encryption. Each client reads only its own folder. The app's README has
# the commands for several machines, with TLS and keys.

# %%
with socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
processes = []


def start(command):
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes.append(
        subprocess.Popen(
            command, shell=True, env=environment, start_new_session=True, **options
        )
    )


def answers():
    try:
        create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


start(
    f"flower-superlink --insecure --host 127.0.0.1 --port {port} --disable-runtime-dependency-installation"
)
while not answers():
    time.sleep(0.2)
for number, folder in enumerate(sorted(Path("hospitals").iterdir())):
    start(
        f"flower-supernode --insecure --superlink 127.0.0.1:{port} --port {port + 1 + number} "
        f'--node-config \'data-path="{folder.absolute()}" name="{folder.name}"\''
    )

# %% [markdown]
# `flwr run` sends the app to the server that Flower's configuration names.

# %%
Path("flwr").mkdir(exist_ok=True)
_ = Path("flwr/config.toml").write_text(
    f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
)
output = Path("federation").absolute()
try:
    printed = run(f"flwr run app here --stream --run-config 'output=\"{output}\"'")
finally:
    for process in processes:
        os.killpg(process.pid, signal.SIGTERM)
print(*(line for line in printed.splitlines() if line.startswith("round")), sep="\n")

# %% [markdown]
# ## The same?
#
# Compare the weights and scores of both runs.

# %%
here, there = (
    torch.load(Path(folder) / "last.ckpt", weights_only=True)["state_dict"]
    for folder in ("checkpoints/digits", output)
)
difference = max(float((here[name] - there[name]).abs().max()) for name in here)
assert difference < 1e-5
print("largest difference of weights:", difference)
for score in ("fid_avg", "fid_all"):
    found = [
        fedgen.select(folder, by=score)[0].value
        for folder in ("checkpoints/digits", output)
    ]
    print(score, [round(value, 5) for value in found])
