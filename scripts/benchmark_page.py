"""What the pages of docs/benchmarks that scripts render are made of."""

import os
import platform
import time
from pathlib import Path

DASH = "–"

# ---- figures ---------------------------------------------------------------------------------------------------------


def number(value):
    """A figure with three significant digits at least, whole from 100 up."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def ratio(value, base):
    """One divided by the other; nothing where one of them is missing."""
    return None if value is None or not base else value / base


def times(value):
    """How many times as much."""
    return DASH if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


# ---- targets ---------------------------------------------------------------------------------------------------------


def at_least(measured, wanted):
    return round(measured, 2) >= wanted


def at_most(measured, wanted):
    return measured <= wanted


def target(what, measured, wanted, holds, show=times):
    """A row of the table: what is asked, what was measured, and whether it holds."""
    sign = "≥" if holds is at_least else "≤"
    if measured is None:
        return [what, f"{sign} {show(wanted)}", DASH, "not measured"]
    if holds(measured, wanted):
        return [what, f"{sign} {show(wanted)}", show(measured), "met"]
    by = "" if not wanted else f" ({measured / wanted:.2f} of the target)"
    return [what, f"{sign} {show(wanted)}", show(measured), f"**missed**{by}"]


# ---- parts of a page -------------------------------------------------------------------------------------------------


def table(head, rows, text_columns=(0,)):
    rule = ["---" if column in text_columns else "--:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def targets_table(rows):
    return table(["target", "wanted", "measured", "verdict"], rows, text_columns=(0, 3))


def machine(*rows):
    """Where and when it was measured, and what else belongs there."""
    memory_kib = int((field_of("/proc/meminfo", "MemTotal") or "0").split()[0])
    of_machine = [
        ["CPU", field_of("/proc/cpuinfo", "model name") or platform.machine()],
        ["cores", str(os.cpu_count())],
        ["memory", f"{memory_kib / (1 << 20):.1f} GiB"],
        ["kernel", f"Linux {platform.release()}"],
        ["date", time.strftime("%Y-%m-%d", time.gmtime())],
    ]
    return table(["machine", ""], [*of_machine, *rows], text_columns=(0, 1))


def field_of(path, name):
    """The value of the first `name : value` line of a file under /proc."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def read_commands(path):
    """The commands in a file, one a line; none without a file."""
    return Path(path).read_text(encoding="utf-8").splitlines() if path else []


def commands_section(commands, hide):
    """What was run, with DIR for the folder `hide`."""
    shown = [command.replace(hide, "DIR") if hide else command for command in commands]
    return "\n\n".join(["## Commands", "\n".join(["```sh", *shown, "```"])])


def write(path, parts, tail=""):
    """Makes the page, with its folder."""
    out = Path(path)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join(parts) + "\n" + tail, encoding="utf-8")
