"""What a scenario file asks of attention kernels, counted without them."""
import itertools
import pathlib
import tomllib

CAUSAL = ("causal", "padding_causal")
FULL = ("no_mask", "padding")


class Shape:
    """Self attention of sequences that stand in slots of one packed buffer.

    Peers are asked for masks in which every query sees one interval of keys: causal, window, chunks, or none.
    ValueError names what is none of these.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.name = self.path.stem
        scenario = tomllib.loads(self.path.read_text())
        attention, batch = scenario["attention"], scenario["batch"]
        mask = attention.get("attn_mask_type", "causal")
        if mask not in CAUSAL + FULL:
            raise ValueError(f"{self.name}: peers are not asked for the mask {mask}")
        for key in ("kv_lengths", "kv_slots", "generator"):
            if key in batch:
                raise ValueError(f"{self.name}: peers are not asked for batch.{key}")
        for key in ("softcap", "rope_theta", "bias", "dropout"):
            if attention.get(key):
                raise ValueError(f"{self.name}: peers are not asked for attention.{key}")
        self.heads = attention["heads"]
        self.kv_heads = attention.get("kv_heads", self.heads)
        self.dim_qk = attention.get("head_dim_qk", attention.get("head_dim"))
        self.dim_v = attention.get("head_dim_v", self.dim_qk)
        self.is_causal = mask in CAUSAL
        self.is_packed = mask.startswith("padding")
        self.has_alibi = attention.get("alibi", False)
        self.is_fp8 = scenario.get("numerics", {}).get("dtype") == "fp8"
        self.window = tuple(attention.get("window_size", (-1, -1)))  # keys to the left and right; -1: all
        self.chunk = attention.get("chunk_size", 0)
        self.lengths = batch.get("lengths") or [batch["seqlen"]] * batch["batch_size"]
        self.slots = batch.get("slots", self.lengths)

    @property
    def tokens(self):
        return sum(self.slots)

    @property
    def is_padded(self):
        return list(self.slots) != list(self.lengths)

    @property
    def has_window(self):
        return max(self.window) >= 0

    @property
    def slopes(self):
        """ALiBi's, of each query head (arXiv:2108.12409, its code for numbers of heads that are no power of two)."""
        whole = 1 << self.heads.bit_length() - 1
        found = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
        return found + [2 ** (-4 * (2 * i + 1) / whole) for i in range(self.heads - whole)]

    @property
    def begins(self):
        """Packed token of each sequence's first."""
        return [0, *itertools.accumulate(self.slots)][:-1]

    def visible(self, i, length):
        """Half-open interval of the keys that query i of a sequence sees."""
        low, high = 0, length
        if self.is_causal:
            high = i + 1
        left, right = self.window
        if left >= 0:
            low = max(low, i - left)
        if right >= 0:
            high = min(high, i + right + 1)
        if self.chunk:
            first = i // self.chunk * self.chunk
            low, high = max(low, first), min(high, first + self.chunk)
        return low, max(low, high)

    @property
    def pieces(self):
        """(begin, length) of the stretches of packed tokens that see nothing of each other, padding left out."""
        found = []
        for begin, length in zip(self.begins, self.lengths):
            step = self.chunk or length
            found += [(begin + first, min(step, length - first)) for first in range(0, length, step)]
        return found

    @property
    def pairs(self):
        """(query, key, query head) triples that are visible."""
        counted = {}
        for length in self.lengths:
            if length not in counted:
                spans = (self.visible(i, length) for i in range(length))
                counted[length] = sum(high - low for low, high in spans)
        return self.heads * sum(counted[length] for length in self.lengths)

    def flops(self, name):
        """Of a pass, visible pairs alone, as `cpscope bench` counts: forward 2 (dim_qk + dim_v), backward
        2 (3 dim_qk + 2 dim_v) a pair and head."""
        forward, backward = 2 * (self.dim_qk + self.dim_v), 2 * (3 * self.dim_qk + 2 * self.dim_v)
        return self.pairs * {"forward": forward, "backward": backward, "both": forward + backward}[name]
