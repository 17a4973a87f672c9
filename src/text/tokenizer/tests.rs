use std::path::PathBuf;
use std::sync::LazyLock;

use super::*;
use crate::test_data::{golden, kimi, nano_like};

static KIMI: LazyLock<Tokenizer> = LazyLock::new(kimi);

#[test]
fn reference_encoder_rows_of_the_real_vocabulary() {
    let rows: Value = serde_json::from_slice(&golden("kimi/token_ids.json")).unwrap();
    let rows = rows.as_array().unwrap();
    assert!(rows.len() > 200, "only {} rows", rows.len());
    let ids = |row: &Value, key: &str| -> Vec<u32> {
        row[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    for row in rows {
        let text = row["text"].as_str().unwrap();
        assert_eq!(KIMI.encode(text, Specials::Recognised).unwrap(), ids(row, "ids"), "{text:?}");
        let plain = KIMI.encode(text, Specials::AsText).unwrap();
        assert_eq!(plain, ids(row, "ids_plain"), "{text:?} as text");
        assert_eq!(KIMI.decode(&plain, true), text);
    }
}

#[test]
fn golden_vectors() {
    let check = |text: &str, expected: &[u32]| {
        assert_eq!(KIMI.encode(text, Specials::Recognised).unwrap(), expected, "{text:?}");
    };
    check("Hello, world!", &[19180, 11, 2695, 0]);
    check("def f(x):\n    return x**2\n\n\n", &[1166, 285, 3940, 2360, 274, 745, 1288, 381, 17, 3898]);
    check("I'm don't WE'LL HELLO's", &[17172, 4536, 40893, 6, 5847, 63923, 2359, 1048]);
    check("naïve café Ünïcode", &[4768, 44187, 367, 70591, 61412, 77, 44187, 2431]);
    check("漢字kanji混じりABC", &[1435, 95, 1855, 14320, 15799, 5239, 57400, 16121, 55335]);
    check("<|im_user|>user<|im_middle|>Hi<|im_end|>", &[163587, 2482, 163601, 18699, 163586]);
    check("<|media_start|>", &[27, 91, 13634, 9485, 91, 29]);
    check("<|reserved_token_163700|>", &[163700]);
}

#[test]
fn hard_cuts_reach_the_ids() {
    // 25,001 letters: the cut before the last one keeps it from joining the others.
    let run = "a".repeat(25_001);
    let ids = KIMI.encode(&run, Specials::AsText).unwrap();
    let mut cut = KIMI.encode(&run[..25_000], Specials::AsText).unwrap();
    cut.extend(KIMI.encode("a", Specials::AsText).unwrap());
    assert_eq!(ids, cut);
    assert_eq!(KIMI.decode(&ids, false), run);
}

/// Texts of every kind of character that the split's alternatives tell apart, in runs and mixed.
fn random_text(rng: &mut fastrand::Rng) -> String {
    let words = [
        "the",
        " Quick",
        "BROWN",
        " fox's",
        "don'T",
        "'ll",
        "'ſ",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u{3000}",
        "\u{a0}",
        "1",
        "2345",
        "１２",
        "Ⅷ",
        "漢",
        "字々",
        "〆ー",
        "〇",
        "⺀",
        "ア",
        "한국어",
        "é",
        "e\u{301}",
        "\u{301}",
        "ǅ",
        "ʰ",
        "ß",
        "ÜN",
        "!",
        "?!",
        "...",
        "(x)",
        "🙂",
        "👩\u{200d}👩",
        "<|im_end|>",
        "\u{0}",
        "\u{85}",
        "\u{2028}",
        "न्दी",
        "عربي",
        "абв",
        "АБВ",
        "_",
        "-",
        "ﬁ",
        "𝒳",
        "\u{fffd}",
    ];
    let mut text = String::new();
    for _ in 0..rng.usize(0..24) {
        match rng.u8(..8) {
            0 => text.push(rng.char(..)),
            1 => {
                let c = rng.char('!'..='~');
                text.extend(std::iter::repeat_n(c, rng.usize(1..40)));
            }
            _ => text.push_str(words[rng.usize(..words.len())]),
        }
    }
    text
}

#[test]
fn ids_are_those_of_the_tokenizers_crate() {
    let oracle = crate_oracle::kimi();
    let mut rng = fastrand::Rng::with_seed(21);
    let check = |text: &str| {
        let expected = oracle.encode_fast(text, false).unwrap();
        assert_eq!(KIMI.encode(text, Specials::AsText).unwrap(), expected.get_ids(), "{text:?}");
    };
    for _ in 0..4_000 {
        check(&random_text(&mut rng));
    }
    for source in [include_str!("mod.rs"), include_str!("../../http/api/json.rs"), include_str!("tests.rs")] {
        check(source);
    }
    // Long pieces take the other merge path.
    check(&"aabca".repeat(300));
    check(&(0..3_000).map(|_| rng.char('a'..='e')).collect::<String>());
}

#[test]
fn facts_of_the_real_vocabulary() {
    assert_eq!(KIMI.vocab_size(), 163_840);
    assert_eq!(KIMI.num_added(), 256);
    assert_eq!(KIMI.eos_token(), Some(163_585));
    assert_eq!(KIMI.turn_ends(), [163_585, 163_586, 163_593]);
    assert_eq!(KIMI.special_id(markers::THINK), Some(163_606));
    assert!(KIMI.is_added(163_606) && !KIMI.is_special(163_606));
    assert!(KIMI.is_special(163_586) && KIMI.is_special(163_700));
    assert_eq!(KIMI.token_bytes(0), Some(&b"!"[..]));
    assert_eq!(KIMI.token_bytes(188), Some(&[0][..]));
    assert_eq!(KIMI.token_bytes(5885), Some(&[0xf0, 0x9f][..]));
    assert_eq!(KIMI.token_bytes(163_586), Some(markers::IM_END.as_bytes()));
    assert_eq!(KIMI.token_bytes(163_840), None);
    assert_eq!(KIMI.token_bytes(u32::MAX), None);
    assert_eq!(KIMI.decode(&[19180, 163_586, 163_606, 999_999], true), "Hello<think>");
}

#[test]
fn any_base_size_works() {
    let tokenizer = nano_like();
    assert_eq!(tokenizer.vocab_size(), 512);
    assert_eq!(tokenizer.special_id(markers::IM_END), Some(258));
    let ids = tokenizer.encode("é<|im_end|>", Specials::Recognised).unwrap();
    assert_eq!(ids, [0xc3, 0xa9, 258]);
    assert_eq!(tokenizer.encode("<|im_end|>", Specials::AsText).unwrap().len(), 10);
}

#[test]
fn load_picks_the_file_that_exists() {
    let none = |_: &str| None;
    let error = Tokenizer::load(&none).unwrap_err().to_string();
    assert!(error.contains("tiktoken.model") && error.contains("tokenizer.json"), "{error}");
    let folder = |name: &str| std::fs::read(golden_path("logits/kimi").join(name)).ok();
    assert_eq!(Tokenizer::load(&folder).unwrap().vocab_size(), 512);
    let json = |name: &str| (name == TOKENIZER_FILE).then(|| small_json().into_bytes());
    assert_eq!(Tokenizer::load(&json).unwrap().special_id("<s>"), Some(257));
}

fn golden_path(name: &str) -> PathBuf {
    crate::test_data::golden_path(name)
}

/// 256 bytes, the merge of `a` and `b`, and one added token.
fn small_json() -> String {
    let mut vocab: serde_json::Map<String, Value> =
        tiktoken::byte_alphabet().into_iter().zip(0u32..).map(|(c, id)| (c.to_string(), id.into())).collect();
    vocab.insert("ab".to_owned(), 256.into());
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 257, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["a", "b"]]}
    })
    .to_string()
}

