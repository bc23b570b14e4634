# SPDX-License-Identifier: Apache-2.0
"""Control groups of version 2 as the kernel itself has them: where kvpoold looks for its group, seen by
the pressure file that it watches. $KVPOOLD. Everything happens in a mount namespace of the test's own;
exits with 77 where the kernel does not allow that. Limits are test_memory.py's, whose groups are of
the version that has memory on this machine."""
import ctypes
import os
import subprocess
import sys
import tempfile
import unittest

from harness import SKIP, Daemon

CLONE_NEWNS, CLONE_NEWCGROUP = 0x20000, 0x2000000
libc = ctypes.CDLL(None, use_errno=True)


def skip(why):
    print("skipped: " + why)
    sys.exit(SKIP)


def unshare(what):
    if libc.unshare(what):
        raise OSError(ctypes.get_errno(), "unshare")


def mount(*words):
    subprocess.run(["mount", *words], check=True, capture_output=True)


def unmount_all():
    """All control groups that are mounted, of either version."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        lines = [line.split(" - ") for line in f]
    for head, tail in reversed(lines):
        if tail.split(" ")[0] in ("cgroup", "cgroup2"):
            subprocess.run(["umount", "-l", head.split(" ")[4]], check=True, capture_output=True)


class Group:
    """One that limits nothing: it takes no controller to make it."""

    def __init__(self, path):
        os.makedirs(path, exist_ok=True)
        self.path = path

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as f:
            f.write("0")


class Inside(Group):
    """What enters has a namespace of groups that begins with this one."""

    def enter(self):
        super().enter()
        unshare(CLONE_NEWCGROUP)


def watched(d):
    """The pressure files that the daemon has open, but for the machine's."""
    folder = "/proc/%d/fd" % d.pid
    links = []
    for fd in os.listdir(folder):
        try:
            links.append(os.readlink(os.path.join(folder, fd)))
        except FileNotFoundError:
            pass  # closed meanwhile; those that are watched stay open
    return [x for x in links if x.endswith("/memory.pressure")]


class Place(unittest.TestCase):
    def setUp(self):
        unmount_all()
        self.dir = tempfile.mkdtemp(prefix="kvpool-cgroup2-")
        self.addCleanup(os.rmdir, self.dir)
        os.chmod(self.dir, 0o755)
        self.all = self.folder("all")
        mount("-t", "cgroup2", "none", self.all)
        self.addCleanup(subprocess.run, ["umount", "-l", self.all], check=True)
        self.outer = self.group(Group, self.all, "kvpool-test-%d" % os.getpid())

    def folder(self, name):
        path = os.path.join(self.dir, name)
        os.mkdir(path)
        self.addCleanup(os.rmdir, path)
        return path

    def group(self, kind, above, name):
        g = kind(os.path.join(above, name))
        self.addCleanup(os.rmdir, g.path)
        return g

    def looks_at(self, group, folder, **more):
        with Daemon({}, group=group, **more) as d:
            self.assertEqual(watched(d), [os.path.join(folder, "memory.pressure")])

    def test_its_own_group(self):
        inner = self.group(Group, self.outer.path, "a name:with\tall, 0::/")
        self.looks_at(self.outer, self.outer.path)
        self.looks_at(inner, inner.path)

    def test_a_part_of_the_tree_is_mounted(self):
        """As in a container without a namespace of groups."""
        self.group(Group, self.outer.path, "inner")
        part = self.folder("part of\tit")
        mount("--bind", self.outer.path, part)
        self.addCleanup(subprocess.run, ["umount", "-l", part], check=True)
        subprocess.run(["umount", "-l", self.all], check=True)
        try:
            for path in part, os.path.join(part, "inner"):
                self.looks_at(Group(path), path)
            # Who is outside of that part takes its top for the nearest.
            self.looks_at(None, part)
        finally:
            mount("-t", "cgroup2", "none", self.all)

    def test_a_namespace_of_groups(self):
        """A mount from outside does not say where in it the group is, so its top is the nearest; one
        from inside, which comes later, begins with the group."""
        inner = self.group(Inside, self.outer.path, "inner")
        self.looks_at(inner, self.all)
        own = self.folder("own")
        script = os.path.join(self.dir, "kvpoold")
        with open(script, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nmount -t cgroup2 none '%s' && exec '%s' \"$@\"\n" % (own, os.environ["KVPOOLD"]))
        os.chmod(script, 0o755)
        self.addCleanup(os.unlink, script)
        self.addCleanup(subprocess.run, ["umount", "-l", own], check=True)
        self.looks_at(inner, own, program=script)


def main():
    if os.geteuid():
        skip("only root mounts control groups")
    try:
        unshare(CLONE_NEWNS)
        mount("--make-rprivate", "/")
        with tempfile.TemporaryDirectory() as folder:
            mount("-t", "cgroup2", "none", folder)
            try:
                g = Group(os.path.join(folder, "kvpool-test-%d" % os.getpid()))
                pressure = os.path.exists(os.path.join(g.path, "memory.pressure"))
                os.rmdir(g.path)
            finally:
                subprocess.run(["umount", folder], check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        skip("control groups of version 2 cannot be mounted here: %s" % e)
    if not pressure:
        skip("this kernel has no pressure information")
    unittest.main()


if __name__ == "__main__":
    main()
