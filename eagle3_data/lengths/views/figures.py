"""The figures of a length report: histograms, survival curves, the mixture by rows and by tokens.

Goes in: a `Drawable`. Comes out: matplotlib figures, PNG files for the card, SVG for the page. matplotlib is
imported only here and only when a figure is wanted. The same report gives the same bytes.
"""

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from eagle3_data.errors import UsageError
from eagle3_data.lengths.reading import MEASURES, WHOLE
from eagle3_data.lengths.statistics.censoring import Curve, band
from eagle3_data.lengths.statistics.distribution import Floats, LengthCounts
from eagle3_data.lengths.statistics.tail import TailModel
from eagle3_data.lengths.views import wording
from eagle3_data.lengths.views.tables import MEASURE_TITLES
from eagle3_data.run_folder import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; the last is for the whole.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#5F5F5F")
_BLACK: Final = "#222222"
_CUT: Final = "#C0392B"
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "eagle3-data",
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a $ in the name of a source is a $
}
_WIDTH: Final = 5.4  # inches; wider figures have letters too small for a phone
_BINS: Final = 48


class Drawable(Protocol):
    """What figures need of a `LengthReport`; its fields have their meaning there."""

    @property
    def values(self) -> dict[str, Any]: ...
    @property
    def counts(self) -> dict[tuple[str, str], LengthCounts]: ...
    @property
    def curves(self) -> dict[tuple[str, str], Curve]: ...
    @property
    def tails(self) -> dict[str, TailModel]: ...
    @property
    def sources(self) -> list[str]: ...


def figures(report: Drawable) -> "dict[str, Callable[[], Figure]]":
    """Return name -> a function that draws that figure; none where there are no records to draw.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("figures need matplotlib: pip install 'eagle3-data[plots]'") from error
    if not report.values[WHOLE]["rows"]:
        return {}
    drawn: dict[str, Callable[[], Figure]] = {
        "completion_histogram": lambda: histogram(report, "completion"),
        "prompt_histogram": lambda: histogram(report, "prompt"),
        "survival": lambda: survival(report),
        "mixture": lambda: mixture(report),
    }
    if report.values[WHOLE]["tokens"]["reasoning"]:
        drawn["reasoning_histogram"] = lambda: histogram(report, "reasoning")
    return drawn


def draw(report: Drawable, source: str | None, measure: str) -> "Figure":
    """Draw the lengths of one source, or of each.

    Raises:
        UsageError: no such source or measure, no rows of it, or matplotlib is not installed.
    """
    figures(report)
    if measure not in MEASURES:
        raise UsageError(f"{measure!r} is no measure; they are {', '.join(MEASURES)}")
    sources = report.sources if source is None else [source]
    if source is not None and source not in report.sources:
        raise UsageError(f"{source!r} is no source of these records; they hold {', '.join(report.sources)}")
    if not any(report.counts[name, measure].rows for name in sources):
        raise UsageError(f"no {measure} lengths of {source or 'any source'} to draw")
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure = histogram(report, measure, sources)
        # a notebook shows it whether or not pyplot, which takes over its display, was imported
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        setattr(figure, "_repr_png_", buffer.getvalue)  # noqa: B010
        return figure


def write_figures(report: Drawable, folder: Path) -> list[Path]:
    """Write every figure as `folder`/<name>.png, each whole or not at all, and return the paths."""
    drawn = figures(report)
    import matplotlib

    paths = []
    for name, draw in drawn.items():
        path = folder / f"{name}.png"
        with matplotlib.rc_context(_STYLE), atomic_file(path) as file:
            draw().savefig(file, format="png", dpi=150, metadata={"Software": None})
        paths.append(path)
    return paths


def svg_uris(report: Drawable) -> dict[str, str]:
    """Return name -> the figure as a data URI (SVG), to be shown without network."""
    drawn = figures(report)
    import matplotlib

    uris = {}
    for name, draw in drawn.items():
        buffer = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            draw().savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        uris[name] = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
    return uris


def _colours(report: Drawable) -> dict[str, str]:
    return {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(report.sources)}


def _panels(count: int, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, max(height * count, 1.8) + 0.5), layout="constrained")
    made = figure.subplots(count, 1, sharex=True, squeeze=False)
    return figure, list(made[:, 0])


def _log_axis(axes: "Axes", shortest: float, longest: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = max(shortest, 1), max(longest, 10) * 1.6
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    if high / low < 200:  # too few powers of ten to read lengths by
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _percent_axis(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y * 100:.3g} %"))


def histogram(report: Drawable, measure: str, among: Sequence[str] | None = None) -> "Figure":
    """Draw the recorded lengths of each source on a log scale, the cap marked and the cut rows hatched."""
    colours = _colours(report)
    wanted = report.sources if among is None else among
    sources = [name for name in wanted if report.counts[name, measure].rows]
    figure, panels = _panels(len(sources), 1.7)
    longest = max(report.counts[name, measure].extreme(-1) for name in sources)
    shortest = min(report.counts[name, measure].extreme(0) for name in sources)
    caps = [report.values["sources"][name]["advice"]["cap"] or 0 for name in sources]
    reach = max(longest, *caps) if measure == "completion" else longest
    edges = np.unique(np.geomspace(max(shortest, 1), max(longest, 10) + 1, _BINS).round())
    for axes, name in zip(panels, sources, strict=True):
        counts = report.counts[name, measure]
        advice = report.values["sources"][name]["advice"]
        _bars(axes, counts, _edges_at(edges, advice["cap"]), colours[name])
        _log_axis(axes, shortest, reach)
        _percent_axis(axes)
        cap = advice["cap"]
        cut = int(counts.recorded.sum() - counts.ended.sum())
        title = f"{name}: {wording.tokens(counts.rows)} rows"
        if measure == "completion" and cap is not None:
            # In the title, where no bar can be: beside the line it would lie on the bars of a source that is cut.
            share = wording.share(cut / counts.rows if counts.rows else None)
            title += f", {share} cut (cap {wording.tokens(cap)}, dashed)"
            axes.axvline(cap, color=_CUT, linestyle="--", linewidth=1.2)
            axes.axvspan(cap, axes.get_xlim()[1], color=_CUT, alpha=0.07, linewidth=0)
        axes.set_title(title)
        axes.set_ylabel("rows")
    panels[-1].set_xlabel(f"{MEASURE_TITLES[measure].lower()} (log scale)")
    return figure


def _edges_at(edges: Floats, cap: int | None) -> Floats:
    """Move a bin's edge to just after the cap, so that no bar reaches into what the cap hid."""
    if cap is None:
        return edges
    near = np.abs(np.log(edges / (cap + 1))) < 0.5 * np.log(edges[-1] / edges[-2])
    return np.unique(np.append(edges[~near], cap + 1))


