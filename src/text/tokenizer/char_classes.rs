//! Classes of characters that the Kimi split tells apart, one byte per character in a two-level table.

use regex_syntax::hir::{Class, HirKind};

/// Upper-case side of a word: Lu, Lt, Lm, Lo, M, without Han.
pub(super) const UPPER: u8 = 1;
/// Lower-case side of a word: Ll, Lm, Lo, M, without Han.
pub(super) const LOWER: u8 = 2;
/// Script Han.
pub(super) const HAN: u8 = 4;
/// Any letter.
pub(super) const LETTER: u8 = 8;
/// Any number.
pub(super) const NUMBER: u8 = 16;
/// White space.
pub(super) const SPACE: u8 = 32;

const BLOCK: usize = 256;
const NUM_CHARS: usize = 0x11_0000;

/// The class flags of every character.
pub(super) struct CharClasses {
    /// Block of each 256 characters; equal blocks are one.
    blocks: Vec<u16>,
    classes: Vec<[u8; BLOCK]>,
}

impl CharClasses {
    pub(super) fn new() -> Self {
        let mut flat = vec![0u8; NUM_CHARS];
        for (pattern, flag) in [
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", UPPER),
            (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", LOWER),
            (r"\p{Han}", HAN),
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\s", SPACE),
        ] {
            let hir = regex_syntax::parse(pattern).expect("a pattern of this file");
            let HirKind::Class(Class::Unicode(class)) = hir.kind() else { unreachable!("a class") };
            for range in class.ranges() {
                flat[range.start() as usize..=range.end() as usize].iter_mut().for_each(|c| *c |= flag);
            }
        }
        let (mut blocks, mut classes) = (Vec::new(), Vec::<[u8; BLOCK]>::new());
        for block in flat.chunks_exact(BLOCK) {
            let known = classes.iter().position(|known| known == block);
            blocks.push(known.unwrap_or(classes.len()) as u16);
            if known.is_none() {
                classes.push(block.try_into().expect("a whole block"));
            }
        }
        Self { blocks, classes }
    }

    /// Flags of a character.
    #[inline]
    pub(super) fn of(&self, c: char) -> u8 {
        let c = c as usize;
        self.classes[self.blocks[c / BLOCK] as usize][c % BLOCK]
    }

    /// Flags of an ASCII character.
    #[inline]
    pub(super) fn of_ascii(&self, byte: u8) -> u8 {
        // The first block is stored first, so its index is 0.
        self.classes[0][byte as usize]
    }
}
