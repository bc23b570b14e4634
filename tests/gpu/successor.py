#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker is killed while its daemon's vaults and segments are full: how long until its successor has the device,
and what it costs. Run by tests/gpu/device beside the daemon that the figures have filled ($KVCTL, $KVPOOL_SOCKET).

    successor.py [KILLS]

Prints a line a kill. Exit status 1: blocks were lost, or the daemon's check is not clean.
"""
import json
import os
import signal
import subprocess
import sys
import time

KVCTL = os.environ["KVCTL"]


def device():
    text = subprocess.run([KVCTL, "device", "list", "--json"], stdout=subprocess.PIPE, check=True).stdout
    said = json.loads(text)
    return (said["devices"] if isinstance(said, dict) else said)[0]


def wait_for(true, seconds=60):
    began = time.monotonic()
    while True:
        now = device()
        if true(now):
            return now, (time.monotonic() - began) * 1e3
        if time.monotonic() - began > seconds:
            sys.exit("waited in vain; the device is %s, error '%s'" % (now["state"], now["error"]))
        time.sleep(.002)


def main():
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    took, failed = [], 0
    for _ in range(kills):
        before = wait_for(lambda d: d["state"] == "up" and d.get("pid"))[0]
        os.kill(before["pid"], signal.SIGKILL)
        ms = wait_for(lambda d: d["state"] == "up" and d.get("pid") not in (None, before["pid"]))[1]
        after = wait_for(lambda d: not any(t["verifying"] for t in d["tenants"]))[0]
        took.append(ms)
        lost = before["blocks"] - after["blocks"]
        failed |= lost > 0 or after["losses_total"] > before["losses_total"]
        print("worker killed: %d segments taken over after %.0f ms, %d blocks on the device before, %d after, %d losses"
              % (after["segments"], ms, before["blocks"], after["blocks"],
                 after["losses_total"] - before["losses_total"]))
    check = subprocess.run([KVCTL, "check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print("a successor has the device after ms p50 %.0f worst %.0f; kvctl check: %s"
          % (sorted(took)[len(took) // 2], max(took), "clean" if check.returncode == 0 else check.stdout.decode()))
    return failed or check.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
