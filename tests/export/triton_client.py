"""A script that sends requests with Triton's client library.

python triton_client.py http|grpc PORT NAME INPUTS.npz OUTPUTS.npz
"""

import importlib
import sys

import numpy as np


def ask(protocol, port, name, inputs):
    """The outputs of a model, as arrays by name."""
    library = importlib.import_module(f"tritonclient.{protocol}")
    dtypes = importlib.import_module("tritonclient.utils")
    client = library.InferenceServerClient(f"127.0.0.1:{port}")
    given = []
    for key, value in inputs.items():
        datatype = dtypes.np_to_triton_dtype(value.dtype)
        given.append(library.InferInput(key, value.shape, datatype))
        given[-1].set_data_from_numpy(value)
    answer = client.infer(name, given)
    response = answer.get_response()
    if protocol == "grpc":
        names = [output.name for output in response.outputs]
    else:
        names = [output["name"] for output in response["outputs"]]
    return {key: answer.as_numpy(key) for key in names}


if __name__ == "__main__":
    protocol, port, name, given, made = sys.argv[1:]
    with np.load(given) as inputs:
        outputs = ask(protocol, port, name, dict(inputs))
    np.savez(made, **outputs)
