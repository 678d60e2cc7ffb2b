"""Independent servers, in processes without JAX and this package.

Each starts in a `with` block with exports of digits by name, and yields a function that
sends inputs to the export with a name and returns the outputs.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import urllib.request

import numpy as np

from tests.many_hosts.launching import free_port

_HERE = pathlib.Path(__file__).parent
# MLflow's format for TF1 estimators: a SavedModel, one of its signatures, and the type
# of JSON data. MLServer needs an output example.
_MLMODEL = """
flavors:
  tensorflow:
    model_type: tf1-estimator
    saved_model_dir: {folder}
    meta_graph_tags: [serve]
    signature_def_key: serving_default
  python_function:
    loader_module: mlflow.tensorflow
    env: {{}}
signature:
  inputs: '[{{"name": "image", {tensor}}}]'
  outputs: '[{{"name": "digit", {tensor}}}]'
"""
_TENSOR = (
    '"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 8, 8, 1]}'
)


@contextlib.contextmanager
def mlserver(python, exports, directory):
    """MLServer with its runtime for MLflow, with requests in JSON.

    It serves one model, at the address of MLflow's own server.
    """
    ((name, export),) = exports.items()
    address = f"http://127.0.0.1:{free_port()}"
    settings = {
        "host": "127.0.0.1",
        "http_port": int(address.rpartition(":")[2]),
        "grpc_port": free_port(),
        "metrics_endpoint": None,
        # In one process.
        "parallel_workers": 0,
    }
    (directory / "settings.json").write_text(json.dumps(settings))
    model = {
        "name": name,
        "implementation": "mlserver_mlflow.MLflowRuntime",
        "parameters": {"uri": "."},
    }
    (directory / "model-settings.json").write_text(json.dumps(model))
    (directory / "MLmodel").write_text(_MLMODEL.format(folder=export, tensor=_TENSOR))

    def ask(name, inputs):
        lists = {key: value.tolist() for key, value in inputs.items()}
        request = urllib.request.Request(
            f"{address}/invocations",
            json.dumps({"inputs": lists}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)["predictions"]
        return {key: np.array(value) for key, value in answer.items()}

    program = pathlib.Path(python).with_name("mlserver")
    with _started(python, [program, "start", directory]) as lines:
        _wait_for(lines, f"Loaded model '{name}'", f"running on {address} (")
        yield ask


@contextlib.contextmanager
def triton(python, exports, directory):
    """PyTriton's Triton Inference Server, with requests over HTTP and gRPC."""
    ports = {"http": str(free_port()), "grpc": str(free_port())}

    def ask(name, inputs):
        given = directory / "inputs.npz"
        np.savez(given, **inputs)
        answers = []
        for protocol, port in ports.items():
            made = directory / "outputs.npz"
            script = _HERE / "triton_client.py"
            subprocess.run(
                [python, script, protocol, port, name, given, made],
                check=True,
                env=_environment(python),
            )
            with np.load(made) as outputs:
                answers.append(dict(outputs))
        np.testing.assert_equal(*answers)
        return answers[0]

    script = _HERE / "triton_server.py"
    served = [f"{name}={folder}" for name, folder in exports.items()]
    with _started(python, [python, script, *ports.values(), *served]) as lines:
        _wait_for(lines, "ready")
        yield ask


SERVERS = {"mlserver": mlserver, "triton": triton}


@contextlib.contextmanager
def _started(python, command):
    """The output lines of a process that ends with the `with` block."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(python),
    )
    try:
        yield process.stdout
    finally:
        process.terminate()
        process.communicate()


def _wait_for(lines, *texts):
    """Reads lines until each text has occurred."""
    left, said = set(texts), []
    while left:
        line = next(lines, None)
        if line is None:
            raise RuntimeError(f"The server has ended: {''.join(said)}")
        said.append(line)
        left = {text for text in left if text not in line}


def _environment(python):
    """The environment variables of a shell with the interpreter's environment.

    Triton embeds Python, and uses them to find the library and modules.
    """
    where = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    libraries = subprocess.check_output([python, "-c", where], text=True)
    folder = str(pathlib.Path(python).parent)
    left = {"PYTHONPATH", "PYTHONHOME", "KERAS_BACKEND"}
    return {k: v for k, v in os.environ.items() if k not in left} | {
        "PATH": os.pathsep.join([folder, os.environ["PATH"]]),
        "LD_LIBRARY_PATH": libraries.strip(),
        "VIRTUAL_ENV": str(pathlib.Path(folder).parent),
    }
