"""The Kafka client with transactions, confluent-kafka: its settings, and errors of its failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from dovetail.errors import ConfigurationError, DovetailError, PlanError, TargetError
from dovetail.io.sources.kafka import SINK_DEFAULTS

T = TypeVar("T")

ID_PREFIX: Final = "dovetail-"
"""The beginning of the names of transactions and of their consumer groups."""
ANSWER_SECONDS_MAX: Final = 60.0
"""The time limit of a request to the brokers, with all its retries, in seconds."""
_KAFKA: Final = "kafka."
"""The prefix of a client's settings among the options of Spark's sink."""
_SERVERS: Final = "bootstrap.servers"
_WAIT_S: Final = 0.05
_DEFAULTS: Final = {
    **{name.removeprefix(_KAFKA): value for name, value in SINK_DEFAULTS.items()},
    # As the Java client: the same key goes to the same partition, whoever writes it.
    "partitioner": "murmur2_random",
    # The limits of what waits to be sent. The task waits at them.
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": str(128 << 10),
    "transaction.timeout.ms": "60000",
    "log_level": "0",  # errors are raised
}
_PRODUCER_SETTINGS: Final = (
    *("batch.size", "linger.ms", "compression.type", "partitioner", "transaction.timeout.ms"),
    *("queue.buffering.max.messages", "queue.buffering.max.kbytes"),
)
"""The settings that only a producer takes, not a consumer or an admin client."""
_RESERVED_SETTINGS: Final = ("transactional.id", "enable.idempotence", "group.id")
"""The settings that the sink makes itself, so that options must not name them."""
_RIGHTS_BY_ERROR: Final = {
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "WRITE and DESCRIBE on the transactional ids that "
    f"begin with {ID_PREFIX}",
    "GROUP_AUTHORIZATION_FAILED": f"READ and DESCRIBE on the groups that begin with {ID_PREFIX}",
    "TOPIC_AUTHORIZATION_FAILED": "WRITE, READ and DESCRIBE on the topic",
    "CLUSTER_AUTHORIZATION_FAILED": "IDEMPOTENT_WRITE on the cluster",
}
"""The rights that the user lacks, by the name of the brokers' error."""
_REMEDY_BY_ERROR: Final = {
    "UNKNOWN_TOPIC_OR_PART": "Create the topic, and start the query again",
    "INVALID_TRANSACTION_TIMEOUT": "Lower options={'kafka.transaction.timeout.ms': ...} to the "
    "broker's transaction.max.timeout.ms, or raise that",
    "_UNSUPPORTED_FEATURE": "Write to brokers with transactions, Kafka 2.5 or later, or leave "
    "exactly_once= out",
    "MSG_SIZE_TOO_LARGE": "Raise max.message.bytes of the topic and "
    "options={'kafka.message.max.bytes': ...}, or leave large columns out by select()",
}
"""The remedy for an error that every attempt meets, by the error's name."""
SILENT_LOGGER: Final = logging.getLogger("dovetail.kafka")
"""The log of the clients, whose errors are raised."""
SILENT_LOGGER.addHandler(logging.NullHandler())
SILENT_LOGGER.propagate = False
FENCED_ERRORS: Final = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
"""The names of the errors of a producer that was fenced: another one of its name has been
initialized.
"""


def client_for(title: str) -> Any:
    """Return the package ``confluent_kafka``. Raises ``ConfigurationError`` if it is missing.
    ``title``: the sink's name in errors.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise ConfigurationError(
            title,
            "exactly_once= needs confluent-kafka, which is not installed where it is needed",
            "Install dovetail[kafka] for the driver and the workers",
        ) from error
    return confluent_kafka


def client_settings(title: str, servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a producer, by the names of librdkafka: the sink's defaults
    (``_DEFAULTS``), the brokers ``servers``, then ``options``, which overrule those before.
    ``title``: the sink's name in errors.

    ``options``: further settings, each with the prefix ``kafka.``, as Spark's sink takes them.
    Raises ``PlanError`` for names without the prefix. Also for ``transactional.id``,
    ``enable.idempotence`` and ``group.id``, which the sink sets itself.
    """
    for name in options:
        setting = name.removeprefix(_KAFKA)
        if not name.startswith(_KAFKA) or setting in _RESERVED_SETTINGS:
            raise PlanError(
                title,
                f"options= has {name!r}, which exactly_once= does not take",
                "Name settings of the producer as 'kafka.…', "
                f"other than {', '.join(_RESERVED_SETTINGS)}",
            )
    given = {name.removeprefix(_KAFKA): value for name, value in options.items()}
    return _DEFAULTS | {_SERVERS: servers} | given