def _bars(axes: "Axes", counts: LengthCounts, edges: Floats, colour: str) -> None:
    rows = max(counts.rows, 1)
    at = np.maximum(counts.values, 1)
    ended = np.histogram(at, edges, weights=counts.ended)[0] / rows
    cut = np.histogram(at, edges, weights=counts.recorded - counts.ended)[0] / rows
    axes.stairs(ended, edges, fill=True, color=colour)
    if cut.any():
        top = np.where(cut > 0, ended + cut, np.nan)
        axes.stairs(top, edges, baseline=ended, fill=True, facecolor="#F5D5D0", edgecolor=_CUT, hatch="////")


def survival(report: Drawable) -> "Figure":
    """Draw the share of completions longer than each length, with pointwise bands, as far as the caps let one see."""
    figure, (axes,) = _panels(1, 3.6)
    colours = _colours(report)
    shown = [*report.sources, WHOLE] if len(report.sources) > 1 else report.sources
    shortest, longest = np.inf, 10.0
    for name in shown:
        curve = report.curves[name, "completion"]
        colour = _BLACK if name == WHOLE else colours[name]
        if not curve.rows:
            continue
        at, share, low, high = _curve_points(curve)
        shortest, longest = min(shortest, float(at[min(1, len(at) - 1)])), max(longest, float(at[-1]))
        axes.step(at, share, where="post", color=colour, linewidth=2.0 if name == WHOLE else 1.4, label=name)
        axes.fill_between(at, low, high, step="post", color=colour, alpha=0.15, linewidth=0)
        until = curve.known_until()
        if until is not None:
            axes.plot(at[-1:], share[-1:], marker="o", markersize=5, color=colour, fillstyle="none")
        if name in report.tails and until is not None:
            tail = report.tails[name]
            beyond = np.geomspace(until, max(tail.trusted_until, until + 1), 60)
            axes.plot(beyond, tail.survival(beyond), linestyle=":", linewidth=1.3, color=colour)
            longest = max(longest, float(beyond[-1]))
    _log_axis(axes, shortest if np.isfinite(shortest) else 1, longest)
    _percent_axis(axes)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("completions longer than this")
    axes.set_xlabel("completion tokens (log scale)")
    axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_title("○ the caps end here      ···· tail model, as far as it can be trusted", fontsize=9)
    return figure


def _curve_points(curve: Curve) -> tuple[Floats, Floats, Floats, Floats]:
    until = curve.known_until()
    steps = curve.steps if until is None else curve.steps[curve.steps <= until]
    steps = steps[steps > 0]
    if len(steps) > 240:  # more than a screen shows
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, 240).astype(int))]
    at = np.unique(np.concatenate(([1], steps)))
    low, high = band(curve, at)
    return at.astype(float), curve.survival(at), low, high


def mixture(report: Drawable) -> "Figure":
    """Draw each source's share of the rows beside its share of the tokens."""
    figure, (axes,) = _panels(1, 1.7)
    colours = _colours(report)
    for place, key in ((1, "row_share"), (0, "token_share")):
        start = 0.0
        for name in report.sources:
            share = report.values["sources"][name][key] or 0
            axes.barh(place, share, left=start, color=colours[name], height=0.62, label=name if place else None)
            if share > 0.07:
                axes.text(
                    start + share / 2,
                    place,
                    f"{share * 100:.0f} %",
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=10,
                )
            start += share
    axes.set_yticks([1, 0], ["rows", "tokens"])
    axes.set_xlim(0, 1)
    axes.xaxis.set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    columns: Any = min(len(report.sources), 2)
    axes.legend(frameon=False, fontsize=9, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, 0.0))
    return figure
