"""The page about private names has a row for each."""

from tests.upstream.make_page import PAGE, table


def test_page_has_all_private_names():
    """`python -m tests.upstream.make_page` writes the table."""
    assert table() in PAGE.read_text()
