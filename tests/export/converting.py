"""A script that converts an export, and writes the outputs of the converted model.

    python converting.py TOOL EXPORT INPUTS.npz OUTPUTS.npz

It runs in a separate process, like a server.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np


def openvino(path, inputs):
    """Runs an export with OpenVINO, which has a frontend for SavedModels."""
    import openvino as ov

    # A CPU with bfloat16 support would use it.
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    model = ov.Core().compile_model(ov.convert_model(path), "CPU", options)
    results = model(inputs)
    return {
        name: results[output] for output in model.outputs for name in output.get_names()
    }


def onnx(path, inputs):
    """Converts with tf2onnx, and runs with onnxruntime."""
    import onnxruntime

    converted = pathlib.Path(path, "model.onnx")
    subprocess.run(
        [sys.executable, "-m", "tf2onnx.convert", "--opset", "18"]
        + ["--tag", "serve", "--saved-model", path, "--output", str(converted)],
        check=True,
        capture_output=True,
    )
    session = onnxruntime.InferenceSession(converted)
    names = [output.name for output in session.get_outputs()]
    values = session.run(
        names,
        {each.name: inputs[each.name] for each in session.get_inputs()},
    )
    return dict(zip(names, values, strict=True))


def tflite(path, inputs):
    """Converts with TensorFlow Lite's converter, and runs with LiteRT."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    converter = tf.lite.TFLiteConverter.from_saved_model(
        path, tags=["serve"], signature_keys=["serving_default"]
    )
    interpreter = Interpreter(model_content=converter.convert())
    return interpreter.get_signature_runner("serving_default")(**inputs)


def keras(path, inputs):
    """Runs an export as a Keras layer, without conversion."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    layer = keras.layers.TFSMLayer(path, call_endpoint="serving_default")
    ((name, value),) = inputs.items()
    model_input = keras.Input(value.shape[1:], name=name, dtype=value.dtype.name)
    model = keras.Model(model_input, layer(model_input))
    return model.predict(value, verbose=0)


TOOLS = {"openvino": openvino, "onnx": onnx, "tflite": tflite, "keras": keras}

if __name__ == "__main__":
    tool, path, given, made = sys.argv[1:]
    with np.load(given) as inputs:
        outputs = TOOLS[tool](path, dict(inputs))
    np.savez(made, **outputs)