def connection_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without those that only a producer takes, for a consumer or an admin
    client.
    """
    return {name: value for name, value in settings.items() if name not in _PRODUCER_SETTINGS}


def producer_of(client: Any, settings: Mapping[str, str], name: str) -> Any:
    """Return a producer of the package ``client`` with the transactional id ``name``. It connects
    at its first call. ``settings``: those of a producer, by the names of librdkafka. Raises the
    client's error for settings that it does not know.
    """
    return client.Producer({**settings, "transactional.id": name}, logger=SILENT_LOGGER)


def refuse_settings(title: str, settings: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` for settings of a producer that the client does not know, and if
    the client is not installed. Nothing connects. ``title``: the sink's name in errors.
    """
    client = client_for(title)
    try:
        producer_of(client, settings, ID_PREFIX)
    except client.KafkaException as error:
        raise ConfigurationError(
            title,
            f"the Kafka client refuses its settings: {text_of_error(error)}",
            "exactly_once= writes by librdkafka: name its settings in options=, such as "
            "kafka.sasl.username and kafka.ssl.ca.location",
        ) from error


def retry_request(client: Any, request: Callable[[], T]) -> T:
    """Call ``request`` and return its result. After an error that may pass, wait 0.05 s and call it
    again, until 60 s are over (``ANSWER_SECONDS_MAX``). A call that has begun by then may end
    later. ``client``: the package. Raises the client's error: a lasting one at once, else the last
    one.
    """
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            return request()
        except client.KafkaException as error:
            passing = error.args[0].retriable() or error.args[0].name() in _PASSING_ERRORS
            if not passing or time.monotonic() > deadline:
                raise
        time.sleep(_WAIT_S)


_PASSING_ERRORS: Final = (
    *("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
    *("UNSTABLE_OFFSET_COMMIT", "REQUEST_TIMED_OUT", "_TRANSPORT", "_WAIT_COORD"),
)
"""The errors of a coordinator that moves or starts."""


def text_of_error(error: Any) -> str:
    """Return the text of a client's error in one line, without a full stop. ``error``: a
    ``KafkaException``.
    """
    return str(" ".join(str(error.args[0].str()).split())).removesuffix(".")


def permanent_error(title: str, error: Any) -> DovetailError | None:
    """Return, not raise, the ``ConfigurationError`` for a failure that every attempt would meet,
    such as missing rights; None for other failures. ``title``: the sink's name. ``error``: a
    ``KafkaException`` of the client.
    """
    name, text = error.args[0].name(), text_of_error(error)
    if name in _RIGHTS_BY_ERROR:
        return ConfigurationError(
            title,
            f"the brokers do not let this user write in transactions: {text}",
            f"Grant it {_RIGHTS_BY_ERROR[name]}",
        )
    if name in _REMEDY_BY_ERROR:
        return ConfigurationError(
            title, f"the micro-batch cannot be written: {text}", _REMEDY_BY_ERROR[name]
        )
    return None


def passing_error(title: str, error: Any) -> DovetailError:
    """Return, not raise, the ``TargetError`` for a failure that another attempt may not meet.
    ``title``: the sink's name. ``error``: a ``KafkaException`` of the client.
    """
    return TargetError(
        title,
        f"the transaction could not be committed: {text_of_error(error)}",
        "See that the brokers run and can be reached from the workers, and that "
        "transaction.state.log.replication.factor is not above their number. Start the query "
        "again, which loses and doubles nothing",
    )


def refuse_fenced(title: str, name: str, seconds: float, timeout_ms: int) -> None:
    """Raise ``TargetError``: the brokers no longer take what the producer ``name`` sends. If
    ``seconds`` reach ``timeout_ms``, the error says that the transaction took too long, else that
    another producer has this name.

    ``title``: the sink's name. ``seconds``: the time since the transaction began. ``timeout_ms``:
    the longest that the brokers allow a transaction, in milliseconds.
    """
    if 1000 * seconds >= timeout_ms:
        raise TargetError(
            title,
            f"the transaction {name} took {seconds:,.0f} s, and the brokers end one after "
            f"{timeout_ms / 1000:,.0f} s",
            "Give more time by options={'kafka.transaction.timeout.ms': ...}, more transactions=, "
            "or smaller micro-batches",
        )
    raise TargetError(
        title,
        f"another process has taken over the transaction {name}: a later attempt of this task, or "
        "a second query on this checkpoint or a copy of it",
        "Let one query at a time use a checkpoint; a copy needs a new id, by dt.checkpoints.rewind",
    )