#[test]
fn tokenizer_json_with_byte_level_bpe() {
    let tokenizer = Tokenizer::from_tokenizer_json(small_json().as_bytes(), None).unwrap();
    assert_eq!(tokenizer.encode("ab<s> é", Specials::Recognised).unwrap(), [256, 257, 32, 0xc3, 0xa9]);
    assert_eq!(tokenizer.encode("<s>", Specials::AsText).unwrap(), [60, 115, 62]);
    assert_eq!(tokenizer.decode(&[256, 257, 32, 0xc3, 0xa9], false), "ab<s> é");
    assert_eq!(tokenizer.vocab_size(), 258);
    let config = br#"{"eos_token": {"content": "<s>"}}"#;
    let tokenizer = Tokenizer::from_tokenizer_json(small_json().as_bytes(), Some(config)).unwrap();
    assert_eq!(tokenizer.eos_token(), Some(257));
}

#[test]
fn hostile_files_are_errors() {
    let good = small_json();
    let cases = [
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        good.replace(r#""decoder":{"type":"ByteLevel""#, r#""decoder":{"type":"Nonsense""#),
        good.replace(r#"["a","b"]"#, r#"["a","zz"]"#),
        good.replace(r#""ab":256"#, r#""ab":4000000000"#),
        good.replace(r#""a":97,"#, ""),
        good.replace(r#""merges":[["a","b"]]"#, r#""merges":[["ab","ab"]]"#),
        good.replace(r#""id":257"#, r#""id":-1"#),
    ];
    for case in cases {
        assert_ne!(case, good, "the case changes nothing");
        assert!(Tokenizer::from_tokenizer_json(case.as_bytes(), None).is_err(), "{case:.200}");
    }
    let model = golden("logits/kimi/tiktoken.model");
    for (config, reason) in [
        ("[]", "not an object"),
        ("{", "EOF"),
        (r#"{"added_tokens_decoder": 3}"#, "not an object"),
        (r#"{"added_tokens_decoder": {"x": {"content": "a"}}}"#, "not a token id"),
        (r#"{"added_tokens_decoder": {"300": {}}}"#, "no content"),
        (
            r#"{"added_tokens_decoder": {"5": {"content": "a"}}}"#,
            "id 5 is outside the special slots 256 to 511",
        ),
        (r#"{"added_tokens_decoder": {"300": {"content": ""}}}"#, "empty"),
        (r#"{"added_tokens_decoder": {"300": {"content": "a"}, "301": {"content": "a"}}}"#, "same text"),
        (r#"{"eos_token": "[NONE]"}"#, "eos_token"),
    ] {
        let error = Tokenizer::from_tiktoken(&model, Some(config.as_bytes())).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(CONFIG_FILE), "{error} does not say {reason}");
    }
}

/// A measurement: prints the costs. Run with `--run-ignored only --no-capture`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    use std::time::Instant;
    let (model, config) = (golden("kimi/tiktoken.model"), golden("kimi/tokenizer_config.json"));
    for _ in 0..3 {
        let start = Instant::now();
        Tokenizer::from_tiktoken(&model, Some(&config)).unwrap();
        println!("load {:?}", start.elapsed());
    }
    let oracle = crate_oracle::kimi();
    let prose =
        "The quick brown fox, 12345 times; naïve 漢字 and\n    indented code(x) => {}\n".repeat(4_000);
    let code = [include_str!("../template/jinja.rs"), include_str!("tests.rs")].concat().repeat(6);
    let chinese = "月之暗面的模型，你好世界！日本語テスト한국어 ".repeat(8_000);
    for (name, text) in [("prose", prose), ("code", code), ("chinese", chinese)] {
        for _ in 0..3 {
            let start = Instant::now();
            let ids = KIMI.encode(&text, Specials::AsText).unwrap();
            let own = start.elapsed();
            let start = Instant::now();
            let plain = oracle.encode_fast(text.as_str(), false).unwrap().len();
            let speed = |time: std::time::Duration| text.len() as f64 / 1e6 / time.as_secs_f64();
            println!(
                "{name}: {} bytes, {} and {plain} tokens: {:.1} MB/s, the crate {:.1} MB/s",
                text.len(),
                ids.len(),
                speed(own),
                speed(start.elapsed())
            );
        }
    }
}
