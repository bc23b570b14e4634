# SPDX-License-Identifier: Apache-2.0
"""Files of dist/, whose path is the argument: systemd's own check of the units, the example
configuration against the built kvpoold, and that the files agree with each other."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

DIST, KVPOOLD = sys.argv[1], os.environ["KVPOOLD"]
bad = []


def text(name):
    with open(os.path.join(DIST, name), encoding="utf-8") as f:
        return f.read()


with tempfile.TemporaryDirectory() as t:
    # The program must be there to be found.
    unit = text("kvpoold.service").replace("@sbindir@/kvpoold", KVPOOLD)
    for name, content in (("kvpoold.service", unit), ("kvpoold.socket", text("kvpoold.socket"))):
        with open(os.path.join(t, name), "w", encoding="utf-8") as f:
            f.write(content)
    os.mkdir(os.path.join(t, "kvpoold.service.d"))
    if shutil.which("systemd-analyze"):
        r = subprocess.run(["systemd-analyze", "verify", "--man=no",
                            os.path.join(t, "kvpoold.service"), os.path.join(t, "kvpoold.socket")],
                           capture_output=True, text=True, env=dict(os.environ, SYSTEMD_LOG_LEVEL="warning"))
        ours = [line for line in r.stderr.splitlines() if "kvpool" in line]
        if r.returncode or ours:
            bad.append("systemd-analyze verify: %s" % (r.stderr or r.returncode))
        r = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20",
                            os.path.join(t, "kvpoold.service")], capture_output=True, text=True)
        if r.returncode:
            bad.append("systemd-analyze security: exposure above 2.0\n" + r.stdout[-600:])
        # With GPUs as well: the units are good together, and no less is shut than has to be open.
        shutil.copy(os.path.join(DIST, "kvpoold-gpu.conf"), os.path.join(t, "kvpoold.service.d", "gpu.conf"))
        r = subprocess.run(["systemd-analyze", "verify", "--man=no", os.path.join(t, "kvpoold.service"),
                            os.path.join(t, "kvpoold.socket")],
                           capture_output=True, text=True, env=dict(os.environ, SYSTEMD_LOG_LEVEL="warning"))
        ours = [line for line in r.stderr.splitlines() if "kvpool" in line or "gpu.conf" in line]
        if r.returncode or ours:
            bad.append("systemd-analyze verify with kvpoold-gpu.conf: %s" % (r.stderr or r.returncode))
    else:
        print("systemd-analyze is not here: units were not verified")

    # Every key that the example shows must exist and be good, also those that are commented out.
    example = text("kvpoold.yaml")
    full = re.sub(r"(?m)^#(?=[a-z ]+:| +-| +\w+:)", "", example).replace("alice", "1001")
    for what, content in (("as it is", example), ("with all examples", full)):
        # A machine of any size, on which nothing is installed.
        content = re.sub(r"(?m)^#?(user|admin_group): .*", r'\1: ""', content.replace("GiB", "MiB"))
        path = os.path.join(t, "kvpoold.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(content)
        r = subprocess.run([KVPOOLD, "--check-config", "--config", path], capture_output=True,
                           text=True)
        if r.returncode:
            bad.append("kvpoold.yaml %s: %s" % (what, r.stderr))
        elif not re.search(r"(?m)^memory \S+.* share, .*: at most [1-9]\d* tokens of an 8B model", r.stdout):
            bad.append("kvpoold --check-config does not say what the memory is good for: " + r.stdout)
    with open(path, "w", encoding="utf-8") as f:
        f.write("user: ''\nmemory: 256MiB\ndefaults: {share: 64MiB}\n")
    r = subprocess.run([KVPOOLD, "--check-config", "--config", path], capture_output=True, text=True)
    if "at most 512 tokens" not in r.stdout or "memory 256MiB;" not in r.stdout:
        bad.append("64 MiB are 512 tokens of 128 KiB: " + r.stdout + r.stderr)
    if full.count("\n  - name:") != 4:
        bad.append("kvpoold.yaml: its examples were not found")

directory = re.search(r"ListenSequentialPacket=(.*)/kvpool\.sock", text("kvpoold.socket")).group(1)
for name in ("kvpoold.service", "kvpool.tmpfiles.conf"):
    if directory not in text(name):
        bad.append("%s does not know %s" % (name, directory))
user = re.search(r"(?m)^u (\S+)", text("kvpool.sysusers.conf")).group(1)
if "d %s 0755 %s %s " % (directory, user, user) not in text("kvpool.tmpfiles.conf"):
    bad.append("kvpool.tmpfiles.conf does not give %s to %s" % (directory, user))
group = re.search(r"(?m)^admin_group: (\S+)", text("kvpoold.yaml")).group(1)
if not re.search(r"(?m)^g %s " % group, text("kvpool.sysusers.conf")):
    bad.append("kvpool.sysusers.conf does not make the group %s" % group)

print("\n".join(bad))
sys.exit(1 if bad else 0)
