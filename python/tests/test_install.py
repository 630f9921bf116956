"""Finding the library, and the wheel."""
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import tessera as ts

HERE = Path(__file__).resolve().parents[1]


def python(code, folder, **environment):
    """Runs code with only `folder` added to the path; (exit code, output)."""
    env = {k: v for k, v in os.environ.items() if k not in ("TESSERA_LIBRARY", "PYTHONPATH", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH")}
    env.update(environment, PYTHONPATH=str(folder))
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tempfile.gettempdir(), capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Library(unittest.TestCase):
    def test_missing(self):
        with tempfile.TemporaryDirectory() as temp:
            shutil.copytree(HERE / "tessera", Path(temp) / "tessera", ignore=shutil.ignore_patterns("lib", "__pycache__"))
            code, out = python("import tessera", temp, TESSERA_LIBRARY="/nonexistent/libtessera.so")
            self.assertTrue(code and "TESSERA_LIBRARY says /nonexistent/libtessera.so, which is not there" in out, out)
            code, out = python("import tessera", temp)
            if code:  # else there is one in the system
                self.assertIn("libtessera.so was not found. Looked for:", out)
                self.assertIn("TESSERA_LIBRARY=", out)
            other = Path(temp) / "libtessera.so"
            other.write_bytes(b"no library")
            code, out = python("import tessera", temp, TESSERA_LIBRARY=temp)
            self.assertTrue(code and "cannot be loaded" in out, out)


@unittest.skipUnless((HERE / "backend.py").exists(), "not a source tree")
class Wheel(unittest.TestCase):
    def test_wheel(self):
        spec = importlib.util.spec_from_file_location("backend", HERE / "backend.py")
        backend = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(backend)
        former = os.environ.get("TESSERA_LIBRARY")
        os.environ["TESSERA_LIBRARY"] = ts.library_path
        try:
            with tempfile.TemporaryDirectory() as temp:
                name = backend.build_wheel(temp)
                self.assertTrue(backend.build_sdist(temp).endswith(".tar.gz"))
                self.assertTrue(backend.build_editable(temp).endswith("any.whl"))
                site = Path(temp) / "site"
                with zipfile.ZipFile(Path(temp) / name) as wheel:
                    self.assertIsNone(wheel.testzip())
                    wheel.extractall(site)
                code, out = python("import tessera; print(tessera.library_path, tessera.run_ranks(2, tessera.rank))", site)
                self.assertEqual((code, out.strip()), (0, f"{site.resolve() / 'tessera' / 'lib' / 'libtessera.so'} [0, 1]"))
        finally:
            os.environ.pop("TESSERA_LIBRARY")
            if former is not None:
                os.environ["TESSERA_LIBRARY"] = former


if __name__ == "__main__":
    unittest.main()
