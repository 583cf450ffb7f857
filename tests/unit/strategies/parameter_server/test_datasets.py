import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.datasets import check_function, traced_dataset

CONTEXT = tf.distribute.InputContext(2, 1, 1)


def values(dataset):
    return [int(value) for value in dataset]


def test_the_function_is_traced_and_makes_the_dataset_of_a_worker():
    traced = traced_dataset(
        lambda context: tf.data.Dataset.range(6).shard(
            context.num_input_pipelines, context.input_pipeline_id
        ),
        CONTEXT,
        seed=1,
    )

    assert traced.structured_outputs.element_spec == tf.TensorSpec((), tf.int64)
    assert values(traced()) == [1, 3, 5]


@pytest.mark.parametrize("options", [{}, {"reshuffle_each_iteration": False}])
def test_what_is_made_again_is_shuffled_alike_in_each_epoch(options):
    traced = traced_dataset(
        lambda context: tf.data.Dataset.range(50).shuffle(50, **options),
        CONTEXT,
        seed=1,
    )
    first, again = (
        [values(iter(dataset)) for _ in range(3)] for dataset in (traced(), traced())
    )

    assert first == again
    assert (first[0] == first[1]) is bool(options)
    assert sorted(first[1]) == list(range(50))


def test_workers_shuffle_alike_so_that_parts_of_shuffled_data_are_parts():
    def function(context):
        shuffled = tf.data.Dataset.range(50).shuffle(50)
        return shuffled.shard(context.num_input_pipelines, context.input_pipeline_id)

    contexts = [tf.distribute.InputContext(2, i, 1) for i in range(2)]
    parts = [values(traced_dataset(function, one, seed=3)()) for one in contexts]

    assert sorted(parts[0] + parts[1]) == list(range(50))


@pytest.fixture
def seed():
    tf.random.set_seed(4)
    yield
    tf.random.set_seed(None)


@pytest.mark.usefixtures("seed")
def test_the_seed_of_the_user_holds():
    function = lambda context: tf.data.Dataset.range(50).shuffle(50)  # noqa: E731
    first, second = (
        values(traced_dataset(function, CONTEXT, seed=seed)()) for seed in (1, 2)
    )

    assert first == second


def test_a_dataset_of_the_chief_is_sent():
    whole = tf.data.Dataset.from_tensor_slices((np.arange(6), np.arange(6.0)))
    traced = traced_dataset(
        lambda context: whole.map(lambda x, y: x).shard(2, 0).shuffle(9), CONTEXT, 1
    )

    assert [c.dtype for c in traced.captured_inputs] == [tf.string]
    assert values(traced()) == values(traced())
    assert sorted(values(traced())) == [0, 2, 4]


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (tf.data.Dataset.range(9).shuffle(9, seed=1), "a shuffled dataset: each work"),
        (
            tf.data.Dataset.from_generator(
                lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int64)
            ),
            "PyFunc is stateful",
        ),
    ],
)
def test_a_dataset_of_the_chief_that_cannot_be_sent_is_refused(dataset, why):
    with pytest.raises(ValueError, match=f"cannot be sent to a worker.*{why}"):
        traced_dataset(lambda context: dataset.batch(2), CONTEXT, seed=1)


def test_a_function_must_return_a_dataset():
    with pytest.raises(TypeError, match=r"return a tf.data.Dataset. Received: list"):
        traced_dataset(lambda context: [1], CONTEXT, seed=1)


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b: 1, lambda *, a: 1, 3])
def test_a_function_must_take_the_context(function):
    with pytest.raises(TypeError, match=r"takes one argument, a tf.distribute.InputCo"):
        check_function(function)


@pytest.mark.parametrize("function", [lambda a: 1, lambda *a: 1, lambda a, b=1: 1])
def test_a_function_may_take_the_context_in_any_way(function):
    assert check_function(function) is None
