"""The response time of `tfdist config`, which may be 150 ms."""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from script import run_script

from tfdist.benchmarks.figures import medians
from tfdist_cli.table import format_table

_TFDIST = "from tfdist_cli.main import main; exit(main())"
_BUILD = "config build -H node1:4,node2:4 --index 0"


def measure_all(args):
    """Start each command in turns."""
    python = [sys.executable, "-c"]
    built = subprocess.run(
        [*python, _TFDIST, *_BUILD.split()], capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory(prefix="tfdist-") as folder:
        file = Path(folder, "tf_config.json")
        file.write_bytes(built.stdout)
        commands = {"python -c pass": [*python, "pass"]}
        for words in ("config check FILE", "config show FILE", _BUILD):
            arguments = words.replace("FILE", str(file)).split()
            commands[f"tfdist {words}"] = [*python, _TFDIST, *arguments]
        seconds = {name: [] for name in commands}
        for _ in range(args.repeats):
            for name, command in commands.items():
                begin = perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
                seconds[name].append(perf_counter() - begin)
    figures = {name: 1000 * median for name, median in medians(seconds).items()}
    rows = [[name, f"{value:.0f}"] for name, value in figures.items()]
    return figures, format_table(["command", "ms"], rows)


if __name__ == "__main__":
    run_script(__doc__, [("--repeats", 31, "timed turns")], measure_all)
