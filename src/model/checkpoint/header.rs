//! The header of one safetensors file: 8 bytes of little-endian length, that many bytes of JSON,
//! then the data.
//!
//! Format: <https://github.com/huggingface/safetensors>. Invariant of the result of [`parse`]: the
//! tensors tile the data exactly, in offset order, and each spans as many bytes as its shape and
//! dtype take. Memory use is linear in the header's actual length, not in the length it claims.
//!
//! Entries and their types are those of the format's own crate. Its `Metadata` is not used: it drops a
//! name that is listed twice, accepts shapes of any rank, and stops at the first fault without
//! naming the tensor or the bytes. Tests hold this reading against the crate's.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use safetensors::tensor::{Dtype, TensorInfo};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::error::HeaderProblem;

/// Longest header, bytes; the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length field.
const LENGTH_BYTES: usize = 8;
/// Upper bound on the dimensions of a tensor. Released tensors have at most five; the bound limits
/// the memory of hostile shapes.
const MAX_RANK: usize = 16;
/// Upper bound on the characters of the parser's message, which may quote the header.
const MAX_QUOTED: usize = 500;

/// Location of one tensor in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorEntry {
    /// Name as stored.
    pub(super) name: String,
    /// Element type.
    pub(super) dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub(super) shape: Vec<usize>,
    /// First byte, from the beginning of the file.
    pub(super) start: usize,
    /// End of the data, exclusive.
    pub(super) end: usize,
}

/// Reads and checks the header of a whole `file`; entries are in offset order. Errors: all problems
/// of the header.
pub(super) fn parse(file: &[u8]) -> Result<Vec<TensorEntry>, Vec<HeaderProblem>> {
    let (json, data_start) = split(file).map_err(|p| vec![p])?;
    let raw: RawHeader =
        serde_json::from_slice(json).map_err(|e| vec![HeaderProblem::Json(shortened(&e))])?;
    let data_len = file.len() - data_start;
    let mut problems = Vec::new();
    let mut entries: Vec<TensorEntry> = Vec::with_capacity(raw.tensors.len());
    for (name, tensor) in raw.tensors {
        match check_tensor(name, tensor, data_start, data_len) {
            Ok(entry) => entries.push(entry),
            Err(problem) => problems.push(problem),
        }
    }
    check_names(&entries, &mut problems);
    if problems.is_empty() {
        // A tensor missing from the list would leave a gap, which is not a second fault.
        entries.sort_by_key(|e| (e.start, e.end)); // Mostly sorted already, which this sort makes use of.
        check_tiling(&entries, data_start, data_len, &mut problems);
    }
    if problems.is_empty() { Ok(entries) } else { Err(problems) }
}

/// The JSON bytes, and the offset of the data.
fn split(file: &[u8]) -> Result<(&[u8], usize), HeaderProblem> {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(HeaderProblem::NoLength { len: file.len() });
    };
    let len = u64::from_le_bytes(*length);
    if len > MAX_HEADER_BYTES {
        return Err(HeaderProblem::TooLong { len, limit: MAX_HEADER_BYTES });
    }
    let Some(json) = rest.get(..len as usize) else {
        return Err(HeaderProblem::Truncated { len, available: rest.len() });
    };
    if json.first() != Some(&b'{') {
        return Err(HeaderProblem::Json("it does not begin with {".into()));
    }
    Ok((json, LENGTH_BYTES + len as usize))
}

