#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All rows of a model's golden perplexities: perplexity.py KVRUN MODEL DATA [--kv-dtype TYPE]

The unit tests check one window; this takes some minutes. DATA holds text/ and
traces/lmcache-agent/. The text "agent" is made from the traces: of each session's last request
prompt and answer, one below the other, sessions in the order of their file names with an empty line
between them, from the first one that the model was not trained on.
Exit status: 0 if every row agrees within 1e-4 nats, 1 if not, 77 if DATA is not there.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

FIRST_HELD_SESSION = "c7d0fc25"
TOLERANCE = 1e-4


def agent_text(data):
    files = sorted(glob.glob(os.path.join(data, "traces/lmcache-agent/miniswe/*.jsonl")))
    held = [f for f in files if os.path.basename(f) >= FIRST_HELD_SESSION]
    parts = []
    for name in held:
        with open(name, encoding="utf-8") as f:
            last = max((json.loads(line) for line in f), key=lambda r: r["timestamp"])
        parts.append(last["input"] + "\n" + last["output"])
    return "\n\n".join(parts)


def main():
    kvrun, model, data = sys.argv[1:4]
    texts = {"sherlock": os.path.join(data, "text/sherlock.held.txt"),
             "shakespeare": os.path.join(data, "text/tinyshakespeare.held.txt")}
    if not all(os.path.exists(t) for t in texts.values()):
        print(f"skipped: no texts in {data}")
        return 77
    bad = 0
    with tempfile.TemporaryDirectory() as work, \
            open(os.path.join(model, "golden.json"), encoding="utf-8") as golden:
        texts["agent"] = os.path.join(work, "agent.txt")
        with open(texts["agent"], "w", encoding="utf-8") as f:
            f.write(agent_text(data)[:100000])
        print(f"{'text':<12} {'window':>6} {'golden':>8} {'here':>10}")
        for row in json.load(golden)["nll"]:
            out = subprocess.run(
                [kvrun, "--model", model, "--perplexity", texts[row["text"]], "--json",
                 "--window", str(row["window"]), "--windows", str(row["windows"]), *sys.argv[4:]],
                check=True, capture_output=True, text=True).stdout
            nats = json.loads(out)["nll_nats"]
            ok = abs(nats - row["nll_nats_per_byte"]) < TOLERANCE
            bad += not ok
            print(f"{row['text']:<12} {row['window']:>6} {row['nll_nats_per_byte']:>8.4f} {nats:>10.6f}"
                  f"{'' if ok else '  DIFFERS'}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
