"""What all experiments share: their command line, rows that are computed once, CSV and pictures.

An experiment is a list of points, each a dictionary of plain values with the same keys, and a
function that takes a point as keyword arguments and returns a dictionary of plain results. A row
of its CSV file is a point and its result. Points whose rows are in the CSV file already are not
computed again, so a full run that was interrupted is continued by running it once more.
"""

from __future__ import annotations

import argparse
import csv
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headfit as hf

Value = str | int | float | bool | None
Row = dict[str, Value]

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCRATCH = HERE.parent / "build" / "experiments"  # ignored by git
SIZES = ("tiny", "quick", "full")
MADE = (
    "key", "work", "version", "code", "when", "wall_seconds", "threads", "headfit", "cpu_level",
)  # fmt: skip
"""What a sweep records of every point, and the CSV file leaves out; it keeps ``cpu``."""


@dataclass(frozen=True)
class Settings:
    """Which plan to run, and where its files go.

    `out` gets the CSV file and the picture, `table` the durable results of a sweep; `processes`
    are the workers of `headfit.sweep.run`, and `scheduler` is the address of a cluster that
    computes in their place. With `only_draw` nothing is computed.
    """

    name: str
    size: str
    out: Path
    table: Path
    processes: int | None = None
    only_draw: bool = False
    scheduler: str | None = None

    @property
    def csv(self) -> Path:
        """The file of the rows."""
        return self.out / f"{self.name}.csv"

    def pick(self, **plans: Any) -> Any:
        """Return the plan of this size; a size without one of its own takes the next larger."""
        for size in SIZES[SIZES.index(self.size) :]:
            if size in plans:
                return plans[size]
        raise KeyError(self.size)


