"""Draws which folder of trireme/ includes which: boxes in rows by the longest path of includes below them.

Arrows are the transitive reduction: an include that follows from others is left out. One that skips rows goes through the
gaps between their boxes, together with all others of the same target. Headers of options and formulas may be included
against the order of the map; those includes are left out too. The same sources give the same bytes.
"""
import functools
import re
from collections import defaultdict
from math import fsum

TOP = "tools/trireme"
WIDTH, MARGIN = 900, 8
BOX, HEIGHT, STEP, GAP = 78, 36, 80, 5  # a box, the distance of rows, the least space between neighbours
CHANNEL = 4  # the width of an arrow that passes through a row
PORT = 7  # between the ends of two arrows at a box
STYLE = """
.core { fill: #dbe9fb; stroke: #4f7fb8 } .extension { fill: #fdebcb; stroke: #b98a3a } text { fill: #17202c }
path { fill: none; stroke: #8490a0; stroke-width: 1.2 } .head { fill: #8490a0; stroke: none } .legend { fill: #76808d }
@media (prefers-color-scheme: dark) {
  .core { fill: #1f3654; stroke: #6f9bd1 } .extension { fill: #4a3717; stroke: #c79a4b } text { fill: #e9eef5 } .legend { fill: #8b95a2 }
}"""


