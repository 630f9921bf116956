"""Builds the wheel: the package and libtessera.so in one.  PEP 517 and 660; needs nothing but
Python, so `pip install ./python` works without a network (NumPy apart).

With it goes libtessera_mpi.so, if there is one beside it (ranks as processes of an MPI launch).
The library is, in this order: TESSERA_LIBRARY; build/libtessera.so of the source tree, if it is
newer than the sources; built with cmake; an installed one (pkg-config).
"""
import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent
NAME, VERSION = "tessera_spmd", "0.1.0"
LIBRARY, MPI_PLUGIN = "libtessera.so", "libtessera_mpi.so"


def _newest(folder, patterns):
    return max((f.stat().st_mtime for p in patterns for f in folder.glob(p)), default=0)


def _is_fresh(library):
    sources = max(_newest(SOURCE / "src", ["**/*.c", "**/*.h"]), _newest(SOURCE / "include", ["*.h"]))
    return library.exists() and library.stat().st_mtime >= sources


def _build_with_cmake(temp):
    if (SOURCE / "scripts" / "setup").exists():
        # By this Python's pip, which is hidden from builds.  Should it fail, cmake will say it.
        hidden = ("PYTHONPATH", "PYTHONNOUSERSITE", "PEP517_", "_PYPROJECT_HOOKS_", "PIP_BUILD_TRACKER")
        visible = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        subprocess.run([str(SOURCE / "scripts" / "setup"), "--yyjson"], env=dict(visible, PYTHON=sys.executable))
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    for command in (["cmake", "-S", str(SOURCE), "-B", temp, "-DCMAKE_BUILD_TYPE=Release", *generator],
                    ["cmake", "--build", temp, "--target", "tessera_libraries", "--parallel", str(os.cpu_count() or 1)]):
        print("+", *command, flush=True)
        subprocess.run(command, check=True)
    return Path(temp) / LIBRARY


def _installed():
    try:
        out = subprocess.run(["pkg-config", "--variable=libdir", "tessera"], capture_output=True, text=True, check=True)
        library = Path(out.stdout.strip()) / LIBRARY
        return library if library.exists() else None
    except (OSError, subprocess.CalledProcessError):
        return None


def _library(temp):
    given = os.environ.get("TESSERA_LIBRARY")
    if given:
        path = Path(given) / LIBRARY if Path(given).is_dir() else Path(given)
        if not path.exists():
            raise SystemExit(f"TESSERA_LIBRARY says {path}, which is not there")
        return path
    in_tree = (SOURCE / "CMakeLists.txt").exists() and (SOURCE / "include" / "tessera.h").exists()
    built = SOURCE / "build" / LIBRARY
    if in_tree and _is_fresh(built):
        return built
    problem = "there is no source tree around this folder"
    if in_tree and shutil.which("cmake"):
        try:
            return _build_with_cmake(temp)
        except subprocess.CalledProcessError as e:
            problem = f"cmake failed ({e}); scripts/setup installs what the build needs"
    elif in_tree:
        problem = "cmake is not installed"
    found = _installed()
    if found:
        return found
    raise SystemExit(f"libtessera.so was not found: {problem}, pkg-config knows no tessera, and TESSERA_LIBRARY is not set")


def _metadata():
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    return (f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VERSION}\n"
            "Summary: Exported PyTorch programs, ATen ops and DTensors on CPU ranks, from a small C library\n"
            "License: Apache-2.0\nRequires-Python: >=3.9\nRequires-Dist: numpy>=1.22\n"
            f"Description-Content-Type: text/markdown\n\n{readme}")


def _tag():
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _wheel_text(tag):
    return f"Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\nTag: {tag}\n"


class _Wheel:
    def __init__(self, folder, tag):
        self.name = f"{NAME}-{VERSION}-{tag}.whl"
        self.tag, self.record = tag, []
        self.zip = zipfile.ZipFile(Path(folder) / self.name, "w", zipfile.ZIP_DEFLATED)
        self.info = f"{NAME}-{VERSION}.dist-info"

    def add(self, name, data, mode=0o644):
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        self.add(f"{self.info}/METADATA", _metadata().encode())
        self.add(f"{self.info}/WHEEL", _wheel_text(self.tag).encode())
        self.add(f"{self.info}/top_level.txt", b"tessera\n")
        self.record.append(f"{self.info}/RECORD,,")
        self.zip.writestr(f"{self.info}/RECORD", "\n".join(self.record) + "\n")
        self.zip.close()
        return self.name


def _modules():
    return sorted((HERE / "tessera").glob("*.py"))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    wheel = _Wheel(wheel_directory, _tag())
    for f in _modules():
        wheel.add(f"tessera/{f.name}", f.read_bytes())
    with tempfile.TemporaryDirectory() as temp:
        library = _library(temp)
        wheel.add(f"tessera/lib/{LIBRARY}", library.read_bytes(), 0o755)
        plugin = library.parent / MPI_PLUGIN
        if plugin.exists():
            wheel.add(f"tessera/lib/{MPI_PLUGIN}", plugin.read_bytes(), 0o755)
    return wheel.close()


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Without it pip would build twice."""
    info = Path(metadata_directory) / f"{NAME}-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata(), encoding="utf-8")
    (info / "WHEEL").write_text(_wheel_text(_tag()), encoding="utf-8")
    return info.name


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A pointer to this folder; the library is that of the source tree's build folder."""
    wheel = _Wheel(wheel_directory, "py3-none-any")
    wheel.add("tessera_spmd.pth", (str(HERE) + "\n").encode())
    return wheel.close()


def build_sdist(sdist_directory, config_settings=None):
    base = f"{NAME}-{VERSION}"
    path = Path(sdist_directory) / f"{base}.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for f in [HERE / "pyproject.toml", HERE / "README.md", HERE / "backend.py", *_modules()]:
            tar.add(f, f"{base}/{f.relative_to(HERE)}")
        info = tarfile.TarInfo(f"{base}/PKG-INFO")
        data = _metadata().encode()
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return path.name


if __name__ == "__main__":
    print(build_wheel(sys.argv[1] if len(sys.argv) > 1 else "."))
