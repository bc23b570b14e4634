# SPDX-License-Identifier: Apache-2.0
"""kvbench precision against the real daemon: every block of every round is coded, figures add up, the hot
set never misses, nothing stays behind. Nothing here looks at how long anything took."""
import glob
import json
import os
import subprocess
import tempfile

KVBENCH = os.environ["KVBENCH"]


def run(tmp, *args):
    return subprocess.run([KVBENCH, "precision", *args], env=dict(os.environ, TMPDIR=tmp), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=280)


def main(tmp):
    done = run(tmp, "--blocks", "64", "--rounds", "2", "--json")
    assert done.returncode == 0, (done.returncode, done.stderr)
    out = json.loads(done.stdout)
    assert out["codec"] == "tq4" and out["blocks"] == 128, out
    assert out["native_bytes"] == 64 * 8 * 128 * 4, out
    assert out["native_bytes"] / 4 < out["coded_bytes"] < out["native_bytes"] / 3.8, out
    assert out["seconds"] > 0 and 0 < out["mover_cpu_seconds"] < out["daemon_cpu_seconds"], out
    assert 0 < out["coding_cpu_seconds"] < out["daemon_cpu_seconds"], out
    for whole, part in ("blocks_per_second", "seconds"), \
            ("blocks_per_coding_second", "coding_cpu_seconds"), \
            ("blocks_per_mover_second", "mover_cpu_seconds"), \
            ("blocks_per_daemon_second", "daemon_cpu_seconds"):
        assert abs(out[whole] * out[part] / 128 - 1) < 1e-3, (whole, out)
    for suffix in "", "_beside":
        ratio = out["blocks_per_coding_second"] / out["codec_blocks_per_second" + suffix]
        assert abs(out["ratio_to_codec" + suffix] / ratio - 1) < 1e-3, (suffix, out)
    for phase in "idle", "busy":
        assert 0 < out[phase]["match_p50_ns"] <= out[phase]["match_p99_ns"], out
        assert 0 < out[phase]["commit_p50_us"] <= out[phase]["commit_p99_us"], out
    assert out["hot_matches"] >= 4000 and out["hot_misses"] == out["failed_puts"] == 0, out
    assert not glob.glob(tmp + "/*"), glob.glob(tmp + "/*")
    # A codec that the bench cannot drive alone has no figure of what it does alone.
    done = run(tmp, "--codec", "smart-25", "--blocks", "64", "--rounds", "1", "--json")
    assert done.returncode == 1 and "Invalid argument" in done.stderr and not done.stdout, done
    for args in ["--codec", "tq5"], ["--blocks", "1"], ["--rounds"]:
        done = run(tmp, *args)
        assert done.returncode == 2 and done.stderr and not done.stdout, done


with tempfile.TemporaryDirectory() as folder:
    main(folder)
