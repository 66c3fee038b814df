"""`python -m benchmarks [NAME …]`: measure, print a table, write results.json and, where matplotlib is, a plot."""

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks import report, suite

HERE = Path(__file__).parent


def main() -> None:
    arguments = _arguments()
    console = Console()
    run = suite.Run(
        wanted=frozenset(arguments.names or report.TARGETS),
        scale=arguments.scale,
        repeat=arguments.repeat,
        say=lambda what: console.print(f"… {what}", style="dim"),
    )
    results = suite.measure(run)
    report.print_table(results, console)
    everything = report.write_json(results, arguments.output)
    if report.draw(everything, arguments.output.with_suffix(".png")):
        console.print(f"plot: {arguments.output.with_suffix('.png')}")
    console.print(f"results: {arguments.output}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=suite.__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *report.TARGETS], metavar="NAME", help="default: all of them")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the size that the targets are meant for")
    parser.add_argument("--repeat", type=int, default=2, help="turns of every contender; the best counts")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
