"""Curves of losses as SVG on one page of HTML that asks nothing of any network. Standard library only."""
import html
import statistics
from pathlib import Path

from chart import STYLE

COLORS = ["#2474b5", "#d08a2e", "#3c8f4d", "#b5423c", "#7a5bb0", "#8a6d4f", "#c46aa5", "#76828e", "#a0a030", "#2aa5a5", "#e06c5a", "#5a7de0"]
LEFT, WIDTH, HEIGHT, TOP, LEGEND = 60, 620, 260, 12, 170


def smooth(values, window=20):
    return [statistics.mean(values[max(0, i - window + 1):i + 1]) for i in range(len(values))]


def figure(rows, x_of, unit):
    """rows: [(name, x values, y values)]; one line each, with a legend."""
    every_x = [x for _, xs, _ in rows for x in xs]
    every_y = [y for _, _, ys in rows for y in ys]
    longest, low, high = max(every_x), min(every_y), max(every_y)
    span = (high - low) or 1
    parts = [f'<line x1="{LEFT}" y1="{HEIGHT}" x2="{LEFT + WIDTH}" y2="{HEIGHT}"/>', f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{HEIGHT}"/>',
             f'<text class="soft" x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{high:.2f}</text>', f'<text class="soft" x="{LEFT - 6}" y="{HEIGHT}" text-anchor="end">{low:.2f}</text>',
             f'<text class="soft" x="{LEFT + WIDTH}" y="{HEIGHT + 18}" text-anchor="end">{x_of(longest)} {html.escape(unit)}</text>']
    for n, (name, xs, ys) in enumerate(rows):
        color = COLORS[n % len(COLORS)]
        keep = max(1, len(xs) // 300)
        points = " ".join(f"{LEFT + WIDTH * x / longest:.1f},{HEIGHT - (HEIGHT - TOP) * (y - low) / span:.1f}" for x, y in list(zip(xs, ys))[::keep])
        parts.append(f'<polyline points="{points}" style="stroke:{color}"/>')
        parts.append(f'<rect x="{LEFT + WIDTH + 16}" y="{TOP + 20 * n}" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{LEFT + WIDTH + 34}" y="{TOP + 20 * n + 11}">{html.escape(name)}</text>')
    height = max(HEIGHT + 26, TOP + 20 * len(rows) + 10)
    return f'<svg viewBox="0 0 {LEFT + WIDTH + LEGEND} {height}" role="img" aria-label="loss over {html.escape(unit)}">{"".join(parts)}</svg>'


def write_page(path, title, tables):
    """tables: heading -> rows with "way", "losses" and "times" (seconds at the end of each step)."""
    if not tables:
        return
    body = []
    for label, rows in tables.items():
        curves = [(row["way"], smooth(row["losses"]), row["times"]) for row in rows]
        body.append(f"<h2>{html.escape(label)}</h2>")
        body.append("<p>Loss after equal steps</p>" + figure([(name, range(1, len(ys) + 1), ys) for name, ys, _ in curves], lambda x: f"{x}", "steps"))
        body.append("<p>Loss after equal time</p>" + figure([(name, times, ys) for name, ys, times in curves], lambda x: f"{x:.0f}", "seconds"))
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>{"".join(body)}
</body></html>
"""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
