"""Names of topologies become boards, whose devices are those of libtpu."""

import pytest

from keras_tpu_estimator.planning import topologies
from keras_tpu_estimator.planning.chips import CHIPS
from keras_tpu_estimator.planning.topologies import TpuTopology


@pytest.mark.parametrize(
    ("name", "canonical", "cores", "hosts"),
    [
        ("v5e:4x4", "v5e:4x4", 16, 4),
        ("v5e-16", "v5e:4x4", 16, 4),
        ("v5litepod-16", "v5e:4x4", 16, 4),
        ("V5LitePod-16", "v5e:4x4", 16, 4),
        (" TPU v5 lite : 2x2", "v5e:2x2", 4, 1),
        ("v5e-1", "v5e:1x1", 1, 1),
        ("v5litepod-8", "v5e:2x4", 8, 1),
        ("v5e:16x16", "v5e:16x16", 256, 64),
        # Two TensorCores of a chip, which work as one.
        ("v4-8", "v4:2x2x1", 4, 1),
        ("v4-32", "v4:2x2x4", 16, 4),
        ("v4-128", "v4:4x4x4", 64, 16),
        ("v4-1024", "v4:8x8x8", 512, 128),
        ("v4:8x8x16", "v4:8x8x16", 1024, 256),
        ("v5p-8", "v5p:2x2x1", 4, 1),
        ("v5p:2x2x2", "v5p:2x2x2", 8, 2),
        ("v5p-12288", "v5p:16x16x24", 6144, 1536),
        ("v6e-4", "v6e:2x2", 4, 1),
        ("v6e:2x2", "v6e:2x2", 4, 1),
        # Two that are devices of their own.
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 8, 1),
        ("tpu7x-16", "tpu7x:2x2x2", 16, 2),
        ("Ironwood 2x2x1", "tpu7x:2x2x1", 8, 1),
    ],
)
def test_names_that_users_know(name, canonical, cores, hosts):
    board = topologies.parse(name)
    assert board.name == canonical
    assert board == topologies.parse(canonical)
    assert (board.num_cores, board.num_hosts) == (cores, hosts)


@pytest.mark.parametrize(
    "name",
    [
        "v4:2x2x1",
        "v4:2x2x4",
        "v5e:1x1",
        "v5e:2x4",
        "v5e:4x4",
        "v5p:2x2x2",
        "v6e:2x2",
        "tpu7x:2x2x2",
    ],
)
def test_the_devices_are_what_the_board_says(name):
    board = topologies.parse(name)
    machine = board.machine()
    assert machine.first.device_kind == board.chip.device_kind
    assert machine.platform == "tpu"
    assert len(machine.devices) == board.num_cores
    assert machine.num_hosts == board.num_hosts
    assert len(machine.own) == board.of_one_host().num_cores
    assert machine == board.machine()


@pytest.mark.parametrize("kind", CHIPS)
def test_libtpu_knows_the_smallest_and_the_largest_board(kind):
    shapes = topologies.shapes(kind)
    assert len(set(shapes)) == len(shapes)
    for shape in (shapes[0], shapes[4]):
        board = TpuTopology(CHIPS[kind], shape)
        assert len(board.machine().devices) == board.num_cores


def test_a_host_is_a_board_of_its_own():
    board = topologies.parse("v5e:4x4").of_one_host()
    assert board.name == "v5e:2x2"
    assert board.of_one_host() == board
    assert topologies.parse("v4-32").of_one_host().name == "v4:2x2x1"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5e:4x5", "Did you mean 'v5e:4x4'.* shapes 1x1, 2x2, 2x4"),
        ("v5e:8x4", "Did you mean 'v5e:4x8'"),
        ("v4-12", "Did you mean 'v4-(8|16)'.*number of TensorCores"),
        ("v5e-12", "Did you mean 'v5litepod-(8|16)'.*number of chips"),
        ("v4:2x2", "Did you mean 'v4:2x2x1'"),
        ("v6litepods-16", "Expected one of the shapes"),
        ("v5e", "Expected one of the shapes 1x1"),
        ("v5e:0x0", "Did you mean 'v5e:1x1'"),
        ("v9-8", "kinds v4, v5e, v5p, v6e, tpu7x"),
        ("", "kinds v4, v5e, v5p, v6e, tpu7x"),
        ("k80:1x8", "kinds v4, v5e, v5p, v6e, tpu7x"),
    ],
)
def test_other_names_are_refused_with_what_is_like_them(name, said):
    with pytest.raises(ValueError, match=f"no TPU topology {name!r}.*{said}"):
        topologies.parse(name)


def test_what_is_no_name_is_refused():
    with pytest.raises(TypeError, match="should be a string. Received: 16"):
        topologies.parse(16)


def test_a_board_of_no_such_shape_is_refused():
    with pytest.raises(ValueError, match="no v5e of 3x3 chips. Expected one"):
        TpuTopology(CHIPS["v5e"], (3, 3))
