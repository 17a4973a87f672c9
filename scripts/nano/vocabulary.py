"""Kimi's tokenizer shape with few ranks: byte-level BPE under Kimi's split pattern, then a block of 256 special slots.

Merges stay inside one kind of character (letters with letters, punctuation with punctuation), so a word has the same tokens
wherever it stands; that is what lets a very small model copy words it never saw. Digits are never merged.
"""

import base64
from collections import Counter, defaultdict
from functools import lru_cache

import regex

BASE_RANKS = 1280
SPECIAL_SLOTS = 256
VOCAB_SIZE = BASE_RANKS + SPECIAL_SLOTS

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = regex.compile(
    "(?V1)"
    + "|".join(
        [
            r"[\p{Han}]+",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    )
)

# Offset in the special block -> (name, "special" flag of the tokenizer configuration).
SPECIALS = {
    0: ("[BOS]", True),
    1: ("[EOS]", True),
    2: ("<|im_end|>", True),
    3: ("<|im_user|>", True),
    4: ("<|im_assistant|>", True),
    6: ("<|start_header_id|>", True),
    7: ("<|end_header_id|>", True),
    9: ("[EOT]", True),
    10: ("<|im_system|>", True),
    11: ("<|tool_calls_section_begin|>", False),
    12: ("<|tool_calls_section_end|>", False),
    13: ("<|tool_call_begin|>", False),
    14: ("<|tool_call_argument_begin|>", False),
    15: ("<|tool_call_end|>", False),
    17: ("<|im_middle|>", True),
    18: ("<|media_begin|>", True),
    19: ("<|media_content|>", True),
    20: ("<|media_end|>", True),
    21: ("<|media_pad|>", True),
    22: ("<think>", False),
    23: ("</think>", False),
    254: ("[UNK]", True),
    255: ("[PAD]", True),
}
SPECIAL_IDS = {name: BASE_RANKS + offset for offset, (name, _) in SPECIALS.items()}
PAD = SPECIAL_IDS["[PAD]"]
STOPS = (SPECIAL_IDS["<|im_end|>"], SPECIAL_IDS["[EOS]"], SPECIAL_IDS["[EOT]"])
_SPECIAL_PATTERN = regex.compile("(" + "|".join(regex.escape(name) for name in SPECIAL_IDS) + ")")


@lru_cache(maxsize=None)
def _kind(token: bytes):
    """What a token is made of; None for a mixture, which is never merged."""
    if all(byte < 128 for byte in token):
        text = token.decode()
        if text.isalpha():
            return "letters"
        if not any(c.isalnum() for c in text):
            return "marks"
        return None
    if token[0] < 0xC0 or any(byte >= 0xC0 or byte < 0x80 for byte in token[1:]):
        return None
    return "character"


def learn(texts) -> list[bytes]:
    """Learns the ranks: 256 bytes, then the most frequent allowed pairs of the texts."""
    pieces = Counter()
    for text in texts:
        for part in _SPECIAL_PATTERN.split(text):
            if part not in SPECIAL_IDS:
                pieces.update(match.group().encode() for match in PATTERN.finditer(part))
    words = [([bytes([byte]) for byte in piece], count) for piece, count in pieces.items() if len(piece) > 1]
    pairs, where = Counter(), defaultdict(set)
    for index, (tokens, count) in enumerate(words):
        for pair in zip(tokens, tokens[1:]):
            if _kind(pair[0] + pair[1]):
                pairs[pair] += count
                where[pair].add(index)
    ranks = [bytes([byte]) for byte in range(256)]
    while len(ranks) < BASE_RANKS:
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = left + right
        if merged not in ranks:
            ranks.append(merged)
        for index in where.pop((left, right)):
            tokens, count = words[index]
            for pair in zip(tokens, tokens[1:]):
                if pair in pairs:
                    pairs[pair] -= count
            i = 0
            while i + 1 < len(tokens):
                if tokens[i] == left and tokens[i + 1] == right:
                    tokens[i : i + 2] = [merged]
                i += 1
            for pair in zip(tokens, tokens[1:]):
                if _kind(pair[0] + pair[1]):
                    pairs[pair] += count
                    where[pair].add(index)
        del pairs[left, right]
    return ranks


class Vocabulary:
    def __init__(self, ranks: list[bytes]):
        self.ranks = ranks
        self.rank_of = {token: rank for rank, token in enumerate(ranks)}
        self._piece = lru_cache(maxsize=200_000)(self._encode_piece)

    @classmethod
    def load(cls, path):
        with open(path) as file:
            return cls([base64.b64decode(line.split()[0]) for line in file if line.strip()])

    def save(self, path):
        with open(path, "w") as file:
            for rank, token in enumerate(self.ranks):
                file.write(f"{base64.b64encode(token).decode()} {rank}\n")

    def _encode_piece(self, piece: bytes):
        if piece in self.rank_of:
            return (self.rank_of[piece],)
        tokens = [piece[i : i + 1] for i in range(len(piece))]
        while len(tokens) > 1:
            best, at = min((self.rank_of.get(tokens[i] + tokens[i + 1], len(self.ranks)), i) for i in range(len(tokens) - 1))
            if best == len(self.ranks):
                break
            tokens[at : at + 2] = [tokens[at] + tokens[at + 1]]
        return tuple(self.rank_of[token] for token in tokens)

    def encode(self, text: str) -> list[int]:
        """Encodes plain text; special strings in it are ordinary characters."""
        ids = []
        for match in PATTERN.finditer(text):
            ids.extend(self._piece(match.group().encode()))
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """Encodes a rendered conversation, where special strings are control tokens."""
        ids = []
        for part in _SPECIAL_PATTERN.split(text):
            if part in SPECIAL_IDS:
                ids.append(SPECIAL_IDS[part])
            elif part:
                ids.extend(self.encode(part))
        return ids

    def decode(self, ids) -> str:
        names = {number: name for name, number in SPECIAL_IDS.items()}
        chunks = [self.ranks[i] if i < len(self.ranks) else names.get(i, f"<|reserved_token_{i}|>").encode() for i in ids]
        return b"".join(chunks).decode("utf-8", errors="replace")
