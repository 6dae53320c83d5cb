"""A server that does not follow the protocol of masked sums: it says to each client what a test has it say."""

import io

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.common import FitIns, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import factor_extract
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from fedgen.embeddings import load_embedding
from fedgen.flower.app.apps import client_app
from fedgen.flower.secure_aggregation.agreement import FROM, RANGE_OF_MASKS, SEALED, STEPS
from fedgen.flower.secure_aggregation.secure_sums import _joined, _read, _read_forms
from fedgen.flower.wire.messages import Item, Question, pack
from fedgen.flower.wire.serialization import to_bytes
from tests.flower.loopback import Loopback, Node

HIDDEN = {"secure-aggregation": True, "update-range": 0.5}
LARGEST = {"count": 1e3, "sum": 1e3, "outer": 1e3}
CLASSES = tuple("0123456789")


class RefusalError(Exception):
    """A client does not answer to a stage; the text is its reason."""


class LyingServer:
    """Clients at nodes 10, 11, ... by name, and the four stages of an exchange with them.

    Args:
        path: the deployed recipe's file.
        images: folder of the clients' folders.
        folder: of what they keep.
        names: of them, one letter each.
        config: the run's, beside masks.
    """

    def __init__(self, path, images, folder, names, config=()):
        run = {"output": "first", **HIDDEN, **dict(config)}
        self.names = {10 + "abcd".index(name): name for name in names}
        own = {n: {"data-path": str(images / name), "state-path": str(folder / name)} for n, name in self.names.items()}
        self.grid = Loopback({node: Node(client_app(path), own[node], run) for node in self.names})
        self.passes_on = True

    def say(self, node, stage, content=None, **configs):
        """A client's answer to a stage: its record, and what it tells in the open."""
        records = content or RecordDict()
        records[RECORD_KEY_CONFIGS] = ConfigRecord({Key.STAGE: stage, **configs})
        (reply,) = self.grid.send_and_receive([FlowerMessage(records, node, "train")])
        if reply.has_error():
            raise RefusalError(f"{self.names[node]}: {reply.error.reason.strip().splitlines()[-1]}")
        return reply.content

    def share_keys(self, nodes, settings):
        """The first two stages; each node's shares of others' secrets, as they are passed on."""
        count = len(nodes)
        usual = {
            Key.SAMPLE_NUMBER: count,
            Key.SHARE_NUMBER: count,
            Key.THRESHOLD: count // 2 + 1,
            Key.CLIPPING_RANGE: 1.0,
            Key.TARGET_RANGE: STEPS,
            Key.MOD_RANGE: RANGE_OF_MASKS,
            Key.MAX_WEIGHT: 1.0,
        }
        self.threshold, self.keys, sent = {**usual, **settings}[Key.THRESHOLD], {}, {node: {} for node in nodes}
        for node in nodes:
            own = self.say(node, Stage.SETUP, **{**usual, **settings}).config_records[RECORD_KEY_CONFIGS]
            self.keys[node] = [own[Key.PUBLIC_KEY_1], own[Key.PUBLIC_KEY_2]]
        told = {str(node): keys for node, keys in self.keys.items()}
        for node in nodes:
            own = self.say(node, Stage.SHARE_KEYS, **told).config_records[RECORD_KEY_CONFIGS]
            for other, secret in zip(own[Key.DESTINATION_LIST], own[Key.CIPHERTEXT_LIST], strict=True):
                sent[other][node] = secret
        return sent

    def collect(self, node, asked, shares, weight=1):
        """The reply of a node to the third stage: asked by arrays and bytes, with others' shares by their nodes."""
        arrays, rest = asked
        instructions = FitIns(ndarrays_to_parameters(arrays), {"fedgen": rest, "weight": weight})
        content = compat.fitins_to_recorddict(instructions, True)
        told = {Key.SOURCE_LIST: list(shares), Key.CIPHERTEXT_LIST: list(shares.values())}
        return self.say(node, Stage.COLLECT_MASKED_VECTORS, content, **told)

    def mask(self, asked, settings=(), weight=1):
        """The first three stages.

        Args:
            asked: makes of a node the arrays and bytes that it is sent.
            settings: in place of the usual ones.
            weight: of each, or of all by node.
        """
        nodes = list(self.names)
        sent, self.masked, self.forms, self.sealed = self.share_keys(nodes, dict(settings)), {}, {}, {}
        for node in nodes:
            own = weight[node] if isinstance(weight, dict) else weight
            reply = self.collect(node, asked(node), sent[node], own)
            own = reply.config_records[RECORD_KEY_CONFIGS]
            self.masked[node] = [np.load(io.BytesIO(data), allow_pickle=False) for data in own[Key.MASKED_PARAMETERS]]
            self.forms[node] = compat.recorddict_to_fitres(reply, True).metrics["fedgen"]
            for other, seal in zip(own[FROM], own[SEALED], strict=True):
                self.sealed.setdefault(other, {})[node] = seal

    def unmask(self, there, gone=(), again=False):
        """Asks for shares: of the masks of those who are there, and of the keys of those who are gone.

        Args:
            there: nodes, or a function of the node that is asked.
            gone: likewise.
            again: whether shares that were given before are kept.
        """
        self.refusals = []
        if not again:
            self.seeds, self.secrets = {}, {}
        for node in self.names:
            active = list(there(node) if callable(there) else there)
            dead = list(gone(node) if callable(gone) else gone)
            seals = self.sealed.get(node, {}) if self.passes_on else {}
            lists = {Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead}
            try:
                reply = self.say(node, Stage.UNMASK, **lists, **{FROM: list(seals), SEALED: list(seals.values())})
            except RefusalError as error:
                self.refusals.append(str(error))
                continue
            own = reply.config_records[RECORD_KEY_CONFIGS]
            for place, (of, share) in enumerate(zip(own[Key.NODE_ID_LIST], own[Key.SHARE_LIST], strict=True)):
                (self.seeds if place < len(active) else self.secrets).setdefault(of, []).append(share)

    def sum_of(self, members, others=()):
        """The sum of the members' arrays, if the shares suffice for their own masks and those shared with others.

        Returns:
            None if they do not.
        """
        shapes, total = [array.shape for array in self.masked[members[0]]], None
        for node in members:
            total = self.masked[node] if total is None else [a + b for a, b in zip(total, self.masked[node])]
        for node in members:
            if len(self.seeds.get(node, ())) < self.threshold:
                return None
            mask = pseudo_rand_gen(combine_shares(self.seeds[node]), RANGE_OF_MASKS, shapes)
            total = [a - b for a, b in zip(total, mask)]
            for other in others:
                known = node if len(self.secrets.get(node, ())) >= self.threshold else other
                if len(self.secrets.get(known, ())) < self.threshold:
                    return None
                theirs = self.keys[other if known == node else node][0]
                key = generate_shared_key(
                    bytes_to_private_key(combine_shares(self.secrets[known])), bytes_to_public_key(theirs)
                )
                mask = pseudo_rand_gen(key, RANGE_OF_MASKS, shapes)
                total = [a - b if node > other else a + b for a, b in zip(total, mask)]
        weight, rest = factor_extract([array % RANGE_OF_MASKS for array in total])
        shift = len(members) - 1
        return [(array - shift) * (STEPS / weight) for array in dequantize(rest, 1.0, STEPS)]

    def asking(self, ask="sums", largest=lambda node: LARGEST, **changes):
        """What makes of a node the message that asks it for a statistic.

        Args:
            ask: the statistic.
            largest: makes of a node the largest entries that it is told.
            changes: of what else it is told; "tensors", "promise" and "split" of the question.
        """
        fingerprint = load_embedding("pixels").fingerprint()
        item = Item(ask, changes.get("split", "train"), "pixels", fingerprint, "", changes.get("promise", ""))

        def asked(node):
            weights, rest = pack(Question(changes.get("tensors", {}), [tuple(item)], node - 10, CLASSES))
            told = {
                "names": list(weights),
                "question": rest,
                "largest": [dict(largest(node))],
                "clients": changes.get("clients", len(self.names)),
                "among": changes.get("among", {str(one): name for one, name in self.names.items()}),
            }
            return [tensor.numpy() for tensor in weights.values()], to_bytes(told)

        return asked

    def read(self, mean, number):
        """The message whose sum over so many clients a mean is."""
        (form,) = [_read_forms(self.forms[next(iter(self.names))])]
        return _read(_joined(mean[0], number), form, [LARGEST], len(self.names))[0].total
