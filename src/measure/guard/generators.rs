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
}

impl Loop {
    /// All classes.
    pub(super) const ALL: [Self; 13] = [
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
        }
    }

    /// Whether every copy is the same.
    pub(super) fn is_exact(self) -> bool {
        !matches!(self, Self::Counter | Self::Noise(_) | Self::Shuffled | Self::Soup)
    }

    /// `length` tokens of it.
    pub(super) fn tokens(self, length: usize, rng: &mut fastrand::Rng, tokenizer: &Tokenizer) -> Vec<u32> {
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

/// Requests for repetition, and what an honest reply to them is: (name, request, reply).
pub(super) fn requested() -> Vec<(&'static str, String, String)> {
    let lines =
        |count: usize, line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<Vec<_>>().join("\n");
    let row = |cell: &str, cells: usize| vec![cell; cells].join(" ");
    let ask = |name, request: &str, reply: String| (name, request.to_owned(), reply);
    let song = "Row, row, row your boat,\ngently down the stream.\n";
    vec![
        ask("ha", "Write the word ha 200 times.", "ha ".repeat(200)),
        ask("letter A", "Write the letter A 500 times.", "A".repeat(500)),
        ask("zero array", "Give me a Python list of 1000 zeros.", format!("[{}]", vec!["0"; 1000].join(", "))),
        ask("sentence", "Write \"I will not talk in class.\" 100 times.", "I will not talk in class.\n".repeat(100)),
        ask("base64", "What is the base64 encoding of 3000 zero bytes?", "AAAA".repeat(1000)),
        ask("box", "Draw a box of 60 columns and 40 rows.", format!("┌{}┐\n{}└{}┘", "─".repeat(58), format!("│{}│\n", " ".repeat(58)).repeat(38), "─".repeat(58))),
        ask("checkerboard", "Draw a 64x64 checkerboard with # and .", format!("{}\n{}\n", "#.".repeat(32), ".#".repeat(32)).repeat(32)),
        ask("sql", "Write 120 identical INSERT rows for the table log.", "INSERT INTO log (level, code) VALUES ('info', 0);\n".repeat(120)),
        ask("nop", "List 300 nop instructions.", "nop\n".repeat(300)),
        ask("morse", "Write SOS in Morse code 150 times.", "... --- ... ".repeat(150)),
        ask("hexdump", "Show a hexdump of 8192 zero bytes without addresses.", "0000 0000 0000 0000 0000 0000 0000 0000\n".repeat(512)),
        ask("dashes", "Print a line of four hundred dashes.", "-".repeat(400)),
        ask("markdown table", "A markdown table with 100 rows of dashes, three columns.", format!("| a | b | c |\n|---|---|---|\n{}", "| - | - | - |\n".repeat(100))),
        ask("csv zeros", "A CSV of 300 rows, all 0,0,0,0.", "0,0,0,0\n".repeat(300)),
        ask("json nulls", "A JSON array of 400 nulls, please.", format!("[{}]", vec!["null"; 400].join(", "))),
        ask("identity", "Write the 32x32 identity matrix.", lines(32, &|r| (0..32).map(|c| if r == c { "1" } else { "0" }).collect::<Vec<_>>().join(" "))),
        ask("om", "Write Om 108 times, one per line.", "Om\n".repeat(108)),
        ask("refrain", "Sing \"Row, row, row your boat, gently down the stream.\" 30 times.", song.repeat(30)),
        ask("contents", "Write a table of contents for a book of thirty chapters.", lines(30, &|n| format!("Chapter {n} {} {}", ".".repeat(60), n * 12))),
        ask("multiplication", "Print the multiplication table up to 12.", lines(12, &|a| (1..=12).map(|b| format!("{}", (a + 1) * b)).collect::<Vec<_>>().join("\t"))),
        ask("numbered list", "Make a numbered list of 200 items named item.", lines(200, &|n| format!("{}. item", n + 1))),
        ask("count", "Count from 1 to 500.", (1..=500).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")),
        ask("dna", "Write a DNA sequence of 2000 A.", "A".repeat(2000)),
        ask("emoji", "Send me 300 cat emojis 🐱.", "🐱".repeat(300)),
        ask("paragraph", "Repeat this paragraph 12 times: The quick brown fox jumps over the lazy dog while the cat looks on from the roof of the old house by the river.", "The quick brown fox jumps over the lazy dog while the cat looks on from the roof of the old house by the river.\n".repeat(12)),
        ask("log", "Make up a log of 150 lines.", lines(150, &|n| format!("2026-01-01T00:{:02}:{:02}Z INFO worker started id={}", n / 60, n % 60, 1000 + n * 7))),
        ask("tests", "Write 60 unit tests for f, in a fence.", format!("```python\n{}\n```", lines(60, &|n| format!("def test_f_{n}():\n    assert f({n}) == {}\n", n * n)))),
        ask("docstrings", "Write a class with 40 documented methods, in a fence.", format!("```python\nclass A:\n{}\n```", lines(40, &|n| format!("    def method_{n}(self):\n        \"\"\"Does the thing and returns the result of it.\"\"\"\n        return self.value\n")))),
        ask("yaml plan", "Write a YAML plan with 60 tasks.", lines(60, &|n| format!("- id: task{n}\n  owner: nobody\n  depends_on: []"))),
        ask("filled box", "Draw a filled rectangle of # with 80 columns and 30 rows.", format!("{}\n", "#".repeat(80)).repeat(30)),
        ask("blank lines", "Output 200 blank lines.", "\n".repeat(200)),
        ask("copied input", &format!("Correct the spelling and write it out again:\n{}", "the rain in spain stays in the plain\n".repeat(12)), "The rain in Spain stays in the plain.\n".repeat(12)),
        ask("copy", &format!("Copy this exactly:\n{}", "ping pong ".repeat(90)), "ping pong ".repeat(90)),
        ask("yes", "Write yes 1000 times, separated by commas.", vec!["yes"; 1000].join(", ")),
        ask("spaces", "Write a line with 600 spaces and then the word end.", format!("{}end", " ".repeat(600))),
        ask("no end", "Keep repeating the word poem forever.", row("poem", 3000)),
    ]
}