def settings(name: str, description: str, arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line of an experiment."""
    parser = argparse.ArgumentParser(description=description)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--tiny", action="store_const", const="tiny", dest="size",
                      help="seconds, to see that it runs")  # fmt: skip
    size.add_argument("--quick", action="store_const", const="quick", dest="size",
                      help="minutes on two cores (the default)")  # fmt: skip
    size.add_argument("--full", action="store_const", const="full", dest="size",
                      help="hours; continues from the committed results")  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder for the CSV file, the picture and the "
                        "table of the sweep; for --full experiments/results")  # fmt: skip
    parser.add_argument("--processes", type=int, help="worker processes; 0 computes in this one, "
                        "and the default is one for each core")  # fmt: skip
    parser.add_argument("--scheduler", metavar="ADDRESS", help="compute on the workers of this "
                        "cluster of Dask, with this folder on their path")  # fmt: skip
    parser.add_argument("--draw", action="store_true", help="compute nothing: draw the rows that "
                        "the CSV file has")  # fmt: skip
    given = parser.parse_args(arguments)
    chosen = given.size or "quick"
    scratch = SCRATCH / chosen
    out = given.out or (RESULTS if chosen == "full" else scratch)
    out.mkdir(parents=True, exist_ok=True)
    table = (given.out or scratch) / f"{name}.jsonl"
    table.parent.mkdir(parents=True, exist_ok=True)
    return Settings(name, chosen, out, table, given.processes, given.draw, given.scheduler)


class Rows:
    """The rows of an experiment, each computed once by a sweep and then kept in its CSV file."""

    def __init__(self, chosen: Settings, run: Callable[..., Mapping[str, Value]]) -> None:
        self.settings = chosen
        self.run = run
        self.names = [name for name in inspect.signature(run).parameters if name != "num_threads"]
        self.rows = read_csv(chosen.csv) if chosen.csv.exists() else []
        self._take_from_table()

    def of(self, points: Iterable[Mapping[str, Value]]) -> list[Row]:
        """Return the rows of these points, in their order, after computing those that lack."""
        wanted = [dict(p) for p in points]
        missing = {tuple(p.items()): p for p in wanted if self.find(p) is None}
        if missing:
            self._sweep(list(missing.values()))
        return [self[p] for p in wanted]

    def find(self, point: Mapping[str, Value]) -> Row | None:
        """Return the row of a point, or None."""
        return find(self.rows, point)

    def __getitem__(self, point: Mapping[str, Value]) -> Row:
        row = self.find(point)
        if row is None:
            raise KeyError(dict(point))
        return row

    def _sweep(self, points: Sequence[Row]) -> None:
        try:
            with cluster(self.settings.scheduler) as executor:
                swept = hf.sweep.run(
                    points, self.settings.table, function=self.run, executor=executor,
                    workers=self.settings.processes, num_threads=1, retry_failed=True,
                    progress=print,
                )  # fmt: skip
            if swept.failures:
                raise RuntimeError(f"{len(swept.failures)} points failed: {swept.failures[0]}")
        finally:
            self._take_from_table()

    def _take_from_table(self) -> None:
        """Add what the sweep has done, also before it was interrupted, to the CSV file."""
        if not self.settings.table.exists():
            return
        for row in hf.sweep.load(self.settings.table).rows:
            point = {name: row.get(name) for name in self.names}
            if self.find(point) is None:
                results = {n: v for n, v in row.items() if n not in (*point, *MADE, "cpu")}
                self.rows.append({**point, **results, "cpu": row["cpu"]})
        write_csv(self.settings.csv, self.rows)


@contextmanager
def cluster(scheduler: str | None) -> Iterator[Any]:
    """Yield the executor of a cluster whose workers can import the modules here; or None."""
    if scheduler is None:
        yield None
        return
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        yield client.get_executor()


def compute_and_draw(
    name: str,
    description: str,
    run: Callable[..., Mapping[str, Value]],
    compute: Callable[[Settings, Rows], list[Row] | None],
    draw: Callable[[Settings, list[Row]], object],
    arguments: Sequence[str] | None = None,
) -> list[Row]:
    """Run an experiment as its command line says, and return the rows that it drew.

    `compute` asks for the rows of the plan. `draw` gets those that it returns; or, when it returns
    None or does not run, all rows that there are.
    """
    chosen = settings(name, description, arguments)
    rows = Rows(chosen, run)
    asked = None if chosen.only_draw else compute(chosen, rows)
    drawn = rows.rows if asked is None else asked
    draw(chosen, drawn)
    return drawn


def find(rows: Iterable[Row], point: Mapping[str, Value]) -> Row | None:
    """Return the first row with all values of a point, or None."""
    for row in rows:
        if all(row.get(name) == value for name, value in point.items()):
            return row
    return None


def write_csv(path: Path, rows: Sequence[Mapping[str, Value]]) -> None:
    """Write rows, in one step, with the columns in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([as_text(row.get(name)) for name in columns])
    temporary.replace(path)


def read_csv(path: Path) -> list[Row]:
    """Read rows that `write_csv` wrote."""
    with path.open(newline="") as file:
        return [{n: as_value(t) for n, t in row.items()} for row in csv.DictReader(file)]


def as_text(value: Value) -> str:
    """Return a value as the CSV file has it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def as_value(text: str) -> Value:
    """Return the value that `as_text` wrote."""
    if text in ("", "yes", "no"):
        return {"": None, "yes": True, "no": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def rounded(value: float, digits: int = 4) -> float:
    """Return a number with few significant digits, for a small CSV file."""
    return float(f"{value:.{digits}g}")


def save(figure: Any, chosen: Settings, note: str = "", rows: Iterable[Row] = ()) -> Path:
    """Write a picture as SVG, with a note and the machine that computed its rows below it."""
    import matplotlib

    machines = sorted({str(row["cpu"]) for row in rows if row.get("cpu")}) or [
        hf.show_config().processor
    ]
    small = "   ".join(part for part in (note, "computed on " + ", ".join(machines)) if part)
    figure.supxlabel(small, fontsize=7, color="#555555", x=0.01, ha="left")
    path = chosen.out / f"{chosen.name}.svg"
    with matplotlib.rc_context({"svg.hashsalt": "headfit"}):
        figure.savefig(path, metadata={"Date": None}, facecolor="white")
    print(path)
    return path
