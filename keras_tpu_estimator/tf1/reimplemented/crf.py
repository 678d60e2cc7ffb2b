"""Losses and scores of sequences: `tf.contrib.crf` and `tf.contrib.seq2seq`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def crf_unary_score(tag_indices: Any, sequence_lengths: Any, inputs: Any) -> Any:
    """Returns the sum of the potentials of tags of each sequence.

    Args:
        tag_indices: `[batch, time]`.
        sequence_lengths: `[batch]`.
        inputs: Potentials, `[batch, time, tags]`.
    """
    tags = tf.one_hot(tag_indices, tf.shape(inputs)[2], dtype=inputs.dtype)
    used = _mask(sequence_lengths, inputs)
    return tf.reduce_sum(tf.reduce_sum(inputs * tags, 2) * used, 1)


def crf_binary_score(
    tag_indices: Any, sequence_lengths: Any, transition_params: Any
) -> Any:
    """Returns the sum of the transition scores of tags of each sequence.

    Args:
        tag_indices: `[batch, time]`.
        sequence_lengths: `[batch]`.
        transition_params: `[tags, tags]`.
    """
    pairs = tf.stack([tag_indices[:, :-1], tag_indices[:, 1:]], 2)
    scores = tf.gather_nd(transition_params, pairs)
    return tf.reduce_sum(scores * _mask(sequence_lengths, tag_indices)[:, 1:], 1)


def crf_sequence_score(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any
) -> Any:
    """Returns the score of tags of each sequence.

    Args:
        inputs: Potentials, `[batch, time, tags]`.
        tag_indices: `[batch, time]`.
        sequence_lengths: `[batch]`.
        transition_params: `[tags, tags]`.
    """
    return crf_unary_score(tag_indices, sequence_lengths, inputs) + crf_binary_score(
        tag_indices, sequence_lengths, transition_params
    )


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """Returns the log-sum-exp of the scores of all tag sequences.

    Args:
        inputs: Potentials, `[batch, time, tags]`.
        sequence_lengths: `[batch]`.
        transition_params: `[tags, tags]`.
    """

    def step(before: Any, now: Any) -> Any:
        potentials, used = now
        every = before[:, :, tf.newaxis] + transition_params
        after = tf.reduce_logsumexp(every, 1) + potentials
        return tf.where_v2(used[:, tf.newaxis] > 0, after, before)

    last = tf.foldl(step, _after_first(inputs, sequence_lengths), inputs[:, 0])
    norm = tf.reduce_logsumexp(last, 1)
    return tf.where_v2(tf.equal(sequence_lengths, 0), 0 * norm, norm)


def crf_log_likelihood(
    inputs: Any,
    tag_indices: Any,
    sequence_lengths: Any,
    transition_params: Any = None,
) -> tuple[Any, Any]:
    """Returns the log-likelihood of tags of each sequence.

    Args:
        inputs: Potentials, `[batch, time, tags]`.
        tag_indices: `[batch, time]`.
        sequence_lengths: `[batch]`.
        transition_params: `[tags, tags]`. Defaults to the variable
            'transitions'.

    Returns:
        The log-likelihoods, and the transition scores.
    """
    if transition_params is None:
        tags = inputs.shape[2]
        transition_params = tf.get_variable("transitions", [tags, tags])
    score = crf_sequence_score(inputs, tag_indices, sequence_lengths, transition_params)
    norm = crf_log_norm(inputs, sequence_lengths, transition_params)
    return score - norm, transition_params


def crf_decode(
    potentials: Any, transition_params: Any, sequence_length: Any
) -> tuple[Any, Any]:
    """Returns the tags with the highest score of each sequence.

    Args:
        potentials: `[batch, time, tags]`.
        transition_params: `[tags, tags]`.
        sequence_length: `[batch]`.

    Returns:
        Integers of `[batch, time]`, 0 after the end, and the scores.
    """

    def forward(before: Any, now: Any) -> Any:
        scores, step = before[0], now
        every = scores[:, :, tf.newaxis] + transition_params
        used = step[1][:, tf.newaxis] > 0
        after = tf.reduce_max(every, 1) + step[0]
        best = tf.argmax(every, 1, output_type=tf.int32)
        return (
            tf.where_v2(used, after, scores),
            tf.where_v2(used, best, tf.range(tf.shape(best)[1])),
        )

    def backward(tags: Any, best: Any) -> Any:
        return tf.gather(best, tags, batch_dims=1, axis=1)

    first = potentials[:, 0]
    begin = (first, tf.zeros_like(first, tf.int32))
    elements = _after_first(potentials, sequence_length)
    scores, best = tf.scan(forward, elements, begin)
    scores = tf.concat([first[tf.newaxis], scores], 0)[-1]
    last = tf.argmax(scores, 1, output_type=tf.int32)
    tags = tf.scan(backward, best, last, reverse=True)
    tags = tf.transpose(tf.concat([tags, last[tf.newaxis]], 0))
    used = tf.cast(_mask(sequence_length, tags), tf.int32)
    return tags * used, tf.reduce_max(scores, 1)


def viterbi_decode(score: Any, transition_params: Any) -> tuple[list[int], float]:
    """Returns the tags of one sequence with the highest score, with NumPy.

    Args:
        score: Potentials, `[time, tags]`.
        transition_params: `[tags, tags]`.

    Returns:
        The tags, and the score.

    Example:

    >>> tags, score = viterbi_decode([[0.0, 1.5], [3.0, 0.0]], np.eye(2))
    >>> tags, float(score)
    ([1, 0], 4.5)
    """
    scores, best = np.asarray(score[0]), []
    for potentials in score[1:]:
        every = scores[:, np.newaxis] + transition_params
        best.append(every.argmax(0))
        scores = every.max(0) + potentials
    tags = [int(scores.argmax())]
    for pointers in reversed(best):
        tags.append(int(pointers[tags[-1]]))
    return tags[::-1], scores.max()


def _mask(lengths: Any, sequences: Any) -> Any:
    dtype = sequences.dtype
    kind = dtype if dtype.is_floating else tf.float32
    return tf.sequence_mask(lengths, tf.shape(sequences)[1], dtype=kind)


def _after_first(potentials: Any, lengths: Any) -> tuple[Any, Any]:
    """Returns potentials and whether they count, time first, without the first step."""
    used = tf.transpose(_mask(lengths, potentials))
    return tf.transpose(potentials, [1, 0, 2])[1:], used[1:]


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Returns the weighted cross entropy of sequences.

    Args:
        logits: `[batch, time, classes]`.
        targets: Integers of `[batch, time]`.
        weights: `[batch, time]`.
        average_across_timesteps: Whether to take the mean over time.
        average_across_batch: Whether to take the mean over examples.
        softmax_loss_function: A function of `labels` and `logits`. Defaults to the
            sparse softmax cross entropy.
        name: The name of the operation.

    Returns:
        A scalar. Without one of the means, `[batch]` or `[time]`, and without both,
        `[batch, time]`.
    """
    function = softmax_loss_function
    if function is None:
        function = tf.nn.sparse_softmax_cross_entropy_with_logits
    with tf.name_scope(name, "sequence_loss"):
        losses = function(labels=targets, logits=logits) * weights
        axes = [0] * average_across_batch + [1] * average_across_timesteps
        if not axes:
            return losses
        total = tf.reduce_sum(weights, axes) + 1e-12
        return tf.reduce_sum(losses, axes) / total
