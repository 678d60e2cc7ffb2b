import time

import pytest

from keras_tpu_estimator.base.hosts.output_lines import Lines


def shown(*chunks, secs=0.0):
    """Returns the lines of chunks that arrive at equal intervals."""
    lines = Lines()
    texts = []
    for number, chunk in enumerate(chunks):
        texts += lines.add(chunk, number * secs)
    return [*texts, *(line for line in lines.end() if line)]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\n", b"c"], [b"ab", b"c"]),
        ([b"\n\na\n"], [b"", b"", b"a"]),
        ([b"a\r\nb\r\n"], [b"a", b"b"]),
        # The first update is shown at once, and others a second later.
        ([b" 1%\r", b" 2%\r", b" 3%\r"], [b" 1%", b" 3%"]),
        ([b"\r 1%", b"\r 2%", b"\r 3%", b"\n"], [b" 1%", b" 3%"]),
        ([b" 1%\r", b" 2%\r", b"done\n"], [b" 1%", b"done"]),
        # A line that was shown is not repeated at its end.
        ([b"a\r", b"\n", b"b\n"], [b"a", b"b"]),
        ([b"a\r\r", b"\r", b"\n"], [b"a"]),
        ([b"a\rb\rc\n"], [b"c"]),
    ],
)
def test_lines_and_updates(chunks, expected):
    assert shown(*chunks) == expected


def test_updates_are_shown_once_a_second():
    updates = [b"%d\r" % number for number in range(30)]
    assert shown(*updates, secs=0.25) == [b"%d" % n for n in (*range(0, 30, 4), 29)]


def test_last_update_waits_no_longer():
    lines = Lines()
    assert lines.wait_secs(0) is None
    assert [*lines.add(b"1\r", 5)] == [b"1"]
    assert lines.wait_secs(5) is None
    assert [*lines.add(b"2\r", 5.25)] == []
    assert lines.wait_secs(5.5) == 0.5
    assert [*lines.add(b"", 6)] == [b"2"]


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_time_is_linear(end):
    """Formerly, each chunk of a line copied the earlier ones."""

    def secs(count):
        start = time.process_time()
        assert shown(*[b"x" * 300 + end] * count)
        return time.process_time() - start

    assert secs(32_000) < 40 * max(secs(3_200), 0.005)
