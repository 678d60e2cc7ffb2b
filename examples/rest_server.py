"""Serves a SavedModel over HTTP, with the REST API of TensorFlow Serving.

An example for a machine without docker: it needs TensorFlow and nothing else,
neither JAX nor Keras nor keras_tpu_estimator. It answers what
`POST /v1/models/NAME:predict` and `GET /v1/models/NAME` ask; TensorFlow Serving
does much more, and is what to put in front of users.

    python examples/rest_server.py --name digits --folder /path/to/export
"""

import argparse
import base64
import http.server
import json
import pathlib
import re
import sys

# TensorFlow imports these packages if they are installed. A server lacks them.
sys.modules.update(dict.fromkeys(("jax", "jaxlib", "keras")))

import tensorflow as tf  # noqa: E402 - without these

OK = 200
BAD_REQUEST = 400
NOT_FOUND = 404


class RequestError(Exception):
    """The error of an invalid request, with its HTTP status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Model:
    """Returns the newest version in a folder of exports."""

    def __init__(self, folder):
        versions = [p for p in folder.iterdir() if p.name.isdigit()]
        if not versions:
            raise SystemExit(f"There is no export in {folder}.")
        newest = max(versions, key=lambda path: int(path.name))
        self.version = newest.name
        self._loaded = tf.saved_model.load(str(newest), tags=["serve"])

    def predict(self, request):
        """Returns the body of the response to the body of a request."""
        if not isinstance(request, dict):
            raise RequestError(BAD_REQUEST, "Expected a JSON object.")
        signature = self._signature(request.get("signature_name", "serving_default"))
        specs = signature.structured_input_signature[1]
        by_row = "instances" in request
        if by_row == ("inputs" in request):
            raise RequestError(
                BAD_REQUEST,
                'Expected either "instances", a list of examples, or "inputs", '
                f"a batch of each input. Received: {sorted(request)}",
            )
        columns = (
            columns_of(request["instances"], specs)
            if by_row
            else named(request["inputs"], specs)
        )
        outputs = signature(**tensors_of(columns, specs))
        values = {name: to_json(name, t) for name, t in outputs.items()}
        if by_row:
            return {"predictions": rows_of(values)}
        only = next(iter(values.values()))
        return {"outputs": only if len(values) == 1 else values}

    def _signature(self, name):
        signatures = self._loaded.signatures
        if name not in signatures:
            raise RequestError(
                BAD_REQUEST,
                f"There is no signature {name!r}. Expected one of "
                f"{sorted(signatures)}.",
            )
        return signatures[name]


def columns_of(instances, specs):
    """Returns a batch of each input, from a list of examples."""
    if not isinstance(instances, list) or not instances:
        raise RequestError(
            BAD_REQUEST, 'Expected "instances" to be a list of examples.'
        )
    rows = [named(instance, specs) for instance in instances]
    return {name: [row[name] for row in rows] for name in specs}


def named(values, specs):
    """Returns values by input names. A single input needs no name."""
    if len(specs) == 1 and not (
        isinstance(values, dict) and values.keys() == specs.keys()
    ):
        values = dict.fromkeys(specs, values)
    if not isinstance(values, dict) or values.keys() != specs.keys():
        received = sorted(values) if isinstance(values, dict) else values
        raise RequestError(
            BAD_REQUEST,
            f"Expected the inputs {sorted(specs)}. Received: {received}",
        )
    return values


def tensors_of(columns, specs):
    """Returns tensors for a signature."""
    tensors = {}
    for name, spec in specs.items():
        expected = f"{name!r} of shape {spec.shape} and dtype {spec.dtype.name}"
        try:
            tensor = tf.constant(decoded(columns[name]), spec.dtype)
        except (TypeError, ValueError) as error:
            message = f"Expected {expected}. Received something else: {error}"
            raise RequestError(BAD_REQUEST, message) from error
        if not spec.shape.is_compatible_with(tensor.shape):
            message = f"Expected {expected}. Received the shape {tensor.shape}."
            raise RequestError(BAD_REQUEST, message)
        tensors[name] = tensor
    return tensors


def decoded(value):
    """Returns a JSON value, with bytes in place of {"b64": ...}."""
    if isinstance(value, list):
        return [decoded(each) for each in value]
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"])
    return value


def to_json(name, tensor):
    """Returns a tensor as JSON. Names that end with '_bytes' contain bytes."""
    value = tensor.numpy()
    if not isinstance(value, bytes):
        value = value.tolist()
    return encoded(value, as_bytes=name.endswith("_bytes"))


def encoded(value, as_bytes):
    """Returns a JSON value, with text or {"b64": ...} in place of bytes."""
    if isinstance(value, list):
        return [encoded(each, as_bytes) for each in value]
    if not isinstance(value, bytes):
        return value
    if as_bytes:
        return {"b64": base64.b64encode(value).decode()}
    return value.decode(errors="replace")


def rows_of(values):
    """Returns a list with the prediction of each example, from batches."""
    if len(values) == 1:
        return next(iter(values.values()))
    try:
        rows = list(zip(*values.values(), strict=True))
    except (TypeError, ValueError) as error:
        raise RequestError(
            BAD_REQUEST,
            f"Not every output of {sorted(values)} has one value for each "
            'example: ask with "inputs" in place of "instances".',
        ) from error
    return [dict(zip(values, row, strict=True)) for row in rows]


class Server(http.server.ThreadingHTTPServer):
    """Accepts only local requests. `port` 0 selects a free port."""

    def __init__(self, port, name, model):
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model
        version = rf"(?:/versions/{model.version})?"
        self.paths = re.compile(
            rf"/v1/models/{re.escape(name)}{version}(?P<verb>:\w+)?"
        )


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self):
        self.answer(None, self.status)

    def do_POST(self):
        self.answer(":predict", self.predict)

    def status(self):
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": self.server.model.version, "state": "AVAILABLE"}
        return {"model_version_status": [{**version, "status": status}]}

    def predict(self):
        length = int(self.headers.get("Content-Length", 0))
        try:
            request = json.loads(self.rfile.read(length))
        except ValueError as error:
            message = f"The request is no JSON: {error}"
            raise RequestError(BAD_REQUEST, message) from error
        return self.server.model.predict(request)

    def answer(self, verb, respond):
        try:
            match = self.server.paths.fullmatch(self.path)
            if match is None or match["verb"] != verb:
                message = f"There is nothing at {self.path}."
                raise RequestError(NOT_FOUND, message)
            status, body = OK, respond()
        except RequestError as error:
            status, body = error.status, {"error": str(error)}
        except tf.errors.OpError as error:
            status, body = BAD_REQUEST, {"error": error.message}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Logs nothing, because the client uses the same terminal."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="the name in the URL")
    parser.add_argument(
        "--folder",
        required=True,
        type=pathlib.Path,
        help="what was passed to export_saved_model",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="by default any that is free"
    )
    options = parser.parse_args()
    server = Server(options.port, options.name, Model(options.folder))
    host, port = server.server_address
    print(f"http://{host}:{port}/v1/models/{options.name}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
