"""Batches without rows, as a filter of rows may leave: Keras trains through them."""

import numpy as np
import pytest

from tfdist.strategies.parameter_server.training import Training


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_a_batch_without_rows_is_a_step_as_in_keras(
    make_job, model, batch, consistency
):
    batches = [batch(0, 4), batch(4, 4), batch(4, 6)]
    start = [variable.numpy() for variable in model.variables]
    for each in batches:
        model.train_on_batch(*each)
    expected = model.get_weights()
    for variable, value in zip(model.variables, start, strict=True):
        variable.assign(value)
    for variable in model.optimizer.variables:
        if variable is not model.optimizer.learning_rate:
            variable.assign(np.zeros(variable.shape))
    job = make_job(consistency)
    training = Training(job, model, model.train_step, is_training=True)
    for each in batches:
        training(iter([each]))

    for one, right in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-5)
