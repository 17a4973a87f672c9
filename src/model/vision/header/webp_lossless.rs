//! Lossless WebP: the bytes that a decoder allocates for prefix codes.
//!
//! A picture may be cut into areas with five prefix codes each, and the number of such groups is the largest
//! number that an image of areas names, whatever the size of the picture: a file of 4 x 4 pixels can ask for
//! 65,536 groups, gigabytes in a decoder. So everything before the pixels is read here: of the images in it
//! (transforms, areas) as much as is needed to find their ends, which takes no memory, since what is copied from
//! pixels before is as long whatever they are.
//!
//! Source: RFC 9649, sections 3.3 to 3.7 and 3.8.

use crate::vision::{Format, ImageError};

/// Symbols of the five codes of a group: green with lengths, red, blue, alpha, distances. The colour cache adds to the first.
const ALPHABETS: [usize; 5] = [256 + 24, 256, 256, 256, 40];
const MAX_ALPHABET: usize = ALPHABETS[0] + (1 << MAX_CACHE_BITS);
const MAX_CACHE_BITS: u32 = 11;
/// Longest code, bits.
const MAX_LEN: usize = 15;
/// In which order the lengths of the codes for lengths are stored.
const LEN_ORDER: [usize; 19] = [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Bytes of the record of a group with its five codes, where the list that holds them may be half empty.
const GROUP_BYTES: u64 = 1024;
/// A decoder looks this many bits up in a table of four bytes an entry, and longer codes in a tree.
const TABLE_BITS: usize = 10;
/// Bytes that a code longer than that may have in a tree: two nodes.
const LONG_CODE_BYTES: u64 = 32;

/// Bytes that the prefix codes of a lossless `stream` take; it begins behind the sizes, with the transforms.
///
/// Errors: a stream that ends too early, or whose codes are none.
pub(super) fn code_bytes(stream: &[u8], (width, height): (u32, u32)) -> Result<u64, ImageError> {
    let mut bits = Bits { bytes: stream, held: 0, num_held: 0 };
    let mut width = width;
    let mut seen = [false; 4];
    while bits.take(1)? == 1 {
        let kind = bits.take(2)?;
        if std::mem::replace(&mut seen[kind as usize], true) {
            return Err(damaged("a lossless frame has a transform twice"));
        }
        match kind {
            0 | 1 => {
                let side = bits.take(3)? + 2;
                skip_image(&mut bits, areas(width, side) * areas(height, side))?;
            }
            2 => {}
            _ => {
                let colors = bits.take(8)? + 1;
                skip_image(&mut bits, u64::from(colors))?;
                let packed = match colors {
                    1..=2 => 3,
                    3..=4 => 2,
                    5..=16 => 1,
                    _ => 0,
                };
                width = areas(width, packed) as u32;
            }
        }
    }
    let cache_symbols = cache_symbols(&mut bits)?;
    let num_groups = match bits.take(1)? {
        0 => 1,
        _ => {
            let side = bits.take(3)? + 2;
            skip_image(&mut bits, areas(width, side) * areas(height, side))? + 1
        }
    };
    let mut bytes = 0;
    for _ in 0..num_groups {
        let codes = group(&mut bits, cache_symbols)?;
        bytes += GROUP_BYTES + codes.iter().map(Code::decoder_bytes).sum::<u64>();
    }
    Ok(bytes)
}

/// Areas with sides of `1 << side` in a length.
fn areas(len: u32, side: u32) -> u64 {
    u64::from(len).div_ceil(1 << side)
}

/// Reads an image of so many pixels to its end; returns the largest number in the red and green values of a pixel.
fn skip_image(bits: &mut Bits, num_pixels: u64) -> Result<u32, ImageError> {
    let cache_symbols = cache_symbols(bits)?;
    let [green, red, blue, alpha, distance] = &group(bits, cache_symbols)?;
    let mut largest = 0;
    let mut pixel = 0;
    while pixel < num_pixels {
        let before = bits.left();
        let symbol = green.next(bits)?;
        pixel += 1;
        if symbol < 256 {
            largest = largest.max((red.next(bits)? << 8) + symbol);
            blue.next(bits)?;
            alpha.next(bits)?;
        } else if symbol < ALPHABETS[0] as u32 {
            // Copies, and colours of the cache: values that were there before.
            pixel += u64::from(number(bits, symbol - 256)?) - 1;
            let symbol = distance.next(bits)?;
            number(bits, symbol)?;
        }
        if bits.left() == before {
            // All codes have one symbol: the other pixels take no bits either, and say the same.
            break;
        }
    }
    Ok(largest)
}

/// A length or distance: its symbol says how many bits follow.
fn number(bits: &mut Bits, symbol: u32) -> Result<u32, ImageError> {
    if symbol < 4 {
        return Ok(symbol + 1);
    }
    let extra = (symbol - 2) >> 1;
    Ok(((2 + (symbol & 1)) << extra) + bits.take(extra)? + 1)
}

/// Symbols of the colour cache, 0 without one.
fn cache_symbols(bits: &mut Bits) -> Result<usize, ImageError> {
    if bits.take(1)? == 0 {
        return Ok(0);
    }
    match bits.take(4)? {
        len @ 1..=MAX_CACHE_BITS => Ok(1 << len),
        _ => Err(damaged("the colour cache of a lossless frame has no such size")),
    }
}

fn group(bits: &mut Bits, cache_symbols: usize) -> Result<[Code; 5], ImageError> {
    let mut codes = [const { Code::NONE }; 5];
    for (i, (code, alphabet)) in codes.iter_mut().zip(ALPHABETS).enumerate() {
        let more = if i == 0 { cache_symbols } else { 0 };
        *code = Code::read(bits, alphabet + more)?;
    }
    Ok(codes)
}

/// A canonical prefix code.
struct Code {
    /// Symbols by the length of their codes; those of length 0 are left out.
    counts: [u16; MAX_LEN + 1],
    /// Symbols in the order of their codes.
    symbols: Vec<u16>,
}

impl Code {
    const NONE: Code = Code { counts: [0; MAX_LEN + 1], symbols: Vec::new() };

    fn read(bits: &mut Bits, alphabet: usize) -> Result<Code, ImageError> {
        if bits.take(1)? == 1 {
            let num_symbols = bits.take(1)? as u16 + 1;
            let width = 1 + 7 * bits.take(1)?;
            let mut symbols = vec![bits.take(width)? as u16];
            if num_symbols == 2 {
                symbols.push(bits.take(8)? as u16);
            }
            if symbols.iter().any(|symbol| usize::from(*symbol) >= alphabet) {
                return Err(damaged("a prefix code has a symbol that there is not"));
            }
            // In their order in the file, as decoders read them, and of one bit each even if they are the same.
            let mut counts = [0; MAX_LEN + 1];
            counts[1] = num_symbols;
            return Ok(Code { counts, symbols });
        }
        let mut lens = [0u8; MAX_ALPHABET];
        let lens = &mut lens[..alphabet];
        let mut len_lens = [0u8; LEN_ORDER.len()];
        let num_lens = bits.take(4)? as usize + 4;
        for place in &LEN_ORDER[..num_lens] {
            len_lens[*place] = bits.take(3)? as u8;
        }
        let len_code = Code::new(&len_lens)?;
        let mut left = alphabet as u32;
        if bits.take(1)? == 1 {
            let width = 2 + 2 * bits.take(3)?;
            left = bits.take(width)? + 2;
        }
        let (mut place, mut last) = (0, 8);
        while place < lens.len() && left > 0 {
            left -= 1;
            let (len, times) = match len_code.next(bits)? {
                16 => (last, bits.take(2)? + 3),
                17 => (0, bits.take(3)? + 3),
                18 => (0, bits.take(7)? + 11),
                len => (len as u8, 1),
            };
            let run = lens.get_mut(place..place + times as usize);
            run.ok_or(damaged("a prefix code has a symbol that there is not"))?.fill(len);
            place += times as usize;
            last = if len == 0 { last } else { len };
        }
        Code::new(lens)
    }

    /// The code in which symbol i has a code of `lens[i]` bits.
    fn new(lens: &[u8]) -> Result<Code, ImageError> {
        let mut counts = [0u16; MAX_LEN + 1];
        lens.iter().filter(|len| **len > 0).for_each(|len| counts[usize::from(*len)] += 1);
        let num_symbols = counts.iter().map(|count| usize::from(*count)).sum();
        let taken: u32 = (1..=MAX_LEN).map(|len| u32::from(counts[len]) << (MAX_LEN - len)).sum();
        if num_symbols != 1 && taken != 1 << MAX_LEN {
            return Err(damaged("a prefix code is none"));
        }
        let mut places = [0; MAX_LEN + 2];
        for len in 1..=MAX_LEN {
            places[len + 1] = places[len] + usize::from(counts[len]);
        }
        let mut symbols = vec![0; num_symbols];
        for (symbol, len) in lens.iter().enumerate().filter(|(_, len)| **len > 0) {
            let place = &mut places[usize::from(*len)];
            symbols[*place] = symbol as u16;
            *place += 1;
        }
        Ok(Code { counts, symbols })
    }

    /// The next symbol. A code of one symbol has no bits.
    fn next(&self, bits: &mut Bits) -> Result<u32, ImageError> {
        if let [symbol] = self.symbols[..] {
            return Ok(symbol.into());
        }
        let (mut code, mut first, mut before) = (0, 0, 0);
        for count in &self.counts[1..] {
            let count = u32::from(*count);
            code = code << 1 | bits.take(1)?;
            if code < first + count {
                return Ok(self.symbols[(before + code - first) as usize].into());
            }
            (first, before) = ((first + count) << 1, before + count);
        }
        Err(damaged("a prefix code is none"))
    }

    /// Bytes that a decoder keeps for the code.
    fn decoder_bytes(&self) -> u64 {
        if self.symbols.len() < 2 {
            return 0;
        }
        let longest = (1..=MAX_LEN).rev().find(|len| self.counts[*len] > 0).unwrap_or(0);
        let long: u64 = self.counts[TABLE_BITS + 1..].iter().map(|count| u64::from(*count)).sum();
        (4 << longest.min(TABLE_BITS)) + long * LONG_CODE_BYTES
    }
}

/// Bits from the least significant of each byte on.
struct Bits<'a> {
    bytes: &'a [u8],
    held: u32,
    num_held: u32,
}

impl Bits<'_> {
    /// Bits that are left.
    fn left(&self) -> usize {
        self.bytes.len() * 8 + self.num_held as usize
    }

    /// The next `len` bits, 24 at most.
    fn take(&mut self, len: u32) -> Result<u32, ImageError> {
        while self.num_held < len {
            let (byte, rest) =
                self.bytes.split_first().ok_or(ImageError::Truncated { format: Format::WebP })?;
            self.held |= u32::from(*byte) << self.num_held;
            self.num_held += 8;
            self.bytes = rest;
        }
        let taken = self.held & ((1 << len) - 1);
        self.held >>= len;
        self.num_held -= len;
        Ok(taken)
    }
}

fn damaged(reason: &'static str) -> ImageError {
    ImageError::Damaged { format: Format::WebP, reason }
}
