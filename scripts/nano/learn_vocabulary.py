"""Learns the vocabulary on text of the curriculum and writes `tiktoken.model`."""

import random
import sys

from conversation import render
from curriculum import conversation
from vocabulary import Vocabulary, learn

rng = random.Random(7)
texts = ["".join(text for text, _ in render(conversation(rng))) for _ in range(25_000)]
ranks = learn(texts)
Vocabulary(ranks).save(sys.argv[1])
print(len(ranks), "ranks;", b" ".join(ranks[256:330]), b" ".join(ranks[-60:]))
