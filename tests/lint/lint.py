#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of CONTRIBUTING.md that a machine can judge. lint.py ROOT CHECK; exit 0, 1, or 77 (skipped)."""
import os
import re
import shutil
import subprocess
import sys

# Which folder may include which headers; ARCHITECTURE.md says why. A header is folder-public if it
# is called kvp_*.h (kvpool*.h in libclient/, kvr_*.h and kvt_*.h inside tools/). A folder below, or
# a file, may in addition include what its own line names.
MAY = {
    "shm": [r"shm/kvp_\w+\.h"],
    "kernels": [r"kernels/[\w/]+\.h"],
    "payload": [r"payload/\w+\.h", r"shm/kvp_\w+\.h", r"kernels/kvp_\w+\.h"],
    "policy": [r"policy/\w+\.h", r"shm/kvp_types\.h"],
    "gpu": [r"gpu/\w+\.h"],
    "libclient": [r"libclient/\w+\.h", r"kvpool\.h", r"shm/kvp_\w+\.h", r"kernels/(cuda/)?kvp_\w+\.h", r"payload/kvp_\w+\.h", r"gpu/kvp_\w+\.h"],
    "daemon": [r"daemon/\w+\.h", r"shm/kvp_\w+\.h", r"kernels/kvp_\w+\.h", r"policy/kvp_\w+\.h", r"payload/kvp_\w+\.h"],
    "daemon/main.c": [r"daemon/control/\w+\.h"],
    "daemon/control": [r"daemon/control/\w+\.h"],
    "daemon/device": [r"daemon/device/\w+\.h", r"gpu/kvp_\w+\.h"],
    "daemon/ledger": [r"daemon/ledger/\w+\.h", r"daemon/device/device\.h"],
    "tools": [r"libclient/kvpool(_admin)?\.h", r"tools/[\w/]+\.h"],
    "tools/kvctl": [r"shm/kvp_seg\.h", r"gpu/kvp_\w+\.h"],
    "tools/kvrun": [r"kernels/(cuda/)?kvp_\w+\.h", r"gpu/kvp_\w+\.h", r"libclient/kvpool_cuda\.h"],
    "tools/kvbench": [r"kernels/kvp_\w+\.h", r"policy/kvp_\w+\.h", r"shm/kvp_\w+\.h", r"daemon/device/device\.h",
                      r"gpu/kvp_\w+\.h"],
    "tools/kvreplay": [r"kernels/kvp_codec\.h", r"policy/kvp_\w+\.h", r"shm/kvp_types\.h"],
    "examples": [r"libclient/kvpool\.h", r"kernels/kvp_\w+\.h"],
    "examples/llama": [r"(blob|pool)\.h"],  # a user compiles it from its own folder
}
MAX_LINES = 1500
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|not implemented|for now\b", re.I)
CODE = (".c", ".h", ".cu", ".cuh", ".cc")


def files(root):
    out = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True)
    if out.returncode == 0 and out.stdout:
        return [f for f in out.stdout.splitlines() if os.path.isfile(os.path.join(root, f))]
    found = []
    for base, dirs, names in os.walk(root):
        dirs[:] = [d for d in dirs if not d.startswith((".git", "build"))]
        found += [os.path.relpath(os.path.join(base, n), root) for n in names]
    return found


def text(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def layers(root):
    bad = []
    for name in files(root):
        if not name.endswith(CODE) or name.startswith("tests/"):
            continue
        folder = name.split("/")[0]
        if folder not in MAY:
            continue
        allowed = list(MAY[folder])
        for sub in MAY:
            if "/" in sub and (name == sub or name.startswith(sub + "/")):
                allowed += MAY[sub]
        for number, line in enumerate(text(root, name).splitlines(), 1):
            m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if m and not any(re.fullmatch(a, m.group(1)) for a in allowed):
                bad.append(f"{name}:{number}: {folder}/ may not include \"{m.group(1)}\"")
            if m and m.group(1).endswith(".c"):
                bad.append(f"{name}:{number}: includes a .c file")
    return bad


def cycles(root):
    graph = {}
    for name in files(root):
        if name.endswith(".h"):
            graph[name] = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text(root, name), re.M)
    bad, done = [], set()

    def walk(node, path):
        if node in path:
            bad.append("include cycle: " + " -> ".join(path[path.index(node):] + [node]))
        elif node in graph and node not in done:
            for other in graph[node]:
                walk(other, path + [node])
            done.add(node)

    for node in graph:
        walk(node, [])
    return bad


def spdx(root):
    return [f"{n}: no SPDX line among the first two" for n in files(root)
            if n.endswith(CODE + (".py", ".sh", "meson.build", ".yaml", ".service", ".socket"))
            and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(
                text(root, n).splitlines()[:3]) and "/corpus/" not in n]


def lengths(root):
    bad = []
    for n in files(root):
        if n.endswith(CODE):
            count = len(text(root, n).splitlines())
            if count > MAX_LINES:
                bad.append(f"{n}: {count} lines, more than {MAX_LINES}: split it where it has two subjects")
    return bad


