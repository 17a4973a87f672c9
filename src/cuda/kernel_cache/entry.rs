//! One compiled kernel as bytes of a file.
//!
//! ```text
//! 0    magic         8   "PERIGEEK"
//! 8    schema        4   little-endian, as all numbers
//! 12   notes length  4
//! 16   CUBIN length  8
//! 24   key          32   of program and compiler
//! 56   hash         32   blake3 of bytes 0 to 56, notes and CUBIN
//! 88   notes             JSON
//!      CUBIN             to the end of the file
//! ```
//!
//! An entry is read whole and used only if every byte is accounted for by the key or the hash.

use serde::{Deserialize, Serialize};

use super::super::{Arch, FunctionUsage, Program};

/// Version of the format and of what the key covers. Entries of another version are not found.
const SCHEMA: u32 = 1;
const MAGIC: &[u8; 8] = b"PERIGEEK";
const HASH_AT: usize = 56;
const HEADER_BYTES: usize = 88;

/// 32-byte name of a program, or of a program and a compiler.
pub(super) type Key = [u8; 32];

/// What an entry says beside its CUBIN.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Notes {
    /// Name of the kernel.
    pub(super) kernel: String,
    /// Name of the target.
    pub(super) arch: String,
    /// Identity of the compiler.
    pub(super) compiler: String,
    /// Resources by function.
    pub(super) functions: Vec<FunctionUsage>,
    /// Time of the compilation, milliseconds.
    pub(super) compile_ms: f64,
}

/// Hashes fields with their lengths, so that no two lists of fields are the same bytes.
struct Fields(blake3::Hasher);

impl Fields {
    fn add(&mut self, field: &[u8]) {
        self.0.update(&(field.len() as u64).to_le_bytes());
        self.0.update(field);
    }

    fn list(&mut self, fields: &[String]) {
        self.0.update(&(fields.len() as u64).to_le_bytes());
        fields.iter().for_each(|field| self.add(field.as_bytes()));
    }
}

/// Name of a program: schema, kernel, target, source, options, and the limits that an entry passed.
pub(super) fn program_key(program: &Program) -> Key {
    let mut fields = Fields(blake3::Hasher::new());
    fields.add(&SCHEMA.to_le_bytes());
    fields.add(program.kernel.as_bytes());
    fields.add(program.arch.name().as_bytes());
    fields.add(program.text.as_bytes());
    fields.list(&program.options);
    fields.list(&program.functions);
    fields.add(&program.limits.registers.to_le_bytes());
    fields.add(&[u8::from(program.limits.local_memory)]);
    fields.add(&program.shared_bytes.to_le_bytes());
    *fields.0.finalize().as_bytes()
}

/// Name of a program under a compiler.
pub(super) fn entry_key(program: &Key, compiler: &str) -> Key {
    let mut fields = Fields(blake3::Hasher::new());
    fields.add(program);
    fields.add(compiler.as_bytes());
    *fields.0.finalize().as_bytes()
}

/// The beginning of the file names of a program's entries.
pub(super) fn file_stem(kernel: &str, program: &Key) -> String {
    format!("{kernel}-{}-", short(program))
}

/// File name of an entry.
pub(super) fn file_name(kernel: &str, program: &Key, entry: &Key) -> String {
    format!("{}{}.cubin", file_stem(kernel, program), short(entry))
}

