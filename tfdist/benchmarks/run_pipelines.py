"""The benchmark of input: what is compared with what."""

from typing import Any

from tfdist.benchmarks.figures_input import input_figures
from tfdist.benchmarks.limits import check_at_least
from tfdist.benchmarks.start import Group, start


def run_input(
    cores: int,
    *,
    examples: int,
    image_size: int,
    batch_size: int,
    epochs: int,
    repeats: int,
) -> dict[str, Any]:
    """Measure `tfdist.data.tfrecord_dataset` beside other pipelines, on JPEG images.

    All of it is done by one process, in alternation: a pass through all images by each
    pipeline, then the same with a step of training for each batch.

    Args:
        cores: How many the process has.
        examples: How many images there are.
        image_size: Their height and width, at least 64.
        batch_size: Images of a step.
        epochs: Passes of the run for which a cache is reckoned.
        repeats: Timed passes of each pipeline.

    Returns:
        The figures; see `input_figures`.

    Raises:
        BenchmarkError: If the process has failed.
        ValueError: If an argument is impossible here.
    """
    check_at_least(1, cores=cores, examples=examples, batch_size=batch_size)
    check_at_least(1, epochs=epochs, repeats=repeats)
    # The steps have convolutions with strides.
    check_at_least(64, image_size=image_size)
    settings = {
        "examples": examples,
        "image_size": image_size,
        "batch_size": batch_size,
        "repeats": repeats,
    }
    [[report]] = start([Group("input", "input", settings, cores=cores)])
    figures = input_figures(examples, epochs, report["feeding"], report["training"])
    return {"cores": cores, "image_size": image_size, **figures}
