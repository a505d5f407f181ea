"""Bars as SVG on one page of HTML that asks nothing of any network. Standard library only."""
import html
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #66727f; --line: #d6dce2; --page: #ffffff; --one: #8894a0; --mp: #d08a2e; --pp: #2474b5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #97a3af; --line: #39434d; --page: #14191f; --one: #76828e; --mp: #dd9a40; --pp: #4a9ade; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { color: var(--soft); }
svg { width: 100%; height: auto; } text { fill: var(--ink); font-size: 13px; } .soft { fill: var(--soft); } line { stroke: var(--line); }
.one { fill: var(--one); } .mp { fill: var(--mp); } .pp { fill: var(--pp); }
polyline { fill: none; stroke-width: 1.5; } polyline.one { stroke: var(--one); fill: none; } polyline.mp { stroke: var(--mp); fill: none; }
polyline.pp { stroke: var(--pp); fill: none; }
"""
LEFT, WIDTH, BAR, RIGHT = 150, 560, 20, 180


def kind(row):
    return "one" if row["stages"] == 1 else "mp" if row["schedule"] == "naive" else "pp"


def bars(groups, unit):
    """groups: [(label, class, [(value, text)])], one bar for each value."""
    longest = max(value for _, _, values in groups for value, _ in values) or 1
    parts, y = [], 10
    for label, css, values in groups:
        parts.append(f'<text x="{LEFT - 10}" y="{y + len(values) * (BAR + 3) / 2 + 3:.0f}" text-anchor="end">{html.escape(label)}</text>')
        for value, text in values:
            width = WIDTH * value / longest
            parts.append(f'<rect class="{css}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<text class="soft" x="{LEFT + width + 6:.1f}" y="{y + BAR - 5}">{html.escape(text)}</text>')
            y += BAR + 3
        y += 12
    axis = f'<line x1="{LEFT}" y1="4" x2="{LEFT}" y2="{y - 6}"/>'
    return f'<svg viewBox="0 0 {LEFT + WIDTH + RIGHT} {y}" role="img" aria-label="{html.escape(unit)}">{axis}{"".join(parts)}</svg>'


def curves(summary):
    """The losses of all rows over the steps; they lie on each other when the engines agree."""
    values = [value for row in summary for value in row["losses"] if value == value]
    low, high = min(values), max(values)
    span, height = (high - low) or 1, 220
    parts = [f'<text class="soft" x="{LEFT - 8}" y="20" text-anchor="end">{high:.2f}</text>',
             f'<text class="soft" x="{LEFT - 8}" y="{height}" text-anchor="end">{low:.2f}</text>',
             f'<line x1="{LEFT}" y1="{height}" x2="{LEFT + WIDTH}" y2="{height}"/>', f'<line x1="{LEFT}" y1="12" x2="{LEFT}" y2="{height}"/>']
    for row in summary:
        last = max(len(row["losses"]) - 1, 1)
        points = " ".join(f"{LEFT + WIDTH * i / last:.1f},{height - (height - 15) * (v - low) / span:.1f}" for i, v in enumerate(row["losses"]) if v == v)
        parts.append(f'<polyline class="{kind(row)}" points="{points}"/>')
    parts.append(f'<text class="soft" x="{LEFT + WIDTH}" y="{height + 18}" text-anchor="end">step {len(summary[0]["losses"])}</text>')
    return f'<svg viewBox="0 0 {LEFT + WIDTH + RIGHT} {height + 26}" role="img" aria-label="loss over steps">{"".join(parts)}</svg>'


def write_page(path, summary, args, cores):
    """Writes time a step, memory of every rank and the losses of `summary` (mp_vs_pp.py)."""
    if not summary:
        return
    times = [(row["label"], kind(row), [(row["step_ms"], f"{row['step_ms']:.0f} ms" + (f", {row['speed_up']:.2f} x MP (ideal {row['theory']:.2f})" if row["speed_up"] else ""))])
             for row in summary]
    memory = [(row["label"], kind(row), [(mb, f"rank {rank}: {mb:.0f} MB") for rank, mb in enumerate(row["peak_rss_mb"])]) for row in summary]
    what = (f"BERT with {args.layers} layers of {args.hidden}, {summary[0]['parameters']:,} parameters, samples of {args.length} bytes; {args.steps} steps of batch {args.batch}, "
            f"{args.micro_batches} micro-batches in the pipeline. {cores} cores, {args.threads} thread{'s' if args.threads > 1 else ''} a rank, {'medians over ' + str(args.rounds) + ' rounds' if args.rounds > 1 else 'one round'}.")
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Model parallel and pipeline</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>
<h1>Naive model parallel (MP) and 1F1B pipeline (PP)</h1><p>{html.escape(what)}</p>
<h2>Time a step</h2>{bars(times, "milliseconds a step")}
<h2>Peak memory of each rank</h2>{bars(memory, "megabytes of each rank")}
<h2>Loss</h2><p>All rows train on the same samples; where only one curve is seen, they are the same.</p>{curves(summary)}
</body></html>
"""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
