import pytest

from tfdist.cluster.node_list_text import NodeListText, Range, refuse


def test_names_come_in_pieces_with_their_positions():
    text = NodeListText("login,r[1-2]n[08,010-011]-ib", "node list")

    assert [*text.names()] == [
        (0, ["login"]),
        (
            6,
            [
                "r",
                (Range(range(1, 3), 1),),
                "n",
                (Range(range(8, 9), 2), Range(range(10, 12), 3)),
                "-ib",
            ],
        ),
    ]


def test_a_range_is_the_texts_of_its_numbers():
    numbers = Range(range(8, 11), 2)

    assert [*numbers] == ["08", "09", "10"]
    assert len(numbers) == 3
    assert numbers.most_characters == 2
    assert Range(range(8, 1001), 2).most_characters == 4


def test_a_range_that_nobody_could_hold_is_counted_all_the_same():
    assert len(Range(range(10**18), 1)) == 10**18


def test_nothing_is_checked_before_it_is_reached():
    names = NodeListText("n1,n[", "node list").names()

    assert next(names) == (0, ["n1"])
    with pytest.raises(ValueError, match="^node list has a bracket that never closes,"):
        next(names)


def test_a_place_in_the_list_is_refused():
    message = (
        "^hosts repeats a host, at character 4. Received: 'n1,n1'. Write it once.$"
    )
    with pytest.raises(ValueError, match=message):
        NodeListText("n1,n1", "hosts").refuse_at(3, "repeats a host", "Write it once.")


def test_a_long_text_is_not_shown_whole():
    refused = "x" * 201
    with pytest.raises(ValueError, match=f"^No. Received: '{'x' * 200}...'. Never.$"):
        refuse("No.", refused, "Never.")
