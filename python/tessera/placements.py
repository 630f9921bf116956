"""What one mesh axis does to a tensor.

A placement is its text, in PyTorch's spelling, and compares equal to any spelling of it:
Shard(0) == "S(0)" == "Shard(dim=0)"."""
import re


class Placement(str):
    """Base of Shard, Replicate and Partial."""

    __slots__ = ()

    def is_replicate(self):
        return isinstance(self, Replicate)

    def is_shard(self, dim=None):
        return isinstance(self, Shard) and (dim is None or self.dim == dim)

    def is_partial(self, reduce_op=None):
        return isinstance(self, Partial) and (reduce_op is None or self.op == reduce_op)

    def __eq__(self, other):
        if isinstance(other, str) and not isinstance(other, Placement):
            try:
                other = parse_one(other)
            except ValueError:
                return False
        return str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__

    def __str__(self):
        return str.__str__(self)


class Replicate(Placement):
    """Every rank of the axis has the whole."""

    __slots__ = ()

    def __new__(cls):
        return str.__new__(cls, "R")

    def __getnewargs__(self):
        return ()

    def __repr__(self):
        return "Replicate()"


class Shard(Placement):
    """Dimension dim is cut into one piece per rank.

    factor: it is a row of that many equal segments, each cut by itself (_StridedShard).
    segments: the same with segments of these sizes, as in a fused qkv with few KV heads.
    unit: cuts fall on multiples of it, as whole heads.
    turn: where several axes cut one dimension, the order in which they do (0, 1 ...)."""

    def __new__(cls, dim, segments=None, factor=1, unit=1, turn=None):
        if segments is not None:
            segments = tuple(int(s) for s in segments)
            if len(set(segments)) <= 1:
                factor, segments = max(len(segments), 1), None
        if factor != 1 and unit == 1:
            text = f"_S({dim}, {factor})"
        else:
            text = f"S({dim}"
            if factor != 1:
                text += f"; factor {factor}"
            if segments:
                text += "; segments " + ",".join(map(str, segments))
            text += f"; unit {unit})" if unit != 1 else ")"
        if turn is not None:
            text += f"[{turn}]"
        self = str.__new__(cls, text)
        self.dim, self.segments, self.factor, self.unit, self.turn = int(dim), segments, factor, unit, turn
        return self

    def __getnewargs__(self):
        return self.dim, self.segments, self.factor, self.unit, self.turn

    def __repr__(self):
        more = "".join(f", {n}={v!r}" for n, v in (("segments", self.segments), ("factor", self.factor), ("unit", self.unit), ("turn", self.turn))
                       if v not in (None, 1) or (n == "turn" and v is not None))
        return f"Shard({self.dim}{more})"


class Partial(Placement):
    """Every rank has a value of full size; the true one is their op: sum avg min max product
    band bor bxor, or "norm 2"."""

    OPS = ("sum", "avg", "min", "max", "product", "band", "bor", "bxor")

    def __new__(cls, reduce_op="sum"):
        op = str(reduce_op)
        if op not in cls.OPS and not op.startswith("norm "):
            raise ValueError(f"there is no reduction '{op}'; there are {', '.join(cls.OPS)}")
        self = str.__new__(cls, f"P({op})")
        self.op = self.reduce_op = op
        return self

    def __getnewargs__(self):
        return (self.op,)

    def __repr__(self):
        return f"Partial({self.op!r})"


_ONE = re.compile(r"(Replicate|R|_StridedShard|_S|Shard|S|Partial|P)\s*(\([^()]*\))?\s*(\[\s*\d+\s*\])?")


def _make(name, inside, turn):
    inside = inside[1:-1].strip() if inside else ""
    if name[0] == "R":
        return Replicate()
    if name[0] == "P":
        return Partial(inside.removeprefix("reduce_op=").strip("'\" ") or "sum")
    options = {"turn": int(turn[1:-1])} if turn else {}
    head, *rest = [p.strip() for p in inside.split(";")]
    numbers = [int(n) for n in re.findall(r"-?\d+", head)]
    if not numbers:
        raise ValueError(inside)
    if len(numbers) > 1:
        options["factor"] = numbers[1]
    for part in rest:
        word, _, value = part.replace("=", " ").partition(" ")
        options[word] = [int(v) for v in value.split(",")] if word == "segments" else int(value)
    return Shard(numbers[0], **options)


def parse(text):
    """The placements that a text spells, as a tuple: "S(0)R", "[Shard(dim=0), Replicate()]"."""
    found, at = [], 0
    body = text.strip().removeprefix("[").removeprefix("(").rstrip()
    if len(body) < len(text.strip()):
        body = body[:-1]
    while at < len(body):
        if body[at] in ", ":
            at += 1
            continue
        m = _ONE.match(body, at)
        if not m:
            raise ValueError(f"{text!r} is no list of placements")
        try:
            found.append(_make(*m.groups()))
        except (TypeError, ValueError):
            raise ValueError(f"{text!r}: {m.group()!r} is no placement") from None
        at = m.end()
    return tuple(found)


def parse_one(text):
    found = parse(text)
    if len(found) != 1:
        raise ValueError(f"{text!r} is not one placement")
    return found[0]


def text_of(placements):
    """What the library reads: of one string, or a list of placements and strings."""
    if isinstance(placements, str):
        return str.__str__(placements).encode()
    return ",".join(_spell(p) for p in placements).encode()


def _spell(p):
    if isinstance(p, str):
        return str.__str__(p)
    return str(p)  # a placement of torch.distributed prints alike
