"""Trains one model of handwritten digits on several hosts.

Run it in two processes of this machine, each of which acts as a host, with

    python -m keras_tpu_estimator launch --processes 2 examples/many_hosts.py

It takes less than a minute. The same script runs in one process or on hosts.
"""

import logging
import sys
import time

import digits
import jax
import tensorflow as tf

import keras_tpu_estimator as kte


def part_of_this_host(params, images, labels):
    """Returns the images of this host, for training and for evaluation."""
    context = params["context"]
    _, host, hosts, _ = context.current_input_fn_deployment()
    dataset = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    return dataset.shard(hosts, host)


def train_input_fn(params):
    images, labels = digits.load()
    dataset = part_of_this_host(
        params, images[: -digits.HELD_OUT], labels[: -digits.HELD_OUT]
    )
    dataset = dataset.shuffle(2000).repeat()
    # The size of this host's part of a batch.
    return dataset.batch(params["batch_size"], drop_remainder=True)


def held_out_input_fn(params):
    images, labels = digits.load()
    dataset = part_of_this_host(
        params, images[-digits.HELD_OUT :], labels[-digits.HELD_OUT :]
    )
    # Hosts may have different numbers of images. Each image counts once.
    return dataset.batch(params["batch_size"])


def main(steps=300, model_dir=None):
    """Trains, evaluates and predicts. Returns the results of the evaluation."""
    kte.initialize()
    estimator = digits.make_estimator(model_dir)

    start = time.perf_counter()
    estimator.train(train_input_fn, max_steps=steps)
    seconds = time.perf_counter() - start
    print(f"{steps} steps on {jax.process_count()} hosts in {seconds:.0f} s")

    # All hosts return the same results.
    result = estimator.evaluate(held_out_input_fn)
    print(f"accuracy on all held-out images: {result['accuracy']:.3f}")

    # Each host predicts its own images.
    rows = list(estimator.predict(held_out_input_fn))
    print(f"digits that this host has read: {len(rows)}")
    return result


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    main(*map(int, sys.argv[1:]))
