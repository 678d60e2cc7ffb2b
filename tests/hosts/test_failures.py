import pytest

from keras_tpu_estimator.base.hosts.failures import Failure


def failed(host, error=None, subject="train"):
    return Failure.from_error(host, subject, error or ValueError("no"))


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (
            TypeError("a hook is wrong\nin detail"),
            "Host 1 has failed in train: TypeError: a hook is wrong",
            1,
        ),
        (
            KeyboardInterrupt(),
            "Host 1 has failed in train: KeyboardInterrupt: ",
            130,
        ),
        (SystemExit(3), "Host 1 has left train with exit code 3.", 3),
        (SystemExit("what"), "Host 1 has left train with exit code 1.", 1),
        (SystemExit(), "Host 1 has left train with exit code 0.", 0),
    ],
)
def test_text_and_code_of_an_error(error, text, code):
    assert failed(1, error) == Failure(1, text, code)


def test_other_hosts_see_a_failure(member):
    one, two = (member(host).failures for host in range(2))
    assert not two.of_others()
    one.publish("train/1", failed(0))
    assert two.of_others() == [failed(0)]
    assert not one.of_others()


def test_failure_of_all_hosts_ends_none(member, store):
    three = [member(host, count=3).failures for host in range(3)]
    three[0].publish("train/1", failed(0))
    three[1].publish("train/1", failed(1, KeyError("another")))
    assert [len(each.of_others()) for each in three] == [0, 0, 2]
    three[2].publish("train/1", failed(2))
    assert not three[1].of_others()
    # It is deleted, and not reported a second time.
    assert not store.values
    assert [each.of_others() for each in three] == [[], [], []]


def test_failures_belong_to_one_call(member):
    one, two = (member(host).failures for host in range(2))
    one.publish("train/1", failed(0))
    two.publish("train/2", failed(1))
    two.publish("evaluate/1", failed(1, subject="evaluate"))
    assert one.of_others() == [failed(1), failed(1, subject="evaluate")]
    assert two.of_others() == [failed(0)]
