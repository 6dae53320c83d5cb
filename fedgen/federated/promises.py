"""The promises of private and robust aggregators, and settings that would break them."""

from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.nn import Module

from fedgen.clients.samplers.sampler import CohortSampler
from fedgen.federated.aggregators.mean import Aggregator
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.compression.compressor import Compressor
from fedgen.federated.lightning.lightning_internals import NormBase
from fedgen.models.optional_hooks import of_part


def check_privacy(
    aggregator: Aggregator,
    client_weights: str,
    optimizer_state: str,
    exchange: Exchange,
    module: Module,
    algorithm: ClientAlgorithm,
) -> None:
    """Refuses, under a private aggregator, what would leave clients beside it.

    Raises:
        MisconfigurationException: naming the setting.
    """
    if not aggregator.private:
        return
    name = type(aggregator).__name__
    if client_weights != "uniform":
        raise MisconfigurationException(
            f"{name} bounds what one client adds, so clients weigh equally: pass client_weights='uniform'"
        )
    if optimizer_state == "average":
        raise MisconfigurationException(
            f"{name} protects weights alone, and optimizer_state='average' sends clients' optimizer states too: pass"
            " 'reset'"
        )
    if optimizer_state == "keep" and exchange.shared:
        raise MisconfigurationException(
            f"{name} protects weights alone, and optimizer_state='keep' leaves each client's optimizer states, which"
            " have no noise, in the run's checkpoints: pass 'reset'"
        )
    if exchange.beside:
        raise MisconfigurationException(
            f"{name} protects weights alone, and the client algorithm sends control variates too: leave it out"
        )
    if algorithm.trains_own:
        raise MisconfigurationException(
            f"{name} protects weights alone, and {type(algorithm).__name__} leaves a model of each client, which has no"
            " noise, in the run's checkpoints: leave it out"
        )
    if any(of_part(part).shares_images for part in module.modules()):
        raise MisconfigurationException(
            f"{name} bounds what a client's own update adds, and a loss of the model looks at other clients' images"
            " too, so that a client has a part in every update: give the loss aggregate='own' and let clients train the"
            " generator, or set references that are nobody's secret"
        )


def check_counters(exchange: Exchange, module: Module) -> None:
    """Refuses integer and boolean tensors of which nobody has declared what becomes of them, where what clients send
    is masked or gets noise: their largest value would show one client's. BatchNorm's counts advance by the interval,
    and those of several numbers, such as index tables, are taken for constants, of which each turn is held to it.

    Raises:
        MisconfigurationException: naming them and the remedy.
    """
    norms = {
        f"{name}.num_batches_tracked" if name else "num_batches_tracked"
        for name, part in module.named_modules()
        if isinstance(part, NormBase)
    }
    exchange.advancing |= norms & exchange.counters.keys() - exchange.declared
    exchange.hold_tables()
    if undeclared := [name for name in exchange.counters if name not in exchange.declared | exchange.advancing]:
        raise MisconfigurationException(
            f"{', '.join(undeclared[:3])}: integer or boolean tensors, of which the largest over clients would show one"
            " client's, so that it may not travel beside masks or noise. Declare what becomes of them:"
            f" FedAvgStrategy(rules={{{undeclared[0]!r}: 'advance'}}) lets a counter grow by the communication interval"
            " each round, 'server' keeps the server's value"
        )
    if told := [name for name in exchange.counters if name not in exchange.advancing]:
        raise MisconfigurationException(
            f"{told[0]} has the rule 'max', which would show one client's value beside masks or noise; declare"
            " 'advance' or 'server'"
        )


def check_robustness(aggregator: Aggregator, optimizer_state: str, exchange: Exchange) -> None:
    """Refuses, under an aggregator that no single client can lead astray, what clients send past it.

    Raises:
        MisconfigurationException: naming the setting.
    """
    if not aggregator.robust:
        return
    name = type(aggregator).__name__
    if optimizer_state == "average":
        raise MisconfigurationException(
            f"{name} bounds what one client does to the weights, and optimizer_state='average' takes the plain mean of"
            " clients' optimizer states, which one of them may set as it likes: pass 'reset' or 'keep'"
        )
    if exchange.beside:
        raise MisconfigurationException(
            f"{name} bounds what one client does to the weights, and the client algorithm adds up clients' control"
            " variates, which one of them may set as it likes: leave it out"
        )


def check_sampler(sampler: CohortSampler | None, aggregator: Aggregator, client_weights: str) -> None:
    """Refuses samplers that would weigh clients twice, or whose draws a private aggregator does not count.

    Raises:
        MisconfigurationException: naming the setting.
    """
    if sampler is None:
        return
    kind = type(sampler).__name__
    if sampler.weighs and client_weights != "uniform":
        raise MisconfigurationException(
            f"sampler={kind} draws clients in proportion to their examples, and client_weights={client_weights!r} would"
            " weigh them by these once more: pass client_weights='uniform'"
        )
    if aggregator.private:
        raise MisconfigurationException(
            f"{type(aggregator).__name__} counts how often each client is drawn uniformly, and {kind} draws otherwise,"
            " so that the logged epsilon would be wrong: leave the sampler out"
        )


def check_compression(compressor: Compressor | None, aggregator: Aggregator, fixed: bool) -> None:
    """Refuses compressed updates where they cannot be added up under masks, or leave clients beside their noise.

    Raises:
        MisconfigurationException: naming the setting.
    """
    if compressor is None:
        return
    kind = type(compressor).__name__
    if fixed:
        raise MisconfigurationException(
            f"compression={kind}: under secure aggregation clients' messages are masked and added up, and compressed"
            " ones of different clients do not add: leave compression out"
        )
    if aggregator.private and compressor.keeps_clients:
        raise MisconfigurationException(
            f"{type(aggregator).__name__} protects what clients send, and {kind} leaves what each has not sent, without"
            " noise, in the run's checkpoints: pass a compression that keeps nothing, such as QSGD, or"
            " error_feedback=False (of PowerSGD also warm_start=False)"
        )
