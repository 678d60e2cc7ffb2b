"""WAV files of sounds."""

import io
import wave

import numpy as np


def encode_wav(clip: np.ndarray, sample_rate: int) -> bytes:
    """Encodes a sound, 16 bits for each sample.

    Args:
        clip: int16 array of shape `[frames, channels]`.
        sample_rate: Frames per second.

    Returns:
        The contents of a WAV file.

    Example:

    >>> from keras_tpu_estimator.files.summary.wav import encode_wav
    >>> encode_wav(np.zeros((100, 1), np.int16), 8000)[:4]
    b'RIFF'
    """
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(clip.shape[1])
        writer.setsampwidth(2)
        writer.setframerate(sample_rate)
        writer.writeframes(clip.astype("<i2").tobytes())
    return file.getvalue()
