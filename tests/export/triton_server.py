"""A script that runs Triton Inference Server with SavedModels.

    python triton_server.py HTTP_PORT GRPC_PORT NAME=EXPORT ...

It follows the documentation of NVIDIA's PyTriton, for an environment with only
TensorFlow and PyTriton. It prints "ready", and ends with its input.
"""

import sys

import tensorflow as tf
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def tensors(specs):
    """Triton's description of inputs or outputs."""
    return [
        Tensor(
            name=name,
            dtype=spec.dtype.as_numpy_dtype,
            shape=[-1 if size is None else size for size in spec.shape],
        )
        for name, spec in specs.items()
    ]


def bind(triton, name, folder):
    """Makes Triton answer with a SavedModel's default signature."""
    model = tf.saved_model.load(folder, tags=["serve"])
    predict = model.signatures["serving_default"]

    def infer(requests):
        return [
            {
                name: value.numpy()
                for name, value in predict(
                    **{n: tf.constant(v) for n, v in request.data.items()}
                ).items()
            }
            for request in requests
        ]

    triton.bind(
        model_name=name,
        infer_func=infer,
        inputs=tensors(predict.structured_input_signature[1]),
        outputs=tensors(predict.structured_outputs),
        config=ModelConfig(batching=False),
    )


if __name__ == "__main__":
    http, grpc, *exports = sys.argv[1:]
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(http),
        grpc_address="127.0.0.1",
        grpc_port=int(grpc),
        allow_metrics=False,
    )
    with Triton(config=config) as server:
        for export in exports:
            bind(server, *export.split("=", 1))
        server.run()
        print("ready", flush=True)
        sys.stdin.read()
