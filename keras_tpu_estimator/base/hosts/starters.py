"""The table of starters: what each sets in the environment of a process.

The order is that of precedence. Starters of processes precede those of machines,
because a program on each machine may start several processes.
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from keras_tpu_estimator.base.hosts.starter import Environment, Field, Starter

_T = TypeVar("_T")

# The port of process 0 if an environment defines only its machine.
_PORT = "8476"
# The port that programs for XPK use.
_XPK_PORT = "1234"
_LAST_PORT = 65535
# As JAX does, a job's number selects one of these last ports.
_JOB_PORTS = 2**12


def integer(environment: Environment, *names: str) -> int | None:
    """Returns the integer of the first of these variables that is set."""
    for name in names:
        text = environment.get(name)
        # Templates of jobs may define a variable as empty.
        if not text:
            continue
        if not re.fullmatch("[0-9]+", text):
            raise ValueError(
                f"The environment variable {name} must be an integer. "
                f"Received: {text!r}. Correct it, or unset it."
            )
        return int(text)
    return None


def _numbers(*names: str) -> Field[int]:
    """The integer of the first of some variables that is set."""
    return Field(" or ".join(names), lambda env: integer(env, *names))


def _beside(name: str, field: Field[_T]) -> Field[_T]:
    """A field that counts only if another variable is set, as its own are ambiguous."""
    return Field(
        field.names, lambda env: field.read(env) if env.get(name) is not None else None
    )


def _never(names: str) -> Field[Any]:
    """A value that the starter does not set, and the variable that may define it."""
    return Field(names, lambda _: None)


def _local(number: str, count: str) -> Callable[[Environment], int | None]:
    """Reads the number of this process on its machine.

    It is `None` if the starter has already selected the GPUs of each process.
    """

    def read(environment: Environment) -> int | None:
        on_machine = integer(environment, count)
        if on_machine is None or on_machine == 1:
            return None
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and len(visible.split(",")) < on_machine:
            return None
        return integer(environment, number)

    return read


def _with_port(environment: Environment, host: str, port: str) -> str:
    """Returns an address; JAX_COORDINATOR_PORT replaces the port."""
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{host}:{environment.get('JAX_COORDINATOR_PORT', port)}"


def _jax_address(environment: Environment) -> str | None:
    address = environment.get("JAX_COORDINATOR_ADDRESS")
    if address is None:
        address = environment.get("JAX_COORDINATOR_IP")
    if not address or re.search(r":[0-9]+$", address):
        return address or None
    return _with_port(environment, address, _XPK_PORT)


def _jax_count(environment: Environment) -> int | None:
    count = integer(environment, "JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT")
    if count is None and _jax_address(environment) is not None:
        return integer(environment, "NNODES")
    return count


def _jax_number(environment: Environment) -> int | None:
    number = integer(environment, "JAX_PROCESS_ID", "JAX_PROCESS_INDEX")
    if number is not None or _jax_address(environment) is None:
        return number
    names = ("JOB_INDEX", "PROCESSES_IN_JOB", "JOB_COMPLETION_INDEX")
    job, size, index = (integer(environment, name) for name in names)
    if job is not None and size is not None and index is not None:
        return job * size + index
    return integer(environment, "NODE_RANK")


def _jax_job_address(environment: Environment) -> str | None:
    host, port = (
        environment.get(f"COORDINATOR_{name}") for name in ("ADDRESS", "PORT")
    )
    return _with_port(environment, host, port) if host and port else None


def _torch_address(environment: Environment) -> str | None:
    """The port after that of PyTorch, which PyTorch itself uses."""
    host, port = environment.get("MASTER_ADDR"), integer(environment, "MASTER_PORT")
    if not host or port is None:
        return None
    return _with_port(
        environment, host, str(port + 1 if port < _LAST_PORT else port - 1)
    )


def _open_mpi_address(environment: Environment) -> str | None:
    """The machine of `mpirun`, which Open MPI 5 names in the job's namespace.

    JAX itself reads that of Open MPI 4, with the same meaning.
    """
    namespace = environment.get("PMIX_NAMESPACE", "")
    match = re.fullmatch(r"[a-z]+-(.+)-[0-9]+@[0-9]+", namespace)
    if match is None:
        return None
    sizes = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    size, on_machine = (environment.get(name) for name in sizes)
    port = _LAST_PORT - zlib.crc32(namespace.encode()) % _JOB_PORTS
    host = "127.0.0.1" if size == on_machine else match[1]
    return _with_port(environment, host, str(port))


def _sage_maker_hosts(environment: Environment) -> Sequence[str]:
    hosts = _json(environment, "SM_HOSTS")
    if hosts is None:
        hosts = (_json(environment, "SM_RESOURCE_CONFIG") or {}).get("hosts")
    return hosts or ()


def _sage_maker_number(environment: Environment) -> int | None:
    hosts = _sage_maker_hosts(environment)
    host = environment.get("SM_CURRENT_HOST")
    if host is None:
        config = _json(environment, "SM_RESOURCE_CONFIG") or {}
        host = config.get("current_host")
    return [*hosts].index(host) if host is not None and host in hosts else None


def _sky_pilot_ips(environment: Environment) -> Sequence[str]:
    return environment.get("SKYPILOT_NODE_IPS", "").split()


def _vertex_addresses(environment: Environment) -> Mapping[str, Sequence[str]]:
    """Returns the addresses by worker pool, in their order."""
    cluster = _vertex(environment, "cluster")
    return {
        pool: cluster[pool]
        for pool in sorted(cluster)
        if pool.startswith("workerpool") and cluster[pool]
    }


def _vertex_number(environment: Environment) -> int | None:
    task = _vertex(environment, "task")
    before = 0
    for pool, addresses in _vertex_addresses(environment).items():
        if pool == task.get("type"):
            return before + int(task.get("index", 0))
        before += len(addresses)
    return None


def _vertex(environment: Environment, name: str) -> Mapping[str, Any]:
    spec = _json(environment, "CLUSTER_SPEC")
    part = spec.get(name) if isinstance(spec, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _json(environment: Environment, name: str) -> Any:
    """Returns a variable's value; `None` if it is not JSON, as of another program."""
    try:
        return json.loads(environment.get(name, "null"))
    except json.JSONDecodeError:
        return None


