"""The clients' mean under secure aggregation: the server learns a sum and no single summand.

By Flower's SecAgg+ (Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead"), which Flower
has in its older interface alone: its workflow asks a strategy of that interface for instructions and hands it the mean,
its client mod masks what a client's app returns. Both are driven here from the present interface.
"""

import io
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Stage
from flwr.common.secure_aggregation.secaggplus_constants import Key as StageKey
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, generate_key_pairs
from numpy.typing import NDArray
from torch import Tensor

from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.flower.app.run_config import SECURE
from fedgen.flower.client.policy import RefusedError
from fedgen.flower.secure_aggregation.agreement import (
    FROM,
    MOST,
    SEALED,
    STEPS,
    AskedSum,
    check_settings,
    check_unmasking,
    seal,
    seals_in,
)
from fedgen.flower.wire.flower_records import Silence, reason_of, replies_to
from fedgen.io.files import read_header
from fedgen.own_code import rank_zero_warn
from fedgen.statistics.statistic_messages import MessageError

REST = "fedgen"  # what clients tell in the open beside their masked numbers
MOST_OF_THEM = 0.67  # share of the clients that must answer
_WEIGHT = "weight"


class Masked(NamedTuple):
    """Numbers sent with `secure_mean`: arrays (of a reply in [-1, 1]), open bytes, and a whole weight."""

    arrays: list[NDArray[np.float64]]
    rest: bytes
    weight: int


@dataclass(frozen=True)
class SecureMean:
    """The outcome of an exchange: the mean if there is one, open parts and failures by node, and why none is made."""

    mean: list[NDArray[np.float64]] | None = None
    rests: dict[int, bytes] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    spoilt: str = ""

    def why_none(self, node: int, few: str) -> str:
        """Return why a node is in no mean, as there is none: a silence where that is not its doing."""
        return Silence(self.failures.get(node, self.spoilt)) if self.spoilt else self.failures.get(node, Silence(few))


class _Instructions(FedAvg):
    """The strategy that the workflow asks whom to instruct how; it keeps what it is given."""

    def __init__(self, asked: Mapping[int, FitIns]) -> None:
        super().__init__()
        self._asked, self.found = asked, SecureMean()

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        return [(SimpleNamespace(node_id=node), fitins) for node, fitins in self._asked.items()]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: Any) -> tuple[None, dict[str, Any]]:
        if results:
            mean = parameters_to_ndarrays(results[0][1].parameters)
            self.found = SecureMean(mean, {node.node_id: result.metrics[REST] for node, result in results})
        return None, {}


class _Heard:
    """The grid as the workflow uses it: failures are noted, unusable replies dropped, seals passed on."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.failures: dict[int, str] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # for each node, by whom

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = {message.metadata.dst_node_id: message for message in messages}
        self._pass_on(asked.values())
        # not by the grid's own, which ends with an error where a node has left since, and looks every three seconds
        replies = dict(replies_to(self._grid, asked, timeout, "masked sums"))
        found: dict[int, str] = {node: Silence.within(timeout) for node in asked if node not in replies}
        found |= {node: reason_of(reply) for node, reply in replies.items() if reply.has_error()}
        found |= unusable(asked, {node: reply for node, reply in replies.items() if node not in found})
        self.failures = found | self.failures
        usable = {node: reply for node, reply in replies.items() if node not in found}
        for node, reply in usable.items():
            record: Any = reply.content.config_records.get(RECORD_KEY_CONFIGS, {})
            for other, sealed in zip(record.get(FROM, ()), record.get(SEALED, ())):
                self._sealed.setdefault(other, {})[node] = sealed
        return list(usable.values())

    def _pass_on(self, messages: Iterable[Message]) -> None:
        for message in messages:
            record: Any = message.content.config_records[RECORD_KEY_CONFIGS]
            if record[StageKey.STAGE] == Stage.UNMASK:
                found = self._sealed.get(message.metadata.dst_node_id, {})
                record[FROM], record[SEALED] = list(found), list(found.values())


class _Workflow(SecAggPlusWorkflow):
    """Flower's, which at the end asks also for shares of clients that had dropped out before they gave any."""

    def share_keys_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        goes_on: bool = super().share_keys_stage(grid, context, state)
        state.sampled_node_ids = set(state.active_node_ids)  # others mask nothing, and nobody masks with them
        state.nid_to_neighbours = {node: near & state.active_node_ids for node, near in state.nid_to_neighbours.items()}
        return goes_on


