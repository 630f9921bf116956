#!/usr/bin/env python3
"""Makes the seeds of the fuzzers, tests/fuzz/corpus/<target>/, out of golden files.

    scripts/make_fuzz_corpus.py [GOLDEN_FOLDER]

Seeds are small: a fuzzer finds its way from structure, not from weights.
"""
import io
import json
import os
import struct
import sys
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CORPUS = os.path.join(ROOT, "tests", "fuzz", "corpus")


def save(target, name, data):
    folder = os.path.join(CORPUS, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)


def make_zip(entries, method):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as z:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            z.writestr(info, data)
    return buffer.getvalue()


def smallest(folder, ending, limit):
    """Contents of the files up to a size, smallest first, each once."""
    found = []
    for path, _, names in os.walk(folder):
        found += [os.path.join(path, n) for n in names if n.endswith(ending)]
    contents = set()
    for path in found:
        if os.path.getsize(path) <= limit:
            with open(path, "rb") as f:
                contents.add(f.read())
    return sorted(contents, key=lambda data: (len(data), data))


def safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def zip_seeds(golden):
    inner = make_zip({"archive/data.pkl": b"\x80\x02.", "archive/version": b"3\n"}, zipfile.ZIP_STORED)
    entries = {"m/models/model.json": b'{"graph_module": {}}', "m/data/weights/weight_0": bytes(64), "m/data/sample_inputs/model.pt": inner}
    save("zip", "stored.zip", make_zip(entries, zipfile.ZIP_STORED))
    save("zip", "deflated.zip", make_zip(entries, zipfile.ZIP_DEFLATED))
    for data in smallest(golden, ".pt2", 40000)[:1]:
        save("zip", "torch.pt2", data)


def safetensors_seeds(golden):
    save("safetensors", "empty.safetensors", safetensors({}, b""))
    save("safetensors", "metadata.safetensors", safetensors({"__metadata__": {"format": "pt"}}, b""))
    mixed = {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BOOL", "shape": [3], "data_offsets": [16, 19]},
        "c": {"dtype": "I64", "shape": [], "data_offsets": [19, 27]},
        "d": {"dtype": "BF16", "shape": [0, 5], "data_offsets": [27, 27]},
    }
    save("safetensors", "mixed.safetensors", safetensors(mixed, bytes(27)))
    for i, data in enumerate(smallest(golden, ".safetensors", 4000)[:3]):
        save("safetensors", f"golden_{i}.safetensors", data)


def json_seeds(golden):
    save("json", "values.json", b'{"a": [1, -2, 3.5, 1e300, true, null, "x\\u00e4\\n"], "b": {"c": {}}, "d": []}')
    save("json", "nan.json", b"[NaN, Infinity, -Infinity]")
    for i, data in enumerate(smallest(golden, ".json", 3000)[:3]):
        save("json", f"golden_{i}.json", data)


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests", "golden")
    zip_seeds(folder)
    safetensors_seeds(folder)
    json_seeds(folder)
