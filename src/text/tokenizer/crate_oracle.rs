//! The same vocabulary in the `tokenizers` crate: the oracle of the encoder's tests and the
//! baseline of its speed.
//!
//! The file lists tokens with ranks and no merges; a merge is any split of a token into two tokens.
//! In rank order these merges make the crate's algorithm equal tiktoken's: join the neighbours
//! whose union has the lowest rank.

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use crate::test_data::golden;
use crate::tokenizer::tiktoken::{byte_alphabet, parse};

/// The real vocabulary without added tokens.
pub(super) fn kimi() -> tokenizers::Tokenizer {
    let tokens = parse(&golden("kimi/tiktoken.model")).unwrap();
    let mut tokenizer = tokenizers::Tokenizer::new(model(&tokens).unwrap());
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer().unwrap()));
    tokenizer
}

/// Kimi's split pattern (`tokenization_kimi.py`): Han runs stand alone, letters carry at most one leading mark and an English
/// contraction, digits go by three, newlines end punctuation and whitespace runs.
const KIMI_PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// The BPE model of tokens in rank order; every byte has a token (`parse` checks).
fn model(tokens: &[Box<[u8]>]) -> Result<BPE, String> {
    let alphabet = byte_alphabet();
    let spell = |bytes: &[u8]| bytes.iter().map(|&byte| alphabet[byte as usize]).collect::<String>();
    let spelled: Vec<String> = tokens.iter().map(|token| spell(token)).collect();
    let ranks: AHashMap<&[u8], u32> =
        tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank as u32)).collect();
    let mut merges = Vec::with_capacity(2 * tokens.len());
    let mut splits: Vec<(u32, u32)> = Vec::new();
    for token in tokens {
        splits.clear();
        for middle in 1..token.len() {
            let (left, right) = token.split_at(middle);
            if let Some(&left) = ranks.get(left)
                && let Some(&right) = ranks.get(right)
            {
                splits.push((left, right));
            }
        }
        splits.sort_unstable();
        for &(left, right) in &splits {
            merges.push((spelled[left as usize].clone(), spelled[right as usize].clone()));
        }
    }
    let vocab: AHashMap<String, u32> =
        spelled.into_iter().enumerate().map(|(rank, token)| (token, rank as u32)).collect();
    BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(true)
        .build()
        .map_err(|error| error.to_string())
}

/// Kimi's split, then bytes spelled in the byte-level alphabet.
fn pre_tokenizer() -> Result<PreTokenizerWrapper, String> {
    let pattern = SplitPattern::Regex(KIMI_PATTERN.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|e| e.to_string())?;
    let bytes = ByteLevel::new(false, false, false);
    Ok(PreTokenizerWrapper::Sequence(Sequence::new(vec![split.into(), bytes.into()])))
}
