"""The examples of README.md, in order, in one namespace."""
import os
import re
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


class Readme(unittest.TestCase):
    def test_examples(self):
        text = (HERE / "README.md").read_text()
        blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M))
        self.assertGreater(len(blocks), 4)
        names, former = {}, os.getcwd()
        os.chdir(HERE.parent)
        try:
            for block in blocks:
                line = text.count("\n", 0, block.start()) + 1
                exec(compile("\n" * line + block.group(1), str(HERE / "README.md"), "exec"), names)
        finally:
            os.chdir(former)


if __name__ == "__main__":
    unittest.main()
