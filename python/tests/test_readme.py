"""The examples of README.md, docs/training-api.md, docs/parallel-modules.md and docs/fsdp.md, in order, in one namespace each."""
import os
import re
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


class Readme(unittest.TestCase):
    def run_blocks(self, page, least):
        text = page.read_text()
        blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M))
        self.assertGreaterEqual(len(blocks), least)
        names, former = {}, os.getcwd()
        os.chdir(HERE.parent)
        try:
            for block in blocks:
                line = text.count("\n", 0, block.start()) + 1
                exec(compile("\n" * line + block.group(1), str(page), "exec"), names)
        finally:
            os.chdir(former)

    def test_readme(self):
        self.run_blocks(HERE / "README.md", 5)

    def test_training(self):
        self.run_blocks(HERE.parent / "docs" / "training-api.md", 2)

    def test_parallel_modules(self):
        self.run_blocks(HERE.parent / "docs" / "parallel-modules.md", 1)

    def test_fsdp(self):
        self.run_blocks(HERE.parent / "docs" / "fsdp.md", 1)


if __name__ == "__main__":
    unittest.main()
