# SPDX-License-Identifier: Apache-2.0
"""dist/debs: the packages that it makes of this build folder have what they should, and what they install
works below a root of its own with the distribution's python3, beside a real kvpoold."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import SKIP, Daemon  # pylint: disable=wrong-import-position

SOURCE, BUILD = os.environ["KVPOOL_SOURCE"], os.environ["KVPOOL_BUILD"]
PYTHON = "/usr/bin/python3"

# What a user does first: a block is stored, and found with its contents.
PROGRAM = """
import array, sys
import kvpool, kvpool.keys, kvpool.connectors.paged, kvpool.connectors.weights
with kvpool.Client(timeout=20) as client:
    space = client.key_space("model", "layout", 4096, 32)
    key = bytes(range(32))
    assert space.put([key], [b"x" * 4096]) == 1
    client.flush()
    for _ in range(10000):
        with space.match([key]) as match:
            if match.found:
                assert bytes(match.block(0)) == b"x" * 4096
                break
    else:
        sys.exit("not found")
print(kvpool.__file__)
"""


def needs():
    """Ends the test as skipped where the tools are not."""
    missing = [t for t in ("dpkg-deb", "dpkg-shlibdeps", "dpkg-architecture", "strip")
               if not shutil.which(t)]
    if not os.path.exists(PYTHON) or subprocess.run(
            [PYTHON, "-c", "import cffi, sysconfig, os, sys; "
             "sys.exit(not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"],
            stderr=subprocess.DEVNULL, check=False).returncode:
        missing.append("python3-cffi and python3-dev of " + PYTHON)
    if missing:
        print("skipped: there is no " + ", no ".join(missing))
        sys.exit(SKIP)


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="kvpool-debs-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([os.path.join(SOURCE, "dist/debs"), BUILD, cls.folder], check=True, timeout=300,
                       stdout=subprocess.DEVNULL)
        cls.debs = {name.split("_")[0]: os.path.join(cls.folder, name) for name in os.listdir(cls.folder)}

    def field(self, package, name):
        return subprocess.run(["dpkg-deb", "-f", self.debs[package], name], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.strip()

    def files(self, package):
        listing = subprocess.run(["dpkg-deb", "-c", self.debs[package]], check=True, text=True,
                                 stdout=subprocess.PIPE).stdout
        for line in listing.splitlines():
            self.assertIn("root/root", line)
        return [line.split()[5][2:] for line in listing.splitlines()]

    def test_fields(self):
        self.assertEqual(sorted(self.debs), ["libkvpool0", "python3-kvpool"])
        version = self.field("libkvpool0", "Version")
        self.assertEqual(self.field("python3-kvpool", "Version"), version)
        needed = self.field("python3-kvpool", "Depends")
        self.assertIn("libkvpool0 (= %s)" % version, needed)
        self.assertIn("python3-cffi-backend", needed)
        self.assertIn("python3 (<< 3.", needed)
        self.assertIn("libc6", self.field("libkvpool0", "Depends"))

    def test_contents(self):
        library = self.files("libkvpool0")
        self.assertTrue(any(f.endswith("/libkvpool.so.0") for f in library), library)
        self.assertFalse(any(f.endswith("/libkvpool.so") for f in library))
        modules = [f for f in self.files("python3-kvpool") if "dist-packages/kvpool/" in f]
        for name in ("__init__.py", "py.typed", "connectors/vllm.py", "connectors/sglang.py"):
            self.assertIn("usr/lib/python3/dist-packages/kvpool/" + name, modules)
        self.assertEqual(sum(f.endswith(".so") for f in modules), 2)

    def test_works_below_a_root(self):
        root = os.path.join(self.folder, "root")
        for deb in self.debs.values():
            subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
        libraries = {os.path.dirname(os.path.join(root, f)) for f in self.files("libkvpool0")
                     if f.endswith("/libkvpool.so.0")}
        with Daemon({"memory": "64MiB"}) as daemon:
            env = {"PATH": "/usr/bin:/bin", "KVPOOL_SOCKET": daemon.socket,
                   "PYTHONPATH": os.path.join(root, "usr/lib/python3/dist-packages")}
            # Without the library's folder there is none: nothing points into the build folder.
            alone = subprocess.run([PYTHON, "-c", "import kvpool"], env=env, check=False, text=True,
                                   stderr=subprocess.PIPE)
            if alone.returncode:
                self.assertIn("libkvpool.so.0", alone.stderr)
            else:
                self.assertTrue(os.path.exists("/usr/share/doc/libkvpool0") or shutil.which("kvpoold"),
                                "the library was found, and is not installed")
            out = subprocess.run([PYTHON, "-c", PROGRAM], check=True, text=True, timeout=60,
                                 env=dict(env, LD_LIBRARY_PATH=":".join(libraries)),
                                 stdout=subprocess.PIPE).stdout
            self.assertTrue(out.startswith(root + "/usr/lib/python3/dist-packages/kvpool/"), out)


if __name__ == "__main__":
    needs()
    unittest.main()
