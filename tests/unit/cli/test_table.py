"""Tables in plain text."""

import pytest

from tfdist_cli.table import format_table


def test_columns_are_as_wide_as_their_widest_cell():
    assert format_table(["a", "long name"], [["wide cell", "1"], ["b", "22"]]) == (
        "| a         | long name |\n"
        "| :-------- | --------: |\n"
        "| wide cell |         1 |\n"
        "| b         |        22 |"
    )


def test_rows_have_as_many_cells_as_the_header():
    with pytest.raises(ValueError, match="shorter"):
        format_table(["a", "b"], [["1"]])


def test_words_go_to_the_left():
    table = format_table(["a", "word"], [["1", "x"], ["22", "long one"]], numbers=False)

    assert table == (
        "| a  | word     |\n| :- | :------- |\n| 1  | x        |\n| 22 | long one |"
    )
