"""Passes through pipelines, of a few small images."""

from tfdist.benchmarks.input import measure

PIPELINES = {"naive", "sequential", "tuned", "tfdist", "cached"}


def test_every_pipeline_is_timed_alone_and_with_steps(turn):
    report = measure(turn, examples=10, image_size=64, batch_size=4, repeats=2)

    assert report["feeding"].keys() == PIPELINES
    assert report["training"].keys() == {"none", *PIPELINES}
    for passes in report.values():
        assert all(len(seconds) == 2 for seconds in passes.values())
        assert all(min(seconds) > 0 for seconds in passes.values())
    assert turn.events == ["take", "pass on"]
