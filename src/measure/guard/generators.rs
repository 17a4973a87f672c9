//! Loops as models write them, and honest repetition as people ask for it.

use crate::text::{Specials, Tokenizer};

/// Words for texts of our own.
const WORDS: &[&str] = &[
    "saliva", "allergen", "hair", "cat", "dander", "protein", "garden", "river", "window", "letter",
    "morning", "engine", "harbour", "village", "winter", "silver", "paper", "teacher", "stone", "music",
    "answer", "bridge", "forest", "market", "painter", "signal", "summer", "valley", "weather", "yellow",
    "because", "although", "between", "quietly", "slowly", "under", "after", "before", "carries", "follows",
    "gathers", "holds", "keeps", "leaves", "makes", "needs", "opens", "reads", "shows", "takes", "turns",
    "walks", "the", "a", "of", "and",
];

/// Classes of loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loop {
    /// One word.
    Word,
    /// Words joined by a hyphen.
    HyphenWord,
    /// 2 to 12 words.
    Phrase,
    /// 20 to 60 tokens.
    Sentence,
    /// 100 to 400 tokens.
    Paragraph,
    /// 500 to 900 tokens.
    Block,
    /// A line with a number that grows.
    Counter,
    /// A sentence of which this share of tokens, per cent, is another.
    Noise(u32),
    /// Five sentences in any order.
    Shuffled,
    /// Three words in any order.
    Soup,
    /// "!" or line breaks.
    Marks,
    /// So many tokens of a file, at least and at most: code, data, tables.
    Excerpt(usize, usize),
}

impl Loop {
    /// All classes.
    pub(super) const ALL: [Self; 16] = [
        Self::Word,
        Self::HyphenWord,
        Self::Phrase,
        Self::Sentence,
        Self::Paragraph,
        Self::Block,
        Self::Counter,
        Self::Noise(2),
        Self::Noise(5),
        Self::Noise(10),
        Self::Shuffled,
        Self::Soup,
        Self::Marks,
        Self::Excerpt(20, 60),
        Self::Excerpt(100, 400),
        Self::Excerpt(500, 900),
    ];

    /// Its name in tables.
    pub(super) fn name(self) -> String {
        match self {
            Self::Word => "single word".into(),
            Self::HyphenWord => "hyphen-word".into(),
            Self::Phrase => "phrase, 2-12 words".into(),
            Self::Sentence => "sentence, 20-60 tokens".into(),
            Self::Paragraph => "paragraph, 100-400".into(),
            Self::Block => "block, 500-900".into(),
            Self::Counter => "counter lines".into(),
            Self::Noise(share) => format!("{share} % noise"),
            Self::Shuffled => "shuffled sentences".into(),
            Self::Soup => "three-word soup".into(),
            Self::Marks => "\"!\" and newlines".into(),
            Self::Excerpt(least, most) => format!("excerpt of a file, {least}-{most} tokens"),
        }
    }

    /// Whether every copy is the same.
    pub(super) fn is_exact(self) -> bool {
        !matches!(self, Self::Counter | Self::Noise(_) | Self::Shuffled | Self::Soup)
    }

    /// `length` tokens of it. `file` is one of which an excerpt may be made; without it excerpts are of generated prose.
    pub(super) fn tokens(
        self,
        length: usize,
        rng: &mut fastrand::Rng,
        tokenizer: &Tokenizer,
        file: &[u32],
    ) -> Vec<u32> {
        let encode = |text: &str| tokenizer.encode(text, Specials::AsText).unwrap_or_default();
        let unit_of = |least: usize, most: usize, rng: &mut fastrand::Rng| {
            let wanted = rng.usize(least..=most);
            let mut unit = encode(&prose(wanted, rng));
            unit.truncate(wanted.max(1));
            unit
        };
        let cycle = |unit: Vec<u32>| unit.into_iter().cycle().take(length).collect::<Vec<u32>>();
        let collect = |mut next: Box<dyn FnMut() -> Vec<u32> + '_>| {
            let mut tokens = Vec::with_capacity(length + 64);
            while tokens.len() < length {
                tokens.extend(next());
            }
            tokens.truncate(length);
            tokens
        };
        match self {
            Self::Word => cycle(encode(&format!(" {}", word(rng)))),
            Self::HyphenWord => cycle(encode(&format!("-{}", word(rng)))),
            Self::Phrase => {
                let words: Vec<&str> = (0..rng.usize(2..=12)).map(|_| word(rng)).collect();
                cycle(encode(&format!(" {},", words.join(" "))))
            }
            Self::Sentence => cycle(unit_of(20, 60, rng)),
            Self::Paragraph => cycle(unit_of(100, 400, rng)),
            Self::Block => cycle(unit_of(500, 900, rng)),
            Self::Counter => {
                let line = prose(8, rng);
                let mut number = rng.u32(1..100);
                collect(Box::new(|| {
                    number += 1;
                    encode(&format!("Step {number}: {line}\n"))
                }))
            }
            Self::Noise(share) => {
                let mut tokens = cycle(unit_of(20, 60, rng));
                let others = encode(&prose(400, rng));
                for token in &mut tokens {
                    if rng.u32(0..100) < share {
                        *token = others[rng.usize(0..others.len())];
                    }
                }
                tokens
            }
            Self::Shuffled => {
                let sentences: Vec<Vec<u32>> =
                    (0..5).map(|_| encode(&format!(" {}", prose(14, rng)))).collect();
                collect(Box::new(|| sentences[rng.usize(0..sentences.len())].clone()))
            }
            Self::Soup => {
                let words: Vec<Vec<u32>> = (0..3).map(|_| encode(&format!(" {}", word(rng)))).collect();
                collect(Box::new(|| words[rng.usize(0..words.len())].clone()))
            }
            Self::Excerpt(least, most) => {
                let wanted = rng.usize(least..=most);
                cycle(match file.len().checked_sub(wanted) {
                    Some(rest) => file[rng.usize(0..=rest)..][..wanted].to_vec(),
                    None => unit_of(least, most, rng),
                })
            }
            Self::Marks => {
                let mut unit = encode(if rng.bool() { "!" } else { "\n" });
                unit.truncate(1);
                cycle(unit)
            }
        }
    }
}

/// A text of about so many words.
pub(super) fn prose(words: usize, rng: &mut fastrand::Rng) -> String {
    let mut text = String::new();
    for at in 0..words.max(1) {
        let ends = at > 0 && rng.u32(0..12) == 0;
        text.push_str(if ends {
            ". "
        } else if at > 0 {
            " "
        } else {
            ""
        });
        text.push_str(word(rng));
    }
    text + "."
}

fn word(rng: &mut fastrand::Rng) -> &'static str {
    WORDS[rng.usize(0..WORDS.len())]
}