def _first_of(
    hosts: Callable[[Environment], Sequence[str]],
) -> Callable[[Environment], str | None]:
    """Reads the address of process 0 from the hosts of all."""

    def read(environment: Environment) -> str | None:
        for host in hosts(environment):
            return _with_port(environment, host, _PORT)
        return None

    return read


def _vertex_address(environment: Environment) -> str | None:
    for addresses in _vertex_addresses(environment).values():
        return addresses[0]
    return None


def _number_of(
    items: Callable[[Environment], Sequence[Any]],
) -> Callable[[Environment], int | None]:
    return lambda environment: len(items(environment)) or None


def _pod_number(environment: Environment) -> int | None:
    """The index of a pod, if it has others: the first may have none."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return None
    return integer(environment, "JOB_COMPLETION_INDEX") or None


_MPI_ADVICE = (
    "Install mpi4py for the same MPI, or set JAX_COORDINATOR_ADDRESS to the machine "
    "and a free port of process 0."
)

# Starters that set variables for each process.
OF_PROCESSES = (
    Starter(
        "Kubeflow Trainer, XPK or your script",
        Field("JAX_COORDINATOR_ADDRESS or JAX_COORDINATOR_IP", _jax_address),
        Field("JAX_NUM_PROCESSES, JAX_PROCESS_COUNT or NNODES", _jax_count),
        Field("JAX_PROCESS_ID, JAX_PROCESS_INDEX or NODE_RANK", _jax_number),
        is_final=True,
    ),
    Starter(
        "a JAXJob of Kubeflow",
        _beside(
            "NUM_PROCESSES",
            Field("COORDINATOR_ADDRESS and COORDINATOR_PORT", _jax_job_address),
        ),
        _beside("COORDINATOR_ADDRESS", _numbers("NUM_PROCESSES")),
        _beside("COORDINATOR_ADDRESS", _numbers("PROCESS_ID")),
        is_final=True,
    ),
    Starter(
        "torchrun, Accelerate or DeepSpeed",
        _beside("WORLD_SIZE", Field("MASTER_ADDR and MASTER_PORT", _torch_address)),
        _numbers("WORLD_SIZE"),
        _beside("WORLD_SIZE", _numbers("RANK")),
        _local("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ),
    Starter(
        "Open MPI",
        _beside("OMPI_COMM_WORLD_SIZE", Field("PMIX_NAMESPACE", _open_mpi_address)),
        _numbers("OMPI_COMM_WORLD_SIZE"),
        _numbers("OMPI_COMM_WORLD_RANK"),
        _local("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        advice=_MPI_ADVICE,
    ),
    Starter(
        "MPICH or Intel MPI",
        _never("JAX_COORDINATOR_ADDRESS"),
        _numbers("PMI_SIZE"),
        _numbers("PMI_RANK"),
        _local("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        advice=_MPI_ADVICE,
    ),
)

# Starters that set variables for each machine.
OF_MACHINES = (
    Starter(
        "SageMaker",
        Field("SM_HOSTS or SM_RESOURCE_CONFIG", _first_of(_sage_maker_hosts)),
        Field("SM_HOSTS or SM_RESOURCE_CONFIG", _number_of(_sage_maker_hosts)),
        Field("SM_CURRENT_HOST or SM_RESOURCE_CONFIG", _sage_maker_number),
    ),
    Starter(
        "SkyPilot",
        Field("SKYPILOT_NODE_IPS", _first_of(_sky_pilot_ips)),
        _numbers("SKYPILOT_NUM_NODES"),
        _numbers("SKYPILOT_NODE_RANK"),
    ),
    Starter(
        "Vertex AI",
        Field("CLUSTER_SPEC", _vertex_address),
        Field(
            "CLUSTER_SPEC",
            lambda env: sum(map(len, _vertex_addresses(env).values())) or None,
        ),
        Field("CLUSTER_SPEC", _vertex_number),
    ),
)

# Starters that JAX reads, and that are an error if it has not.
READ_BY_JAX = (
    Starter(
        "an indexed Kubernetes Job",
        _never("JAX_COORDINATOR_ADDRESS"),
        _never("JAX_NUM_PROCESSES"),
        Field("JOB_COMPLETION_INDEX", _pod_number),
        advice="Install jax[k8s], with which JAX finds the other pods.",
    ),
)
