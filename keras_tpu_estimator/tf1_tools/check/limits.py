"""What TensorFlow has, and what still cannot be lifted to the devices.

`tests/tf1/test_tf1_limits.py` lifts them, and sees them refused.
"""

import ast
import dataclasses
import fnmatch


@dataclasses.dataclass(frozen=True)
class Limit:
    """Names that do not work in a `model_fn`.

    Attributes:
        names: The names, with "*" for any characters.
        advice: Why, and what to do.
    """

    names: tuple[str, ...]
    advice: str


LIMITS = (
    Limit(
        ("tf.py_func", "tf.py_function", "tf.numpy_function"),
        "Calls Python in the middle of a step. Do it in input_fn, metric_fn "
        "or host_call, which run on the host.",
    ),
    Limit(
        ("tf.Session", "tf.InteractiveSession"),
        "Nothing has a value while a model_fn builds its graph. Read "
        "checkpoints by tf.train.load_checkpoint, and values in a hook.",
    ),
    Limit(
        ("tf.placeholder",),
        "Nothing feeds it. Pass the value in `features` or in `params`.",
    ),
    Limit(
        (
            "tf.as_string",
            "tf.decode_raw",
            "tf.io.decode_raw",
            "tf.io.parse_*example",
            "tf.parse_*example",
            "tf.read_file",
            "tf.regex_replace",
            "tf.string_*",
            "tf.strings.*",
            "tf.substr",
        ),
        "Devices have no strings. Do it in input_fn.",
    ),
    Limit(
        ("tf.contrib.lookup.*", "tf.lookup.*"),
        "Devices have no tables. Look up in input_fn.",
    ),
    Limit(
        (
            "tf.random.gamma",
            "tf.random.poisson",
            "tf.random_gamma",
            "tf.random_poisson",
        ),
        "No seed repeats its numbers. Draw in input_fn.",
    ),
    Limit(
        (
            "tf.Print",
            "tf.bincount",
            "tf.histogram_fixed_width",
            "tf.image.combined_non_max_suppression",
            "tf.image.crop_and_resize",
            "tf.image.non_max_suppression_with_scores",
            "tf.image.resize_area",
            "tf.image.resize_bicubic",
            "tf.image.sample_distorted_bounding_box",
            "tf.nn.*_candidate_sampler",
            "tf.nn.ctc_*",
            "tf.nn.dilation2d",
            "tf.nn.embedding_lookup_sparse",
            "tf.nn.fractional_*_pool",
            "tf.nn.nce_loss",
            "tf.nn.sampled_softmax_loss",
            "tf.segment_*",
            "tf.setdiff1d",
            "tf.timestamp",
            "tf.unique_with_counts",
        ),
        "XLA does not have it. Do it in input_fn, or by other operations.",
    ),
    Limit(
        (
            "tf.*FIFOQueue",
            "tf.RandomShuffleQueue",
            "tf.TFRecordReader",
            "tf.TextLineReader",
            "tf.WholeFileReader",
            "tf.train.batch",
            "tf.train.batch_join",
            "tf.train.maybe_batch",
            "tf.train.*_input_producer",
            "tf.train.shuffle_batch*",
        ),
        "Queues are filled and read on the host. Do it in input_fn.",
    ),
)
_REFS = "Variables are resources. Leave `use_resource` out."


def advice_on(name: str) -> str:
    """Why a name does not work in a `model_fn`, and what to do.

    Args:
        name: Such as "tf.py_func".

    Returns:
        The advice, or "" if it works.

    Example:

    >>> advice_on("tf.lookup.StaticHashTable")
    'Devices have no tables. Look up in input_fn.'
    """
    for limit in LIMITS:
        if any(fnmatch.fnmatchcase(name, each) for each in limit.names):
            return limit.advice
    return ""


def advice_on_call(name: str, call: ast.Call) -> str:
    """The same of the arguments that a name is called with."""
    if name in ("tf.get_variable", "tf.Variable", "tf.variable_scope"):
        for keyword in call.keywords:
            is_false = (
                isinstance(keyword.value, ast.Constant)
                and keyword.value.value is False
            )
            if keyword.arg == "use_resource" and is_false:
                return _REFS
    return ""
