"""A real federation on this machine: a SuperLink and SuperNodes as processes, over TLS, with authenticated nodes."""

import datetime
import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import socket

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.launched import Imported

BIN = Path(sys.executable).parent
LOG, FOLDER = "FORKED_LOG", "FORKED_FOLDER"  # variables of a command that is forked, and of all that it starts
CONNECTED = "SuperNode ID: "  # what a node's log says when the SuperLink knows it


def free_port():
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answers(port):
    """Whether something listens there."""
    with socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment_in(folder, *packages):
    """That of Flower's commands, which keep their own files in a folder and find packages in others, too."""
    # Flower's names resolve its own tools by PATH, and its processes are to import this checkout
    paths = os.pathsep.join([str(BIN), os.environ["PATH"]])
    here = str(Path(__file__).parent.parent.parent)
    own = {"FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    own["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    own["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.4"  # seconds, not 1: every message waits for it
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return {**kept, "PATH": paths, "PYTHONPATH": os.pathsep.join([here, *map(str, packages)]), "NO_COLOR": "1", **own}


class Begun:
    """A fork as `subprocess.Popen` gives a process."""

    def __init__(self, forks):
        self._forks, self.pid, self.returncode = forks, forks.number(), None

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            self.wait()
        return self.returncode

    def wait(self, timeout=60):
        if self.returncode is None:
            self._forks.communicate(timeout)
            self.returncode = self._forks.returncode
        return self.returncode

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


class Commands(Imported):
    """Flower's commands, as forks of the process that imports scripts, or of another one that serves calls."""

    def __init__(self, calls=None):
        super().__init__("tests.flower.forked_flower", calls)

    def begin(self, command, **variables):
        return Begun(self.start(*command, **variables))


class Federation:
    """Started by `with`, and ended with all its processes.

    Args:
        folder: for keys, certificates, logs and Flower's own files.
        clients: {name: folder of its images, or its node's config}.
        nodes: {name: command that starts its node}, where it is not Flower's. Commands of `forked_flower` are
            named, and forks, as is all that they start; others have a path.
        superlink: command that starts the SuperLink.
    """

    def __init__(self, folder, clients, nodes=None, superlink=()):
        self.folder, self.clients, self.nodes, self.superlink = folder, clients, nodes or {}, superlink
        self.port = free_port()
        self.processes = {}
        self.environment = environment_in(folder)

    def __enter__(self):
        self.commands = Commands()
        make_certificates(self.folder)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.folder / "ca.crt"}"\n'
        )
        self.start_superlink(*self.superlink)
        for name in self.clients:
            self.make_key(name)
        self.register(*self.clients)
        for name in self.clients:
            self.start_node(name, *self.nodes.get(name, ()))
        return self

    def __exit__(self, *error):
        for name in list(self.processes):
            self.kill(name)

    def make_key(self, name):
        """A node's key pair."""
        make_key(self.folder / f"{name}.key")

    def register(self, *names):
        """Has the SuperLink take nodes by their keys."""
        self._ended("register", *(self.folder / f"{name}.key.pub" for name in names))

    def start_superlink(self, *command):
        """By Flower's command, or by another one that takes its options."""
        files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        certificates = [part for key, file in files.items() for part in (f"--ssl-{key}", self.folder / file)]
        options = [
            "--host",
            "0.0.0.0",
            "--port",
            self.port,
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]
        self._start("superlink", *(command or ("flower-superlink",)), *certificates, *options)
        wait_for(
            lambda: answers(self.port), 120, lambda: f"the SuperLink's port is missing\n{self.log('superlink')[-3000:]}"
        )

    def start_node(self, name, *command, **config):
        """By Flower's command, or by another one that takes its options."""
        own = self.clients[name]
        settings = {"name": name, **(own if isinstance(own, dict) else {"data-path": str(own)}), **config}
        options = ["--root-certificates", self.folder / "ca.crt", "--superlink", f"127.0.0.1:{self.port}"]
        options += ["--auth-supernode-private-key", self.folder / f"{name}.key", "--port", free_port()]
        told = " ".join(f'{key}="{value}"' for key, value in settings.items() if value is not None)
        self._start(name, *(command or ("flower-supernode",)), *options, "--node-config", told)

    def kill(self, name):
        """Ends a process and those that it started, at once."""
        process = self.processes.pop(name)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it had ended
        process.wait()

    def flwr(self, *arguments, timeout=300):
        """A command of Flower's, to its end; what it printed."""
        return self._ended("flwr", *arguments, timeout=timeout)

    def run(self, app, timeout=600, **config):
        """Runs an app to its end; what it printed."""
        options = ["--run-config", config_text(config)] if config else []
        return self.flwr("run", str(app), "here", "--stream", *options, timeout=timeout)

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def connections(self, name):
        """How often the SuperLink has taken a node."""
        return self.log(name).count(CONNECTED)

    def _ended(self, *command, timeout=300):
        """What a command of Flower's printed; it must have ended well."""
        run = self.commands.start(*command, **self.environment, **{FOLDER: str(self.folder)})
        said, _ = run.communicate(timeout)
        assert run.returncode == 0, said[-6000:]
        return said

    def _start(self, name, *command):
        log = self.folder / f"{name}.log"
        if not Path(command[0]).is_absolute():
            own = {FOLDER: str(self.folder), LOG: str(log)}
            self.processes[name] = self.commands.begin(command, **self.environment, **own)
            return
        with log.open("a") as said:
            options = {"stdout": said, "stderr": subprocess.STDOUT, "start_new_session": True, "cwd": self.folder}
            self.processes[name] = subprocess.Popen([*map(str, command)], env=self.environment, **options)


def config_text(config):
    """A run's config as `flwr run --run-config` takes it."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def wait_for(holds, seconds=400, told=lambda: ""):
    """Waits until something holds; `told` gives what else is known where it never does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it does not hold after {seconds} s; {told()}"
        time.sleep(0.2)


def make_certificates(folder):
    """ca.crt, server.crt and server.key for 127.0.0.1."""
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("fedgen test authority")
    own = _certificate(issuer, issuer, authority.public_key(), authority, ca=True)
    (folder / "ca.crt").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    key = ec.generate_private_key(ec.SECP256R1())
    server = _certificate(_name("localhost"), issuer, key.public_key(), authority, ca=False)
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_private(key, serialization.PrivateFormat.TraditionalOpenSSL))


def make_key(path):
    """A node's private key, and its public key beside it as NAME.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public)


def _private(key, form):
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(subject, issuer, public, signer, ca):
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA256())
    )