fn short(key: &Key) -> String {
    key[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file of a compiled program.
pub(super) fn encode(program: &Key, notes: &Notes, cubin: &[u8]) -> Vec<u8> {
    let notes_bytes = serde_json::to_vec(notes).unwrap_or_default();
    let mut file = Vec::with_capacity(HEADER_BYTES + notes_bytes.len() + cubin.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&SCHEMA.to_le_bytes());
    file.extend_from_slice(&(notes_bytes.len() as u32).to_le_bytes());
    file.extend_from_slice(&(cubin.len() as u64).to_le_bytes());
    file.extend_from_slice(&entry_key(program, &notes.compiler));
    file.extend_from_slice(&[0; 32]);
    file.extend_from_slice(&notes_bytes);
    file.extend_from_slice(cubin);
    let hash = hash_of(&file);
    file[HASH_AT..HEADER_BYTES].copy_from_slice(&hash);
    file
}

/// Notes and CUBIN of a file that is an entry of `program`; under `compiler` if it is given. The error says what is
/// wrong with the file.
pub(super) fn decode<'f>(
    file: &'f [u8],
    program: &Key,
    compiler: Option<&str>,
) -> Result<(Notes, &'f [u8]), &'static str> {
    if file.len() < HEADER_BYTES {
        return Err("shorter than a header");
    }
    if &file[..8] != MAGIC || file[8..12] != SCHEMA.to_le_bytes() {
        return Err("not an entry of this version");
    }
    let number = |at: usize, bytes: usize| {
        file[at..at + bytes].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (notes_bytes, cubin_bytes) = (number(12, 4), number(16, 8));
    let expected = cubin_bytes.checked_add(notes_bytes + HEADER_BYTES as u64);
    if expected != Some(file.len() as u64) {
        return Err("not as long as its header says");
    }
    if file[HASH_AT..HEADER_BYTES] != hash_of(file) {
        return Err("its hash does not match");
    }
    let (notes, cubin) = file[HEADER_BYTES..].split_at(notes_bytes as usize);
    let notes: Notes = serde_json::from_slice(notes).map_err(|_| "its notes cannot be read")?;
    let key = entry_key(program, compiler.unwrap_or(&notes.compiler));
    if file[24..HASH_AT] != key {
        return Err("an entry of another program or compiler");
    }
    Ok((notes, cubin))
}

/// Hash of everything in a file but the hash itself.
fn hash_of(file: &[u8]) -> Key {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file[..HASH_AT]);
    hasher.update(&file[HEADER_BYTES..]);
    *hasher.finalize().as_bytes()
}

/// Notes of a compiled program.
pub(super) fn notes(
    program: &Program,
    compiler: &str,
    functions: Vec<FunctionUsage>,
    compile_ms: f64,
) -> Notes {
    let arch: Arch = program.arch;
    Notes {
        kernel: program.kernel.clone(),
        arch: arch.name().into(),
        compiler: compiler.into(),
        functions,
        compile_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_cache::tests::program;

    fn entry() -> (Key, Vec<u8>) {
        let program = program("k", "text");
        let key = program_key(&program);
        (key, encode(&key, &notes(&program, "compiler 1", Vec::new(), 1.5), b"the machine code"))
    }

    #[test]
    fn an_entry_is_read_back() {
        let (key, file) = entry();
        let (notes, cubin) = decode(&file, &key, Some("compiler 1")).unwrap();
        assert_eq!((notes.kernel.as_str(), notes.compile_ms, cubin), ("k", 1.5, &b"the machine code"[..]));
        assert!(decode(&file, &key, None).is_ok());
        assert_eq!(decode(&file, &key, Some("compiler 2")), Err("an entry of another program or compiler"));
        assert_eq!(decode(&file, &[0; 32], None), Err("an entry of another program or compiler"));
    }

    #[test]
    fn every_flipped_bit_and_every_length_is_seen() {
        let (key, file) = entry();
        for bit in 0..8 * file.len() {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, &key, Some("compiler 1")).is_err(), "bit {bit}");
            assert!(decode(&damaged, &key, None).is_err(), "bit {bit}");
        }
        for length in 0..file.len() {
            assert!(decode(&file[..length], &key, None).is_err(), "{length} bytes");
        }
        assert!(decode(&[&file[..], b"x"].concat(), &key, None).is_err());
    }

    #[test]
    fn everything_that_decides_a_cubin_is_in_the_key() {
        let base = program("k", "text");
        let mut programs = vec![base.clone(), program("l", "text"), program("k", "text2")];
        let mut change = |edit: fn(&mut Program)| {
            let mut program = base.clone();
            edit(&mut program);
            programs.push(program);
        };
        change(|p| p.arch = Arch::Sm120a);
        change(|p| p.options.push("--x".into()));
        change(|p| p.options = vec!["--a".into(), "--b".into()]);
        change(|p| p.options = vec!["--a--b".into()]);
        change(|p| p.functions.push("g".into()));
        change(|p| p.limits.registers += 1);
        change(|p| p.limits.local_memory = true);
        change(|p| p.shared_bytes += 1);
        let keys: std::collections::HashSet<Key> = programs.iter().map(program_key).collect();
        assert_eq!(keys.len(), programs.len());
        let key = program_key(&base);
        assert_ne!(entry_key(&key, "nvrtc 13.0"), entry_key(&key, "nvrtc 13.5"));
    }
}
