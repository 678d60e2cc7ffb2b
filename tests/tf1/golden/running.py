"""Functions that run a program with the original or with this package."""

import glob
import importlib
import itertools
import json
import os
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

PROGRAMS = (
    "bert_classifier",
    "bert_pretraining",
    "bert_spans",
    "gan",
    "mnist_cnn",
    "recurrent",
    "replaced_tokens",
    "resnet_lars",
    "wide_and_deep",
)
_PREDICTED = 5


def make_estimator(program, model_dir, use_tpu=False, **params):
    """Returns the estimator of a program.

    Args:
        program: The module of the program.
        model_dir: The directory of its files.
        use_tpu: Whether to use all cores.
        params: Overrides of its own settings.
    """
    config = tf.estimator.tpu.RunConfig(
        model_dir=model_dir,
        tf_random_seed=7,
        save_summary_steps=1,
        save_checkpoints_steps=program.STEPS,
        tpu_config=tf.estimator.tpu.TPUConfig(iterations_per_loop=1),
    )
    return tf.estimator.tpu.TPUEstimator(
        model_fn=program.model_fn,
        config=config,
        params=dict(program.PARAMS, model_dir=model_dir, **params),
        use_tpu=use_tpu,
        train_batch_size=program.BATCH,
        eval_batch_size=program.BATCH,
        predict_batch_size=program.BATCH,
    )


def run(name, model_dir, use_tpu=False, **params):
    """Trains, evaluates and predicts.

    Args:
        name: The name of the program.
        model_dir: An empty directory.
        use_tpu: Whether to use all cores.
        params: Overrides of the program's own settings.

    Returns:
        The losses of all steps, the results of an evaluation, some predictions
        and the values of all variables.
    """
    program = importlib.import_module(name)
    estimator = make_estimator(program, model_dir, use_tpu, **params)
    estimator.train(program.train_input_fn, steps=program.STEPS)
    results = estimator.evaluate(program.eval_input_fn, steps=4)
    predictions = estimator.predict(program.eval_input_fn)
    return {
        "losses": losses_in(model_dir),
        "metrics": {k: float(v) for k, v in results.items()},
        "predictions": stacked(predictions),
        "values": values_of(estimator),
    }


def write_golden(name, results):
    """Writes the results of a program under TensorFlow 1.15.5.

    Args:
        name: The name of the program and of the file.
        results: A function from an estimator to its results, as JSON values.
    """
    if tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    model_fn = importlib.import_module(name).model_fn
    made = results(tf.estimator.Estimator(model_fn, tempfile.mkdtemp()))
    golden = {"made_with": "tensorflow " + tf.__version__, **made}
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, name + ".json"), "w") as file:
        json.dump(golden, file, indent=1, sort_keys=True)
        file.write("\n")


def stacked(predictions):
    """Returns the first predictions, as an array for each name."""
    rows = list(itertools.islice(predictions, _PREDICTED))
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def values_of(estimator):
    """Returns the values of all variables in the latest checkpoint."""
    return {
        name: np.asarray(estimator.get_variable_value(name))
        for name in estimator.get_variable_names()
    }


def losses_in(model_dir):
    """Returns the losses in the event files of a training, by step."""
    tf.summary.FileWriterCache.clear()
    found = {}
    for path in glob.glob(os.path.join(model_dir, "events*")):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                # A scope can change the name.
                if value.tag in ("loss", "loss_1"):
                    found[event.step] = scalar(value)
    return [found[step] for step in sorted(found)]


def scalar(value):
    """Returns the number of a summary of either kind."""
    if value.HasField("tensor"):
        return float(tf.make_ndarray(value.tensor))
    return value.simple_value
