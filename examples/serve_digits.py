"""Serves handwritten digits: trains, exports, and sends requests to a server.

Run it with `python examples/serve_digits.py`. The server is a separate process
without JAX, with the requests of TensorFlow Serving. It takes less than a
minute.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import urllib.request

import digits
import numpy as np
import tensorflow as tf

import keras_tpu_estimator as kte

SERVER = pathlib.Path(__file__).with_name("rest_server.py")
# All requests have one size, because the server compiles the model for each size.
IMAGES_IN_A_REQUEST = 60


def export(estimator):
    """Exports a trained estimator. Returns the folder that a server loads."""
    folder = pathlib.Path(estimator.model_dir, "export")
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn(
        {"image": tf.TensorSpec([None, 8, 8, 1], tf.float32)}
    )
    estimator.export_saved_model(folder, receiver_fn)
    return folder


@contextlib.contextmanager
def running_server(folder):
    """Runs a server during a `with` block, which receives the model's URL."""
    server = subprocess.Popen(
        [sys.executable, SERVER, "--name", "digits", "--folder", folder],
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        # The server prints its address when the model is loaded.
        address = server.stdout.readline().strip()
        if not address:
            raise RuntimeError("The server has ended: see what it wrote above.")
        yield address
    finally:
        server.terminate()
        server.communicate()


def ask(address, images):
    """Sends images to a server. Returns a dict of outputs for each image."""
    body = json.dumps({"instances": [{"image": i.tolist()} for i in images]})
    request = urllib.request.Request(f"{address}:predict", body.encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["predictions"]


def main(steps=800, model_dir=None):
    """Trains, exports and serves. Returns the accuracy of the server."""
    estimator = digits.make_estimator(model_dir)
    estimator.train(digits.train_input_fn, max_steps=steps)
    folder = export(estimator)
    images, labels = (a[-digits.HELD_OUT :] for a in digits.load())
    with running_server(folder) as address:
        with urllib.request.urlopen(address, timeout=60) as response:
            print(json.load(response))
        answers = [
            answer
            for start in range(0, len(images), IMAGES_IN_A_REQUEST)
            for answer in ask(address, images[start : start + IMAGES_IN_A_REQUEST])
        ]
    check(answers, estimator.predict(digits.held_out_input_fn))
    right = np.mean([answer["digit"] for answer in answers] == labels)
    print(f"{len(answers)} answers, as `predict` gives them; {right:.1%} right")
    return right


def check(answers, predictions):
    """Compares a server's responses with predictions of JAX."""
    for answer, row in zip(answers, predictions, strict=True):
        if answer["digit"] != row["digit"] or not np.isclose(
            answer["probability"], row["probability"], rtol=1e-4
        ):
            raise RuntimeError(f"Expected {row}. The server says {answer}.")


if __name__ == "__main__":
    main()