def words(root):
    bad = []
    for n in files(root):
        if n.endswith(CODE + (".build",)) or n.startswith("tools/"):
            for number, line in enumerate(text(root, n).splitlines(), 1):
                if WORDS.search(line):
                    bad.append(f"{n}:{number}: {line.strip()}")
    return bad


def opens(root):
    """Every product file opens with a comment that says what it is for."""
    folders = ("daemon/", "examples/", "gpu/", "kernels/", "libclient/", "payload/", "policy/", "python/", "shm/", "tools/")
    bad = []
    for n in files(root):
        if n.startswith(folders) and n.endswith(CODE):
            lines = text(root, n).splitlines()
            if len(lines) < 2 or not lines[1].startswith("/*"):
                bad.append(f"{n}:2: no comment that says what the file is for")
    return bad


def silent(root):
    """shm/, kernels/, payload/, policy/, gpu/ and libclient/ never log and never exit."""
    bad = []
    rule = re.compile(r"\b(v?f?printf|perror|puts|syslog|abort|exit|_exit)\s*\(")
    for n in files(root):
        if n.split("/")[0] in ("shm", "kernels", "payload", "policy", "gpu", "libclient") and n.endswith((".c", ".h")):
            body = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text(root, n), flags=re.S)
            for number, line in enumerate(body.splitlines(), 1):
                if rule.search(line):
                    bad.append(f"{n}:{number}: {line.strip()}")
    return bad


def shell(root):
    if not shutil.which("shellcheck"):
        sys.exit(77)
    scripts = [n for n in files(root) if not n.endswith(CODE) and os.path.getsize(os.path.join(root, n)) < 200000
               and re.match(r"#!.*\b(ba)?sh\b", text(root, n)[:80])]
    r = subprocess.run(["shellcheck", "-x", "-S", "warning"] + scripts, cwd=root, capture_output=True, text=True)
    return r.stdout.splitlines() if r.returncode else []


def man(root):
    if not shutil.which("mandoc"):
        sys.exit(77)
    bad = []
    for n in files(root):
        if re.fullmatch(r"man/[\w.]+\.\d", n):
            r = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", os.path.join(root, n)],
                               capture_output=True, text=True)
            bad += [line for line in r.stdout.splitlines() if "ERROR" in line or "WARNING" in line]
    return bad


def formatted(root):
    """clang-format 14, Debian 12's, has nothing to change; other versions differ in details."""
    version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout \
        if shutil.which("clang-format") else ""
    if "version 14." not in version:
        sys.exit(77)
    sources = [n for n in files(root) if n.endswith(CODE)]
    r = subprocess.run(["clang-format", "--dry-run", "-Werror", "-ferror-limit=1"] + sources, cwd=root,
                       capture_output=True, text=True)
    return [line for line in r.stderr.splitlines() if "error:" in line]


def rows(root):
    """docs/rows.md has every row that a test names, once and in order; the tests it names exist."""
    bad, known = [], []
    built = set()
    for n in files(root):
        if n.endswith("meson.build"):
            built |= set(re.findall(r"'([\w.+-]+)'", text(root, n)))
    joined = {p + q for p in built if p.endswith(("-", "_")) for q in built}
    for number, line in enumerate(text(root, "docs/rows.md").splitlines(), 1):
        cells = [c.strip() for c in line.split("|")]
        if not re.fullmatch(r"[A-E]-\d{3}", cells[1] if len(cells) == 5 else ""):
            continue
        known.append(cells[1])
        if not cells[2] or not cells[3]:
            bad.append(f"docs/rows.md:{number}: {cells[1]} says nothing")
        for name in re.findall(r"`([\w.+-]+)`", cells[3]):
            if name not in built and name not in joined:
                bad.append(f"docs/rows.md:{number}: there is no test {name}")
    if known != sorted(set(known)):
        bad.append("docs/rows.md: rows are not in order, or one is there twice")
    for n in files(root):
        if not n.startswith("tests/") or "/corpus/" in n:
            continue
        for number, line in enumerate(text(root, n).splitlines(), 1):
            # D-030, and d030_d031_name() of a test function.
            ids = re.findall(r"\b[A-E]-\d{3}\b", line)
            ids += [f"{a.upper()}-{b}" for a, b in re.findall(r"(?<![A-Za-z0-9])([a-e])(\d{3})(?=_)", line)]
            bad += [f"{n}:{number}: docs/rows.md has no {i}" for i in ids if i not in known]
    return bad


CHECKS = {f.__name__: f for f in (layers, cycles, spdx, lengths, words, silent, shell, man, formatted, rows, opens)}


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in CHECKS:
        sys.exit("usage: lint.py ROOT " + "|".join(CHECKS))
    bad = CHECKS[sys.argv[2]](sys.argv[1])
    for line in bad:
        print(line)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