def secure_mean(
    grid: Grid, asked: Mapping[int, Masked], round: int, timeout: float | None, threshold: float = MOST_OF_THEM
) -> SecureMean:
    """One exchange with nodes; `round` is for Flower's log, `timeout` in seconds for each of its messages."""
    # entries of the mean are within a step of 2 / 2^22 (over the weight's share of the largest) of the exact one; fewer
    # clients than the threshold's share cannot unmask the others' sum
    if len(asked) > MOST:
        raise ValueError(f"secure aggregation adds up at most {MOST} clients, got {len(asked)}: ask smaller cohorts")
    if len(asked) < 2:  # a sum over one would show it
        return SecureMean()
    instructions = {
        node: FitIns(ndarrays_to_parameters(arrays), {REST: rest, _WEIGHT: weight})
        for node, (arrays, rest, weight) in asked.items()
    }
    strategy = _Instructions(instructions)
    manager: Any = SimpleNamespace(num_available=lambda: len(asked))  # for the workflow's log
    context = LegacyContext(Context(0, 0, {}, RecordDict(), {}), None, strategy, manager)
    context.state[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: round})
    context.state[MAIN_PARAMS_RECORD] = ArrayRecord()
    largest = max(weight for _, _, weight in asked.values())
    workflow = _Workflow(
        1.0, threshold, max_weight=float(largest), clipping_range=1.0, quantization_range=STEPS, timeout=timeout
    )
    heard = _Heard(grid)
    try:
        workflow(heard, context)  # type: ignore[arg-type]
    except Exception as error:  # it checks nothing of what clients send
        found = SecureMean(spoilt=f"no sum could be made of what clients sent behind masks ({error!r})")
    else:
        found = strategy.found
    if found.mean is not None and (why := _beyond(found.mean, [asked[node][2] for node in found.rests], largest)):
        found = SecureMean(spoilt=f"no sum is made of what clients sent behind masks: {why}")
    if found.spoilt:
        rank_zero_warn(shorten(found.spoilt, LONGEST_REASON))
    return replace(found, failures=heard.failures)


def _beyond(mean: Sequence[NDArray[np.float64]], weights: Sequence[int], largest: int) -> str:
    """Return why arrays are no mean of summands in [-1, 1]; "" if they may be. Masks hide who sent something else."""
    entries = np.abs(np.concatenate([np.ravel(array) for array in mean] or [np.zeros(1)]))
    if np.isfinite(entries).all() and (entries <= 1 + mean_error(weights, largest)).all():
        return ""
    return f"it would reach {entries.max():.3g} where no client's numbers exceed 1, so one of them sent something else"


def as_arrays(tensors: Iterable[Tensor]) -> list[NDArray[Any]]:
    """Return what a server sends with `secure_mean`; NumPy has no bfloat16, which travels as float32."""
    return [(one.float() if one.dtype == torch.bfloat16 else one).numpy() for one in tensors]


def mean_error(weights: Sequence[int], largest: int) -> float:
    """A bound on what rounding does to entries of a `secure_mean` of summands in [-1, 1]; infinite without weights."""
    # an entry, over its share of the largest weight, moves by less than a step, the share by half of 1 / 2^22
    shares = [weight / largest for weight in weights]
    sent = [round(share * STEPS) / STEPS for share in shares]
    moved = sum(abs(one - other) for one, other in zip(shares, sent))
    return (len(weights) * 2 / STEPS + 2 * moved) / sum(sent) if any(sent) else math.inf


def masked(
    message: Message,
    context: Context,
    call_next: Callable[[Message, Context], Message],
    check: Callable[[Context, AskedSum, Sequence[int]], object] | None = None,
) -> Message:
    """The client's mod: SecAgg+ if the run's config asks for it; `check` raises for a sum that it shall not unmask."""
    if not context.run_config.get(SECURE):
        return call_next(message, context)
    kind = message.metadata.message_type
    if kind != MessageType.TRAIN and kind.split(".")[0] == MessageType.TRAIN:
        raise RefusedError(f"what is masked is asked for by {MessageType.TRAIN!r} alone, and not by {kind!r}")
    asked = message.content.config_records.get(RECORD_KEY_CONFIGS)
    stage = None if asked is None or check is None else asked.get(StageKey.STAGE)
    if asked is not None and stage == Stage.SETUP:
        check_settings(asked, context.state)
    if asked is not None and check is not None and stage == Stage.UNMASK:
        check(context, *check_unmasking(asked, context.state))
    reply = secaggplus_mod(message, context, call_next)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        seal(reply, context.state)
    return reply


def read_instructions(message: Message) -> Masked:
    """Read what a server sent with `secure_mean`; ValueError for an array without the numbers that it promises."""
    fitins = compat.recorddict_to_fitins(message.content, keep_input=True)
    for data in fitins.parameters.tensors:
        read_header(io.BytesIO(data), len(data), "of the server's")
    config: Any = fitins.config
    return Masked(parameters_to_ndarrays(fitins.parameters), bytes(config[REST]), int(config[_WEIGHT]))


