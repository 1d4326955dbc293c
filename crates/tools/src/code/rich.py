# What `kernel.py` needs only for values that are more than text: compiled when the first of them is shown.
import base64, io, math, sys

POINTS, ROWS, COLUMNS = 1_000, 50, 50


def scalar(value):
    """A value as JSON has it."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    return clean(value, 500)


def values(data):
    """Numbers, texts and times of an array, and how many there are."""
    import numpy

    if isinstance(data, numpy.ma.MaskedArray):
        data = data.filled(numpy.nan) if data.dtype.kind == "f" else data.data
    array = numpy.asarray(data).ravel()
    head = array[:POINTS]
    if head.dtype.kind == "M":
        head = numpy.datetime_as_string(head)
    return [scalar(value) for value in head.tolist()]


def series(kind, label, **data):
    label = "" if label is None else str(label)
    found = {"type": kind, "label": None if label.startswith("_") or not label else clean(label, 500)}
    totals = [len(value) for value in data.values() if hasattr(value, "__len__")]
    found.update({name: values(value) for name, value in data.items()})
    if totals and max(totals) > POINTS:
        found["total"] = max(totals)
    return found


def names_of(axis):
    """What stands at the positions of an axis of names."""
    from matplotlib.ticker import FixedFormatter, FixedLocator

    mapping = getattr(getattr(axis, "units", None), "_mapping", None)
    if mapping:
        return {float(position): str(name) for name, position in mapping.items()}
    formatter, locator = axis.get_major_formatter(), axis.get_major_locator()
    if isinstance(formatter, FixedFormatter) and isinstance(locator, FixedLocator):
        return {float(at): str(name) for at, name in zip(locator.locs, formatter.seq)}
    return {}


def bars(ax, container):
    across = getattr(container, "orientation", "vertical") == "horizontal"
    names = names_of(ax.yaxis if across else ax.xaxis)
    places, sizes, starts = [], [], []
    for bar in container.patches:
        middle = bar.get_y() + bar.get_height() / 2 if across else bar.get_x() + bar.get_width() / 2
        left = bar.get_y() if across else bar.get_x()
        places.append(names.get(round(float(middle), 9), names.get(round(float(left), 9), float(middle))))
        sizes.append(float(bar.get_width() if across else bar.get_height()))
        starts.append(float(bar.get_x() if across else bar.get_y()))
    found = series("bar", container.get_label(), x=places, y=sizes)
    found["horizontal"] = across
    if any(starts):
        found["start"] = [scalar(start) for start in starts[:POINTS]]
    return found


def plot(ax):
    found, used = [], set()
    for kind, artists, data in getattr(ax, "_toolhost", ()):
        used.update(id(artist) for artist in artists)
        found.append(series(kind, **data))
    for container in ax.containers:
        if hasattr(container, "patches") and id(container) not in used and len(container.patches):
            found.append(bars(ax, container))
    for line in ax.get_lines():
        if id(line) in used or not len(line.get_xdata()):
            continue
        kind = "scatter" if line.get_linestyle() in ("None", "", " ") else "line"
        found.append(series(kind, line.get_label(), x=line.get_xdata(orig=True), y=line.get_ydata(orig=True)))
    for points in ax.collections:
        if type(points).__name__ == "PathCollection" and id(points) not in used and len(points.get_offsets()):
            offsets = points.get_offsets()
            x_names, y_names = names_of(ax.xaxis), names_of(ax.yaxis)
            one = series("scatter", points.get_label(), x=offsets[:, 0], y=offsets[:, 1])
            one["x"] = [x_names.get(at, at) for at in one["x"]]
            one["y"] = [y_names.get(at, at) for at in one["y"]]
            found.append(one)
    for image in ax.get_images():
        rows, columns = image.get_array().shape[:2]
        found.append({"type": "image", "label": None, "rows": rows, "columns": columns})
    if not found:
        return None
    kinds = {one["type"] for one in found}
    return {
        "type": kinds.pop() if len(kinds) == 1 else "mixed",
        "title": clean(ax.get_title(), 500), "x_label": clean(ax.get_xlabel(), 500), "y_label": clean(ax.get_ylabel(), 500),
        "x_scale": ax.get_xscale(), "y_scale": ax.get_yscale(), "series": found[:50],
    }


def picture(figure):
    """A figure small enough to be shown, or as it is when it cannot be made so."""
    first = None
    for scale in (1.0, 0.6, 0.3):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=figure.dpi * scale, bbox_inches="tight")
        data = buffer.getvalue()
        if len(data) <= PICTURE:
            return "image/png", data
        first = first or data
    return "image/png", first


def of_figure(figure):
    found = [picture(figure)]
    try:
        plots = [one for one in (plot(ax) for ax in figure.axes) if one]
    except Exception:
        plots = []
    if plots:
        title = getattr(figure, "_suptitle", None)
        chart = {"title": clean(title.get_text(), 500) if title else "", "plots": plots[:20]}
        found.append({"type": "json", "mime_type": "application/vnd.toolhost.chart+json", "json": chart})
    return found


def take_figures(pyplot, current):
    """Shows the open figures and closes them."""
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        if figure.axes or figure.texts:
            for block in of_figure(figure):
                current[0].add(block)
        pyplot.close(figure)


def attach(pyplot, current):
    """Makes `show` show, and notes the data of what a figure does not keep."""
    axes = sys.modules["matplotlib.axes"].Axes

    def show(*_, **__):
        take_figures(pyplot, current)

    pyplot.show = show
    draw_hist, draw_pie, draw_box = axes.hist, axes.pie, axes.bxp

    def note(ax, kind, artists, **data):
        ax.__dict__.setdefault("_toolhost", []).append((kind, artists, data))

    def hist(self, *args, **kwargs):
        counts, edges, patches = draw_hist(self, *args, **kwargs)
        several = len(counts) and hasattr(counts[0], "__len__")
        for one, artists in zip(counts if several else [counts], patches if several else [patches]):
            label = artists.get_label() if hasattr(artists, "get_label") else None
            note(self, "histogram", [artists], label=label, edges=edges, counts=one)
        return counts, edges, patches

    def pie(self, x, *args, **kwargs):
        drawn = draw_pie(self, x, *args, **kwargs)
        names = [patch.get_label() for patch in getattr(drawn, "wedges", None) or drawn[0]]
        note(self, "pie", [], label=None, labels=names, values=x)
        return drawn

    def bxp(self, stats, *args, **kwargs):
        stats = list(stats)
        drawn = draw_box(self, stats, *args, **kwargs)
        artists = [artist for several in drawn.values() for artist in several]
        for one in stats:
            quartiles = [one["whislo"], one["q1"], one["med"], one["q3"], one["whishi"]]
            note(self, "box", artists, label=one.get("label"), quartiles=quartiles, outliers=one.get("fliers", []))
        return drawn

    for wrapper, original in ((hist, draw_hist), (pie, draw_pie), (bxp, draw_box)):
        wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__ = original.__name__, original.__doc__, original
        setattr(axes, original.__name__, wrapper)


def of_table(frame):
    pandas = sys.modules["pandas"]
    part = frame.iloc[:ROWS, :COLUMNS]

    def cell(value):
        try:
            return None if value is pandas.NaT or pandas.isna(value) is True else scalar(value)
        except Exception:
            return scalar(value)

    table = {
        "columns": [{"name": clean(name, 500), "type": str(kind)} for name, kind in zip(part.columns, part.dtypes)],
        "index": [cell(value) if not isinstance(value, tuple) else clean(value, 500) for value in part.index],
        "rows": [[cell(value) for value in row] for row in part.itertuples(index=False, name=None)],
        "total_rows": int(frame.shape[0]), "total_columns": int(frame.shape[1]),
        "truncated": part.shape != frame.shape,
    }
    return {"type": "json", "mime_type": "application/vnd.toolhost.table+json", "json": table}


TEXTS = (
    ("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown"), ("_repr_svg_", "image/svg+xml"),
    ("_repr_latex_", "text/latex"),
)
PICTURES = (("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"))


def of_mime(mime_type, data):
    if mime_type.startswith("image/") and mime_type != "image/svg+xml":
        return mime_type, base64.b64decode(data) if isinstance(data, str) else bytes(data)
    if mime_type == "application/json":
        return {"type": "json", "mime_type": mime_type, "json": data}
    return mime_type, whole(data)


def blocks(value):
    """What a value shows beside its repr."""
    if isinstance(value, type):
        return []
    pandas, figures = sys.modules.get("pandas"), sys.modules.get("matplotlib.figure")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return [of_table(value)]
    if pandas is not None and isinstance(value, pandas.Series):
        return [of_table(value.to_frame())]
    if figures is not None and isinstance(value, figures.Figure):
        pyplot = sys.modules.get("matplotlib.pyplot")
        # One that pyplot holds is shown with the others at the end.
        return [] if pyplot is not None and pyplot.fignum_exists(getattr(value, "number", -1)) else of_figure(value)
    found = []
    bundle = method(value, "_repr_mimebundle_")
    if bundle is not None:
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        found = [of_mime(mime_type, data) for mime_type, data in bundle.items() if mime_type != "text/plain"]
    for name, mime_type in TEXTS + PICTURES + (("_repr_json_", "application/json"),):
        data = None if bundle is not None else method(value, name)
        if data is not None:
            found.append(of_mime(mime_type, data[0] if isinstance(data, tuple) else data))
    return found


def method(value, name):
    if not callable(getattr(type(value), name, None)):
        return None
    try:
        return getattr(value, name)()
    except Exception:
        return None
