#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table and the plot of docs/quality.md from what `kvbench quality --json` printed.

usage: quality.py --held-out FILE... --repeated FILE... --svg FILE > table

Every file is one run with one seed. A codec that occurs with several seeds gets the mean and the
standard deviation.
"""
import argparse
import json
import math
import statistics
import sys

PRESETS = {"4bit": "tq4-nc", "3bit": "tq4-nc/tq2-nc", "2bit": "tq2-nc"}
LINE = ["2bit", "tq3-nc/tq2-nc", "3bit", "tq4-nc/tq3-nc", "4bit"]
# Points so near to others of their size that a name would not be legible; hover to see it.
NAMELESS = {"tq4-sphere", "tq4-nc-sphere", "tq4-nc-h3", "tq4-h3", "tq4-plain", "tq3-plain", "tq2-plain",
            "tq2-h3", "tq2-nc-h3", "tq2-nc-sphere", "tq2-nc/tq2", "tq3-nc", "tq4/tq3", "tq3/tq2"}
# An independent float implementation, one draw: held-out, repeated.
REFERENCE = {"fp8": (".00002", ".00001"), "int8": (".00000", ".00000"), "kivi4": (".00006", ".00005"),
             "kivi2": (".00293", ".00186"), "tq4": (".00022", ".00024"), "tq3": (".00094", ".00074"),
             "tq2": (".00523", ".00400"), "tq4-plain": (".00022", ".00027"),
             "tq4/tq3": (".00027", ".00026"), "tq3/tq2": (".00127", ".00107")}


def load(paths):
    """{codec: [result...]}"""
    runs = {}
    for path in paths:
        with open(path, encoding="utf-8") as f:
            got = json.load(f)
        for result in got if isinstance(got, list) else [got]:
            runs.setdefault(result["codec"], []).append(result)
    return runs


def mean(results, key):
    return statistics.fmean(r[key] for r in results)


def kl(results):
    text = f"{abs(mean(results, 'kl_nats')):.6f}"
    if len(results) > 1:
        text += f" ± {statistics.stdev(r['kl_nats'] for r in results):.6f}"
    return text


def table(held, repeated):
    print("| codec (K/V) | bits | seeds | ppl change % | KL, held-out | ref | top-1 | KL, repeated | ref |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in sorted(held, key=lambda n: (-held[n][0]["bits_per_value"], mean(held[n], "kl_nats"))):
        h, r = held[name], repeated[name]
        ref = REFERENCE.get(name, ("", ""))
        shown = f"**{name} = {PRESETS[name]}**" if name in PRESETS else name
        seeds = str(len(h)) if len(h) > 1 else ""
        print(f"| {shown} | {h[0]['bits_per_value']:.3f} | {seeds} | {mean(h, 'delta_pct'):+.3f} | {kl(h)} | "
              f"{ref[0]} | {mean(h, 'top1_agreement'):.4f} | {kl(r)} | {ref[1]} |")


# ---- plot ----

WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 900, 560, 70, 20, 34, 44
LOW, HIGH = 5e-7, 4e-2  # KL
CHAR, LINE_HEIGHT = 6.5, 12
SIZES = (2, 2.5, 3, 3.5, 4, 5, 6, 8)


def x_of(bits):
    return LEFT + math.log(bits / 2) / math.log(8.6 / 2) * (WIDTH - LEFT - RIGHT) + 4


def y_of(value):
    share = math.log(max(value, LOW) / LOW) / math.log(HIGH / LOW)
    return PANEL - BOTTOM - share * (PANEL - TOP - BOTTOM)


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def on_segment(box, segment):
    """Whether the line crosses the box, tried at 40 points of it."""
    (x0, y0), (x1, y1) = segment
    return any(box[0] < x0 + (x1 - x0) * t / 40 < box[2] and box[1] < y0 + (y1 - y0) * t / 40 < box[3]
               for t in range(41))


def places(x, y, width):
    """Where a name may stand, best first: (x of its middle, y of its middle)."""
    for away in (0, 14, 26, 38, 52, 68, 86, 106, 128):
        for dx, dy in ((1, 0), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1), (0, 1), (2, -1), (2, 1)):
            if (dx and dy or not dx) and not away:
                continue
            yield x + dx * (width / 2 + 7 + (away if not dy else 4)), y + dy * away / max(abs(dx), 1)


def box_of(x, y, width):
    return (x - width / 2 - 1, y - LINE_HEIGHT / 2, x + width / 2 + 1, y + LINE_HEIGHT / 2)


def place(x, y, width, taken, lines):
    """Where a name stands and where a line from its point ends; that may cross others if it must."""
    for may_cross in (False, True):
        for tx, ty in places(x, y, width):
            box = box_of(tx, ty, width)
            edge = (min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3]))
            others = [t for t in taken if not t[0] < x < t[2] or not t[1] < y < t[3]]
            if (box[0] >= LEFT and box[2] <= WIDTH - 2 and box[1] >= TOP and box[3] <= PANEL - BOTTOM
                    and not any(overlap(box, t) for t in taken) and not any(on_segment(box, l) for l in lines)
                    and (may_cross or not any(on_segment(t, ((x, y), edge)) for t in others))):
                return tx, ty, edge
    return None, None, None


def panel(points, title, down):
    """points: {codec: (bits, KL)}"""
    at = {n: (x_of(b), y_of(v)) for n, (b, v) in points.items()}
    segments = [(at[a], at[b]) for a, b in zip(LINE, LINE[1:])]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at.values()]
    leaders = []
    out = [f'<g transform="translate(0,{down})">',
           f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="20" text-anchor="middle" font-size="13">{title}</text>']
    for bits in SIZES:
        x = x_of(bits)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{PANEL - BOTTOM}" stroke="#ddd"/>'
                   f'<text x="{x:.1f}" y="{PANEL - BOTTOM + 16}" text-anchor="middle">{bits}</text>')
    for exponent in range(-6, -1):
        y = y_of(10 ** exponent)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">1e{exponent}</text>')
    out.append('<polyline fill="none" stroke="#c33" points="'
               + " ".join(f"{at[n][0]:.1f},{at[n][1]:.1f}" for n in LINE) + '"/>')
    for name, (x, y) in sorted(at.items(), key=lambda p: (p[0] not in LINE, p[1])):
        color, radius = ("#c33", 4.5) if name in LINE else ("#357", 3)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"><title>{name}: '
                   f'{points[name][0]:.3f} bits, {points[name][1]:.6f} nats</title></circle>')
        if name in NAMELESS:
            continue
        width = CHAR * len(name)
        tx, ty, edge = place(x, y, width, taken, segments + leaders)
        if tx is None:
            sys.exit(f"quality.py: no place for {name}")
        box = box_of(tx, ty, width)
        taken.append(box)
        if math.dist(edge, (x, y)) > 9:
            leaders.append(((x, y), edge))
            out.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{edge[0]:.1f}" y2="{edge[1]:.1f}" stroke="#aaa"/>')
        out.append(f'<text x="{tx:.1f}" y="{ty + 4:.1f}" text-anchor="middle" fill="{color}">{name}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{PANEL - 8}" text-anchor="middle">'
               "bits per value, scalars included</text>")
    out.append(f'<text transform="translate(16,{PANEL / 2}) rotate(-90)" text-anchor="middle">'
               "KL divergence from native, nats</text></g>")
    return out


def svg(held, repeated):
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * PANEL}" '
             'font-family="sans-serif" font-size="11">',
             "<title>KL divergence against bits per value</title>",
             f'<rect width="{WIDTH}" height="{2 * PANEL}" fill="white"/>']
    for runs, title, down in ((held, "held-out text", 0), (repeated, "repeated passages", PANEL)):
        points = {n: (r[0]["bits_per_value"], mean(r, "kl_nats")) for n, r in runs.items() if n != "native"}
        lines += panel(points, title, down)
    return "\n".join(lines + ["</svg>", ""])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--held-out", nargs="+", required=True)
    p.add_argument("--repeated", nargs="+", required=True)
    p.add_argument("--svg", required=True)
    a = p.parse_args()
    held, repeated = load(a.held_out), load(a.repeated)
    table(held, repeated)
    with open(a.svg, "w", encoding="utf-8") as f:
        f.write(svg(held, repeated))


if __name__ == "__main__":
    main()
