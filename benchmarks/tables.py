"""Tables of medians over rounds, and ratios beside their targets. Standard library only."""
import statistics


def median_of(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def number(value, digits=1, unit=1.0):
    return "-" if value is None else f"{value / unit:,.{digits}f}"


def print_table(head, rows):
    """Markdown that lines up: the first column to the left, the others to the right."""
    cells = [head] + rows
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for i, row in enumerate(cells):
        print("| " + " | ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths))) + " |")
        if i == 0:
            print("|" + "|".join("-" * (w + 2) if k == 0 else "-" * (w + 1) + ":" for k, w in enumerate(widths)) + "|")
    print(flush=True)


class Results:
    """Rows of one size, by engine and round; None where a run failed."""

    def __init__(self):
        self.rounds = {}

    def add(self, name, round_number, row):
        self.rounds.setdefault(name, {})[round_number] = row

    def of(self, name):
        return [row for row in self.rounds.get(name, {}).values() if row]

    def pairs(self, value, *names):
        """value(row of each name), once for each round in which all of them ran: neighbours in time."""
        numbers = set.intersection(*({n for n, row in self.rounds.get(name, {}).items() if row} for name in names))
        return [value(*(self.rounds[name][n] for name in names)) for n in sorted(numbers)]


def apart(rows, key):
    """How far the largest of these rows' values is from the smallest, relative to it."""
    values = [row[key] for row in rows]
    return (max(values) - min(values)) / min(values)


def check(label, values, limit, unit="", at_least=False, within_spread=False):
    """One line of a list of ratios (medians over rounds, their range) with its target, and the same as a row for --json. The target is a
    largest value or, with `at_least`, a smallest; `within_spread` is content when a round reached it: both may then be equally fast."""
    if not values:
        return [label, "-", "-", "", "not measured"], None
    value = statistics.median(values)
    digits = 3 if abs(value) < 10 else 1
    judged = (max(values) if at_least else min(values)) if within_spread else value
    held = None if limit is None else judged >= limit if at_least else judged <= limit
    verdict = "" if held is None else "held" if held else "MISSED"
    spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    target = "" if limit is None else f"{'>=' if at_least else '<='} {limit:g}{unit}" + (" within the range" if within_spread else "")
    return [label, f"{value:.{digits}f}{unit}", spread, target, verdict], dict(check=label, value=value, spread=[min(values), max(values)], target=limit,
                                                                               at_least=at_least, held=held)


def print_checks(checks):
    print_table(["ratio", "median", "range over rounds", "target", ""], [line for line, _ in checks])
    return [row for _, row in checks if row]
