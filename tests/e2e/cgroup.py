# SPDX-License-Identifier: Apache-2.0
"""A memory control group of a test's own, with version 1 or 2 of the kernel's interface.

    with Group(300 << 20) as g:         # exits with 77 where no group can be made
        Daemon(config, group=g)
        subprocess.Popen(..., preexec_fn=g.enter)

It lies below the group that the test runs in (version 1), or beside it (version 2, which does not
allow groups below one that holds processes), so that limits set on the test itself hold in it too.
"""
import os
import sys
import time

SKIP = 77
_made = 0

# An instrumented daemon keeps up to 256 MiB that it has freed, which would fill a group: less here.
os.environ["ASAN_OPTIONS"] = ":".join(
    filter(None, [os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=8"]))


def _mount(kind, option):
    """Where a control group file system is mounted, and which group that place shows."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        for line in f:
            head, tail = line.rstrip("\n").split(" - ", 1)
            fields, (fs, _, options) = head.split(" "), tail.split(" ", 2)
            if fs == kind and (not option or option in options.split(",")):
                return fields[4], fields[3]
    return None


def _own(controller):
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        for line in f:
            _, names, path = line.rstrip("\n").split(":", 2)
            if (controller in names.split(",")) if controller else names == "":
                return path
    return None


def _place():
    """(version, folder below which to make a group), or None."""
    for version, kind, controller in ((1, "cgroup", "memory"), (2, "cgroup2", "")):
        mount, own = _mount(kind, controller), _own(controller)
        if not mount or own is None:
            continue
        shown = own[len(mount[1]):] if mount[1] != "/" and own.startswith(mount[1]) else own
        folder = os.path.join(mount[0], shown.lstrip("/"))
        if version == 2:
            if not os.path.exists(os.path.join(folder, "memory.max")):
                return None
            folder = os.path.dirname(folder)
        return version, folder
    return None


class Group:
    def __init__(self, limit):
        global _made
        place = _place()
        if place is None:
            self._skip("no memory control groups are mounted here")
        _made += 1
        self.version, above = place
        self.path = os.path.join(above, "kvpool-test-%d-%d" % (os.getpid(), _made))
        try:
            os.mkdir(self.path)
            self.limit(limit)
        except OSError as e:
            if os.path.isdir(self.path):
                os.rmdir(self.path)
            self._skip("a memory control group cannot be made here: %s" % e)

    @staticmethod
    def _skip(why):
        print("skipped: " + why)
        sys.exit(SKIP)

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as f:
            f.write(str(value))

    def read(self, name):
        with open(os.path.join(self.path, name), encoding="ascii") as f:
            return f.read()

    def limit(self, limit):
        self._write("memory.limit_in_bytes" if self.version == 1 else "memory.max", limit)

    def usage(self):
        return int(self.read("memory.usage_in_bytes" if self.version == 1 else "memory.current"))

    def kills(self):
        """Processes of the group that the kernel has killed for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return int(dict(line.split() for line in self.read(name).splitlines())["oom_kill"])

    def enter(self):
        """In a child, before exec."""
        self._write("cgroup.procs", os.getpid())

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        # A group is busy for a moment after its last process ended.
        for _ in range(500):
            try:
                os.rmdir(self.path)
                return False
            except OSError:
                time.sleep(0.01)
        print("left behind: " + self.path)
        return False