/// The parser's message, in a bounded length.
fn shortened(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Checks one tensor by itself.
fn check_tensor(
    name: String,
    info: TensorInfo,
    data_start: usize,
    data_len: usize,
) -> Result<TensorEntry, HeaderProblem> {
    let TensorInfo { dtype, shape, data_offsets: (start, end) } = info;
    if shape.len() > MAX_RANK {
        return Err(HeaderProblem::Rank { tensor: name, rank: shape.len(), limit: MAX_RANK });
    }
    if start > end || end > data_len {
        return Err(HeaderProblem::OutOfRange { tensor: name, start, end, data_len });
    }
    let bits = shape.iter().try_fold(dtype.bitsize(), |product, &dim| product.checked_mul(dim));
    let Some(bits) = bits else {
        return Err(HeaderProblem::Overflow { tensor: name, shape, dtype: dtype.to_string() });
    };
    // A sub-byte type that does not fill its last byte fails here too: the span is whole bytes.
    let (expected, got) = (bits.div_ceil(8), end - start);
    if expected != got || bits % 8 != 0 {
        return Err(HeaderProblem::WrongSize {
            tensor: name,
            shape,
            dtype: dtype.to_string(),
            expected,
            got,
        });
    }
    let (start, end) = (data_start + start, data_start + end);
    Ok(TensorEntry { name, dtype, shape, start, end })
}

/// Reports names that occur twice.
fn check_names(entries: &[TensorEntry], problems: &mut Vec<HeaderProblem>) {
    let mut seen = HashSet::with_capacity_and_hasher(entries.len(), ahash::RandomState::default());
    let mut twice: Vec<&str> =
        entries.iter().map(|entry| &*entry.name).filter(|name| !seen.insert(*name)).collect();
    twice.sort_unstable();
    problems.extend(twice.into_iter().map(|name| HeaderProblem::Duplicate { tensor: name.into() }));
}

/// Checks that entries, sorted by offset, cover the data without overlap or gap.
fn check_tiling(
    entries: &[TensorEntry],
    data_start: usize,
    data_len: usize,
    problems: &mut Vec<HeaderProblem>,
) {
    let mut end = data_start;
    let mut last: Option<&TensorEntry> = None;
    for entry in entries {
        if entry.start > end {
            problems.push(HeaderProblem::Gap { start: end - data_start, end: entry.start - data_start });
        } else if entry.start < end {
            problems.push(HeaderProblem::Overlap {
                first: last.map(|e| e.name.clone()).unwrap_or_default(),
                second: entry.name.clone(),
                at: entry.start - data_start,
            });
        }
        if entry.end >= end {
            (end, last) = (entry.end, Some(entry));
        }
    }
    if end - data_start != data_len {
        problems.push(HeaderProblem::Gap { start: end - data_start, end: data_len });
    }
}

/// The JSON object, with duplicate names kept for the report.
struct RawHeader {
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<BTreeMap<String, String>>()?;
                    } else {
                        match map.next_value() {
                            Ok(info) => tensors.push((name, info)),
                            Err(e) => return Err(de::Error::custom(format_args!("tensor {name}: {e}"))),
                        }
                    }
                }
                Ok(RawHeader { tensors })
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use perigee_numbers::tensor::ElementType;

    /// A file with this JSON header and `data_len` bytes of data.
    pub(crate) fn file(json: &str, data_len: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.extend((0..data_len).map(|i| i as u8));
        bytes
    }

    const GOOD: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"s":{"dtype":"F16","shape":[],"data_offsets":[32,34]},
        "e":{"dtype":"I64","shape":[0,7],"data_offsets":[34,34]},"q":{"dtype":"F4","shape":[2,2],"data_offsets":[34,36]}}"#;

    #[test]
    fn good_header_tiles_the_data() {
        let bytes = file(GOOD, 36);
        let entries = parse(&bytes).unwrap();
        let names: Vec<_> = entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "s", "e", "q"]);
        let start = bytes.len() - 36;
        assert_eq!((entries[1].start, entries[1].end), (start + 24, start + 32));
        assert_eq!(entries[4].dtype, Dtype::F4);
        assert!(entries[2].shape.is_empty());
    }

    #[test]
    fn bad_headers_say_what_is_wrong() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let cases: &[(String, usize, &str)] = &[
            (one("F32", "[2]", "[0,8]"), 9, "bytes 8..9 of the data belong to no tensor"),
            (one("F32", "[2]", "[0,8]"), 7, "data offsets 0..8 do not lie in the 7 bytes"),
            (one("F32", "[2]", "[8,0]"), 8, "data offsets 8..0"),
            (one("F32", "[3]", "[0,8]"), 8, "takes 12 bytes, its offsets span 8"),
            (one("F4", "[3]", "[0,2]"), 2, "tensor a: shape [3] of F4"),
            (one("F99", "[2]", "[0,8]"), 8, "tensor a: unknown variant `F99`, expected one of `BOOL`, `F4`"),
            (one(&"F".repeat(10_000), "[2]", "[0,8]"), 8, "FFF..."),
            (one("F32", "[4294967296,4294967296]", "[0,8]"), 8, "overflows"),
            (one("F32", "[18446744073709551615,0]", "[0,0]"), 0, "overflows"),
            (one("F32", "[-1]", "[0,8]"), 8, "not valid: tensor a: invalid value"),
            (one("F32", "[1e3]", "[0,8]"), 8, "not valid: tensor a: invalid type"),
            (one("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "a shape of 17 dimensions, limit 16"),
            (one("F32", "[2]", "[0,8,9]"), 8, "not valid"),
            (one("F32", "[2]", "[99999999999999999999,8]"), 8, "not valid"),
            (r#"{"a":{"dtype":"F32","shape":[2]}}"#.into(), 8, "missing field `data_offsets`"),
            (r#"{"a":3}"#.into(), 8, "not valid"),
            ("[]".into(), 0, "does not begin with {"),
            (String::new(), 0, "does not begin with {"),
            (r#"{"a":"#.into(), 0, "not valid: tensor a: EOF"),
            ("{}x".into(), 0, "trailing characters"),
            ("{\"\u{0}\":1}".into(), 0, "not valid"),
            (format!("{{\"a\":{}", "[".repeat(100_000)), 0, "not valid"),
            (
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#
                    .into(),
                8,
                "tensor a is listed twice",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}}"#
                    .into(),
                8,
                "tensors a and b overlap at byte 3",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#
                    .into(),
                8,
                "bytes 3..4 of the data belong to no tensor",
            ),
        ];
        for (json, data_len, expected) in cases {
            let problems = parse(&file(json, *data_len)).expect_err(json);
            let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(text.contains(expected), "{json}\n  gave {text}\n  expected {expected}");
        }
    }

    #[test]
    fn lengths_are_bounded_by_limit_and_file() {
        for (len, expected) in [
            (u64::MAX, "limit 100000000"),
            (MAX_HEADER_BYTES + 1, "limit 100000000"),
            (MAX_HEADER_BYTES, "truncated"),
            (3, "truncated"),
        ] {
            let mut bytes = len.to_le_bytes().to_vec();
            bytes.extend_from_slice(b"{}");
            let problems = parse(&bytes).unwrap_err();
            assert!(problems[0].to_string().contains(expected), "{len}: {}", problems[0]);
        }
    }

    #[test]
    fn all_problems_of_a_header_are_listed() {
        let json = r#"{"a":{"dtype":"I32","shape":[9],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[3],"data_offsets":[8,16]},
            "c":{"dtype":"F32","shape":[3],"data_offsets":[16,99]}}"#;
        assert_eq!(parse(&file(json, 16)).unwrap_err().len(), 3);
    }

    /// An accepted header keeps the invariant and equals the format crate's reading; no header
    /// causes a panic. This parser is stricter: names do not repeat and shapes have a bounded rank.
    fn check_outcome(bytes: &[u8]) -> bool {
        let theirs = safetensors::SafeTensors::deserialize(bytes);
        let entries = match parse(bytes) {
            Ok(entries) => entries,
            Err(problems) => {
                let stricter = |p: &HeaderProblem| {
                    matches!(
                        p,
                        HeaderProblem::Duplicate { .. } | HeaderProblem::Rank { .. } | HeaderProblem::Json(_)
                    )
                };
                assert!(theirs.is_err() || problems.iter().any(stricter), "the crate accepts {problems:?}");
                return false;
            }
        };
        let theirs = theirs.expect("the format's own crate accepts what we accept");
        assert_eq!(theirs.len(), entries.len());
        for entry in &entries {
            let their = theirs.tensor(&entry.name).expect("the same names");
            assert_eq!((their.shape(), their.data()), (&entry.shape[..], &bytes[entry.start..entry.end]));
        }
        let mut end = None;
        for entry in &entries {
            assert!(end.is_none_or(|end| end == entry.start) && entry.start <= entry.end);
            if let Some(size) = entry.dtype.element_bytes() {
                assert_eq!(entry.shape.iter().product::<usize>() * size, entry.end - entry.start);
            }
            end = Some(entry.end);
        }
        assert!(end.is_none_or(|end| end == bytes.len()));
        true
    }

    #[test]
    fn truncation_at_every_length_is_an_error() {
        let bytes = file(GOOD, 36);
        for len in 0..bytes.len() {
            assert!(!check_outcome(&bytes[..len]), "accepted at {len}");
        }
        assert!(check_outcome(&bytes));
    }

    #[test]
    fn mutated_headers_never_panic() {
        const FRAGMENTS: &[&str] = &[
            "18446744073709551615",
            "99999999999",
            "-1",
            "0",
            "[",
            "]",
            "{",
            "}",
            "\"",
            ",",
            "null",
            "1e400",
            "\\ud800",
            "\u{7f}",
            "[0,24]",
            "[24,24]",
            "\"F32\"",
            "\"F6_E2M3\"",
            "\"a\":",
            "[1,2,3,4,5,6,7,8]",
        ];
        let original = file(GOOD, 36);
        let mut rng = fastrand::Rng::with_seed(0x5afe);
        let mut accepted = 0;
        for _ in 0..60_000 {
            let mut bytes = original.clone();
            for _ in 0..rng.usize(1..4) {
                match rng.u8(0..6) {
                    0 => bytes.truncate(rng.usize(0..=bytes.len())),
                    1 if !bytes.is_empty() => {
                        let at = rng.usize(0..bytes.len());
                        bytes[at] ^= 1 << rng.u8(0..8);
                    }
                    2 if !bytes.is_empty() => {
                        let at = rng.usize(0..bytes.len());
                        bytes[at] = rng.u8(..);
                    }
                    3 if bytes.len() >= 8 => {
                        let len = rng.u64(..) >> rng.u32(0..64);
                        bytes[..8].copy_from_slice(&len.to_le_bytes());
                    }
                    4 => {
                        let at = rng.usize(0..=bytes.len());
                        bytes.splice(at..at, rng.choice(FRAGMENTS).unwrap().bytes());
                    }
                    _ => {
                        // Replace a stretch and repair the length, so that the parser reaches the
                        // JSON behind it.
                        let at = rng.usize(0..=bytes.len());
                        let end = (at + rng.usize(0..12)).min(bytes.len());
                        bytes.splice(at..end, rng.choice(FRAGMENTS).unwrap().bytes());
                        if bytes.len() >= 44 {
                            let len = (bytes.len() - 44) as u64;
                            bytes[..8].copy_from_slice(&len.to_le_bytes());
                        }
                    }
                }
            }
            accepted += usize::from(check_outcome(&bytes));
        }
        assert!(
            accepted > 0,
            "no mutation left the header valid: the mutations are too coarse to test acceptance"
        );
    }
}
