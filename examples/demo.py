"""Train the README's program on one process, then on two: how many times as fast?"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
COMMAND = Path(sys.executable).with_name("tfdist")


def train(processes, folder):
    """Return the examples per second and the loss of the last epoch."""
    file = folder / f"{processes}.jsonl"
    words = ["run", "-np", str(processes), "--metrics-json", file, folder / "train.py"]
    print(f"On {processes}:", flush=True)
    subprocess.run([COMMAND, *words], check=True)
    last = json.loads(file.read_text().splitlines()[-1])
    return last["examples_per_second"], last["logs"]["loss"]


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    program = re.search(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)[1]
    (folder / "train.py").write_text(program)
    (alone, loss), (both, same) = train(1, folder), train(2, folder)
print(
    f"Two processes were {both / alone:.2f} times as fast as one ({both:,.0f} and "
    f"{alone:,.0f} examples per second); loss {same:.4f} and {loss:.4f}."
)
