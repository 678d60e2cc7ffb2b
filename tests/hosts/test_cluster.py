import dataclasses

import pytest

from keras_tpu_estimator.base.hosts.cluster import Cluster


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1:1", "localhost:65535", "a.b-c.svc:80", "[fe80::1]:8476"],
)
def test_addresses(address):
    assert Cluster(address, 2, 0).coordinator_address == address


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "10.0.0.1:",
        ":80",
        "",
        "a:b",
        "a:0",
        "a:65536",
        "a:99999",
        "http://a:80",
        "fe80::1:8476",
        "a b:80",
    ],
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises(ValueError, match="host:port, without .* '10.0.0.1:84"):
        Cluster(address, 2, 0)


@pytest.mark.parametrize(
    ("values", "exception", "message"),
    [
        ((None, 2, 0), TypeError, "host:port. Received: None of type None"),
        (("a:1", 0, 0), ValueError, "`num_processes` must be positive"),
        (("a:1", 2, -1), ValueError, "`process_id` must be zero or positive"),
        (("a:1", 2, 2), ValueError, "`process_id` .* 0 to 1, .* Received: 2."),
        ((None, 1, 1), ValueError, "`process_id` .* 0 to 0, .* Received: 1."),
        (("a:1", "2", 0), TypeError, "`num_processes` must be an int"),
        (("a:1", 2, True), TypeError, "`process_id` must be an int"),
    ],
)
def test_contradictory_settings_are_refused(values, exception, message):
    with pytest.raises(exception, match=message):
        Cluster(*values)


def test_single_process_needs_no_address():
    assert Cluster("a:1", 1, 0) == Cluster()
    assert dataclasses.astuple(Cluster()) == (None, 1, 0, None)