def write_summand(made: Masked) -> RecordDict:
    """Write the reply of a client's app, for the mod to mask; cut off here, as the mod lets larger entries through."""
    parameters = ndarrays_to_parameters([np.clip(array, -1, 1) for array in made.arrays])
    result = FitRes(Status(Code.OK, ""), parameters, made.weight, {REST: made.rest})
    return compat.fitres_to_recorddict(result, keep_input=True)


def unusable(sent: Mapping[int, Message], replies: Mapping[int, Message]) -> dict[int, str]:
    """Return why replies of one stage cannot be used, by node."""
    found, forms, stage = {}, {}, ""
    for node, reply in replies.items():
        asked = sent[node].content.config_records[RECORD_KEY_CONFIGS]
        stage = str(asked[StageKey.STAGE])
        try:
            forms[node] = _CHECKS[stage](asked, reply, node)
        except Exception as error:  # whatever is wrong with it, it is the client's
            found[node] = str(error) if isinstance(error, MessageError) else repr(error)
    found |= _alike_keys(forms) if stage == Stage.SETUP else _odd(forms)
    return {
        node: f"its reply to the stage {stage!r} of secure aggregation is unusable: {shorten(why, LONGEST_REASON)}"
        for node, why in found.items()
    }


def _keys(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """The public keys: others cannot mask with what is none."""
    keys = [_part(reply, name) for name in (StageKey.PUBLIC_KEY_1, StageKey.PUBLIC_KEY_2)]
    for key in keys:
        generate_shared_key(_own_key(), bytes_to_public_key(key))
    return tuple(keys)


def _shares(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """Nothing; there must be a share for every other client."""
    others = [int(one) for one in asked if one not in (StageKey.STAGE, str(node))]
    _listed(reply, StageKey.CIPHERTEXT_LIST, StageKey.DESTINATION_LIST, others)
    return None


def _masked(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """The arrays' types and shapes, and for how many others it has sealed what it was asked for."""
    rest = compat.recorddict_to_fitres(reply.content, keep_input=True).metrics[REST]
    if not isinstance(rest, bytes):
        raise MessageError(f"what it tells in the open is a {type(rest).__name__}")
    arrays = _part(reply, StageKey.MASKED_PARAMETERS)
    headers = [read_header(io.BytesIO(data), len(data), "of masked numbers") for data in arrays]
    if any(header.dtype.kind not in "iu" for header in headers):
        raise MessageError("its masked numbers are not whole")
    seals = seals_in(reply.content.config_records[RECORD_KEY_CONFIGS])
    return (len(seals), *((header.dtype, header.shape) for header in headers))


def _unmasking(asked: Mapping[str, Any], reply: Message, node: int) -> Hashable:
    """The lengths of the shares, one of every client."""
    nodes = [*asked[StageKey.ACTIVE_NODE_ID_LIST], *asked[StageKey.DEAD_NODE_ID_LIST]]
    return tuple(sorted(_listed(reply, StageKey.SHARE_LIST, StageKey.NODE_ID_LIST, nodes)))


_CHECKS = {
    Stage.SETUP: _keys,
    Stage.SHARE_KEYS: _shares,
    Stage.COLLECT_MASKED_VECTORS: _masked,
    Stage.UNMASK: _unmasking,
}


def _part(reply: Message, name: str) -> Any:
    record = reply.content.config_records.get(RECORD_KEY_CONFIGS)
    if record is None or name not in record:
        raise MessageError(f"it lacks {name!r}")
    return record[name]


def _listed(reply: Message, name: str, of: str, nodes: list[int]) -> list[tuple[int, int]]:
    """Return by node the length of what the reply has for it, which must be bytes; and of these nodes alone."""
    parts, told = _part(reply, name), _part(reply, of)
    if not isinstance(parts, list) or not isinstance(told, list) or len(parts) != len(told):
        raise MessageError(f"its {name!r} and {of!r} are no lists of one length")
    if Counter(told) != Counter(nodes) or not all(isinstance(part, bytes) for part in parts):
        raise MessageError(f"its {name!r} are not bytes for each of the clients that it was asked about")
    return [(one, len(part)) for one, part in zip(told, parts, strict=True)]


def _alike_keys(keys: Mapping[int, Any]) -> dict[int, str]:
    """Clients refuse to mask where two keys are one."""
    counts = Counter(key for own in keys.values() for key in own)
    return {node: "its keys are not its own" for node, own in keys.items() if any(counts[key] > 1 for key in own)}


def _odd(forms: Mapping[int, Hashable]) -> dict[int, str]:
    """Those whose form fewest have, if there are several; of two clients both: nobody knows which of them is right."""
    counts = Counter(forms.values())
    if len(counts) < 2:
        return {}
    usual, most = counts.most_common(1)[0]
    tied = list(counts.values()).count(most) > 1
    return {node: "its form differs from the others'" for node, form in forms.items() if tied or form != usual}


@cache
def _own_key() -> Any:
    return generate_key_pairs()[0]