def includes(root, rows):
    """{folder: folders whose headers it includes}, without what includes against the order of the rows."""
    def named(folder):
        while folder not in rows and "/" in folder:
            folder = folder.rsplit("/", 1)[0]
        return folder

    found = {name: set() for name in (*rows, TOP)}
    place = {name: number for number, name in enumerate(found)}
    for path in sorted((root / "trireme").rglob("*")) + sorted((root / TOP).rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu"):
            continue
        here = path.parent.relative_to(root).as_posix()
        here = TOP if here == TOP else named(here.removeprefix("trireme/"))
        for there in re.findall(r"^#include <trireme/([\w/]+)/\w+\.h>", path.read_text(errors="replace"), re.M):
            if here in found and place[named(there)] < place[here]:
                found[here].add(named(there))
    return found


def reduced(below):
    """Without the includes that follow from others."""
    @functools.cache
    def reached(name):
        return frozenset(below[name]).union(*(reached(other) for other in below[name]))

    return {name: {other for other in those if not any(other in reached(one) for one in those)} for name, those in below.items()}


class Drawing:
    """A node is a folder, or (folder, row) where arrows to it pass through a row."""

    def __init__(self, root, rows):
        below = includes(root, rows)
        arrows = reduced(below)

        @functools.cache
        def height(name):
            return max((height(other) + 1 for other in below[name]), default=0)

        self.heights = {name: height(name) for name in below}
        self.rows = [[name for name in below if height(name) == row] for row in range(max(self.heights.values()) + 1)]
        self.edges = set()  # (upper node, lower node) of neighbouring rows
        for name, targets in arrows.items():
            for target in sorted(targets):
                upper = name
                for row in range(height(name) - 1, height(target), -1):
                    passed = (target, row)
                    if passed not in self.rows[row]:
                        self.rows[row].append(passed)
                    self.edges.add((upper, passed))
                    upper = passed
                self.edges.add((upper, target))
        self.up, self.down = defaultdict(list), defaultdict(list)
        for upper, lower in sorted(self.edges, key=str):
            self.down[upper].append(lower)
            self.up[lower].append(upper)
        self.order()
        self.spread()

    def crossings(self, rows):
        place = {node: number for row in rows for number, node in enumerate(row)}
        count = 0
        for row in rows:
            ends = [(place[upper], place[lower]) for upper in row for lower in self.down[upper]]
            count += sum((a - c) * (b - d) < 0 for index, (a, b) in enumerate(ends) for c, d in ends[:index])
        return count

    def order(self):
        """Neighbours in a row as their ends in the rows beside it (barycentres), then by swaps, while fewer arrows cross."""
        rows = [list(row) for row in self.rows]
        best, least = [list(row) for row in rows], self.crossings(rows)
        for sweep in range(24):
            upwards = sweep % 2 == 0
            for number in range(1, len(rows)) if upwards else range(len(rows) - 2, -1, -1):
                beside = rows[number - 1 if upwards else number + 1]
                place = {node: index / max(1, len(beside) - 1) for index, node in enumerate(beside)}
                ends = self.down if upwards else self.up
                was = {node: index / max(1, len(rows[number]) - 1) for index, node in enumerate(rows[number])}

                def middle(node):
                    found = [place[end] for end in ends[node] if end in place]
                    return fsum(found) / len(found) if found else was[node]

                rows[number].sort(key=middle)
            if self.crossings(rows) < least:
                best, least = [list(row) for row in rows], self.crossings(rows)
        better = True
        while better:
            better = False
            for row in best:
                for at in range(len(row)):
                    for to in range(len(row)):
                        row.insert(to, row.pop(at))
                        count = self.crossings(best)
                        if count < least:
                            least, better = count, True
                        else:
                            row.insert(at, row.pop(to))
        self.rows = best

    @staticmethod
    def width(node):
        return CHANNEL if isinstance(node, tuple) else BOX

    def spread(self):
        """Each node as near to the mean of its ends as the order and the widths of its row let it be."""
        self.x = {}
        for row in self.rows:
            for number, node in enumerate(row):
                self.x[node] = WIDTH * (number + 0.5) / len(row)
        for sweep in range(40):
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                wanted = []
                for node in row:
                    ends = [self.x[end] for end in self.up[node] + self.down[node]]
                    wanted.append(fsum(ends) / len(ends) if ends else self.x[node])
                self.place(row, wanted)

    def place(self, row, wanted):
        offsets = [0.0]
        for left, right in zip(row, row[1:]):
            offsets.append(offsets[-1] + (self.width(left) + self.width(right)) / 2 + GAP)
        blocks = []  # neighbours that touch: [sum of wanted places without offsets, number]
        for want, offset in zip(wanted, offsets):
            blocks.append([want - offset, 1])
            while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
                total, count = blocks.pop()
                blocks[-1][0] += total
                blocks[-1][1] += count
        least = MARGIN + self.width(row[0]) / 2
        most = WIDTH - MARGIN - self.width(row[-1]) / 2 - offsets[-1]
        starts = [min(max(total / count, least), most) for total, count in blocks for _ in range(count)]
        for node, start, offset in zip(row, starts, offsets):
            self.x[node] = round(start + offset, 1)

    def top(self, node):
        row = node[1] if isinstance(node, tuple) else self.heights[node]
        return MARGIN + STEP * (len(self.rows) - 1 - row)

    def port(self, node, end, ends):
        """Where the arrow between a node and one of its ends in the row above or below touches the node."""
        if isinstance(node, tuple):
            return self.x[node]
        ends = sorted(ends, key=lambda one: (self.x[one], str(one)))
        return round(self.x[node] + PORT * (ends.index(end) - (len(ends) - 1) / 2), 1)

    def svg(self, is_extension):
        height = MARGIN + STEP * (len(self.rows) - 1) + HEIGHT + 36
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
               'font-family="sans-serif" font-size="12" text-anchor="middle">',
               "<title>The folders of trireme/ and what they include</title>", f"<style>{STYLE}\n</style>"]
        for upper, lower in sorted(self.edges, key=str):
            passes = isinstance(lower, tuple)
            a, b = self.port(upper, lower, self.down[upper]), self.port(lower, upper, self.up[lower])
            y, to = self.top(upper) + HEIGHT, self.top(lower) - (0 if passes else 4)
            bend = (to - y) / 2
            line = f"M{a} {y}C{a} {y + bend} {b} {to - bend} {b} {to}" + (f"V{to + HEIGHT}" if passes else "")
            out.append(f'<path d="{line}"/>')
            if not passes:
                out.append(f'<path class="head" d="M{b} {to + 4}l-3 -7h6z"/>')
        for name in (node for row in self.rows for node in row if not isinstance(node, tuple)):
            x, y = self.x[name], self.top(name)
            kind = "extension" if is_extension(name) else "core"
            out.append(f'<rect class="{kind}" x="{x - BOX / 2:.1f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5"/>')
            prefix, _, last = name.rpartition("/")
            if prefix:
                out.append(f'<text x="{x}" y="{y + 14}" font-size="{11 if len(prefix) < 14 else 8}">{prefix}/</text><text x="{x}" y="{y + 28}" font-weight="bold">{last}</text>')
            else:
                out.append(f'<text x="{x}" y="{y + 22}" font-weight="bold">{last}</text>')
        y = height - 20
        for x, kind, text in ((10, "core", "core"), (90, "extension", "extension")):
            out.append(f'<rect class="{kind}" x="{x}" y="{y}" width="14" height="14" rx="3"/><text class="legend" x="{x + 20}" y="{y + 11}" text-anchor="start">{text}</text>')
        out.append(f'<text class="legend" x="890" y="{y + 11}" text-anchor="end">An arrow is an include. Includes that follow from other arrows are left out.</text>')
        return "\n".join(out + ["</svg>"]) + "\n"
