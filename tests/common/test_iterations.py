import dataclasses

import numpy as np
import pytest

from keras_tpu_estimator.api.config.tpu_config import IterationsPerLoop


@pytest.mark.parametrize(
    ("raw", "value", "unit"),
    [
        (1, 1, "count"),
        ("1", 1, "count"),
        (123, 123, "count"),
        (np.int64(7), 7, "count"),
        ("10s", 10, "seconds"),
        ("300s", 300, "seconds"),
        ("60m", 3600, "seconds"),
        ("1h", 3600, "seconds"),
        ("1000m", 60000, "seconds"),
    ],
)
def test_parse_reads_counts_and_durations(raw, value, unit):
    assert IterationsPerLoop.parse(raw) == IterationsPerLoop(value, unit)


@pytest.mark.parametrize(
    "raw",
    [
        0,
        "0",
        "0s",
        -1,
        "-1",
        "-1h",
        "+1",
        "012",
        "01",
        "01m",
        1.5,
        1.0,
        "1.5s",
        True,
        False,
        None,
        "",
        "s",
        "5|",
        "5ms",
        "5S",
        "5 s",
        " 5",
        "5\n",
        "5s|",
        "5d",
        "1_000",
        "1e3",
        "\u0665",
        b"5",
        [5],
    ],
)
def test_parse_refuses_other_values(raw):
    with pytest.raises(ValueError) as caught:
        IterationsPerLoop.parse(raw)
    message = str(caught.value)
    assert "must be positive" in message
    assert "'30s', '5m' or '1h'" in message
    assert f"Received: {raw!r}. Pass 1 or more" in message


@pytest.mark.parametrize(
    ("value", "unit", "exception", "message"),
    [
        (0, "count", ValueError, "positive. Received: 0. Pass 1 or more"),
        (2.5, "count", TypeError, "must be an int. Received: 2.5 of type fl"),
        (True, "count", TypeError, "must be an int. Received: True"),
        (
            5,
            "minutes",
            ValueError,
            "'seconds'. Received: 'minutes'. Use .*parse",
        ),
    ],
)
def test_record_validates_itself(value, unit, exception, message):
    with pytest.raises(exception, match=message):
        IterationsPerLoop(value, unit)


def test_record_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        IterationsPerLoop(1, "count").value = 2
