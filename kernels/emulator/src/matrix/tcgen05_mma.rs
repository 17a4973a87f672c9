//! `tcgen05.mma`: one block, or a pair of blocks, multiplies tiles of shared memory onto accumulators
//! in tensor memory.
//!
//! A pair (`cta_group::2`) has half of A's rows in the shared memory of each block, half of B's columns
//! too, and each block's half of D's rows in its own tensor memory. Scales of its rows and of all
//! columns are in the tensor memory of each. With 256 rows the rows of a block lie in the lanes as those
//! of one block do, with 128 rows the columns are split over two banks of 64 lanes.
//!
//! Row r of an instruction with 128 rows lies in lane r; with 64 rows it lies in lane 32 (r / 16) +
//! r mod 16. Weight-stationary forms with 64 or 32 rows split the columns over 2 or 4 banks of
//! lanes instead (PTX ISA 9.0, "Data path layout organization").

use super::block_scale::ScaleFormat;
use super::decode::{ByteTable, E2M1, E2M3, E3M2, E4M3, E5M2};
use super::element::{Bf16, E2m1, Element, F16, FloatByte, Int8, Tf32};
use super::instruction_descriptor::{InstructionDescriptor, Variant};
use super::packing::Packing;
use super::product::{FloatSum, Number, Row, accumulate, add_s32};
use super::rounding::{FusedSum, add_blocks};
use super::shared_descriptor::{Major, SharedDescriptor};
use super::shared_tile::{MAX_TILE_BYTES, Tile};
use super::tensor_memory::{TensorMemory, split_address};
use std::borrow::BorrowMut;

/// A parsed `tcgen05.mma` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcgen05MmaSpec {
    kind: Kind,
    /// k per scale factor.
    block: usize,
    weight_stationary: bool,
    /// Of a pair of blocks.
    pair: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F16,
    Tf32,
    I8,
    F8f6f4,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

/// Operand A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcgen05A {
    /// A descriptor in shared memory.
    Descriptor(u64),
    /// A tensor-memory address; rows lie in the lanes of their accumulators.
    TensorMemory(u32),
}

/// Operands of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcgen05Operands {
    /// Tensor-memory address of D.
    pub d: u32,
    /// A.
    pub a: Tcgen05A,
    /// Descriptor of B in shared memory.
    pub b: u64,
    /// The instruction descriptor.
    pub instruction: u32,
    /// Tensor-memory addresses of the scale factors of A and B.
    pub scales: Option<(u32, u32)>,
    /// Whether D is an addend; otherwise it is not read.
    pub accumulate: bool,
    /// D is multiplied by 2^-`scale_input_d` before the sum (f16 and tf32 kinds).
    pub scale_input_d: u32,
    /// Bit l: lane l of D is not written.
    pub disabled_lanes: u128,
}

/// Rows that one step multiplies.
const GROUP: usize = 16;

impl Tcgen05MmaSpec {
    /// `modifiers`: what follows `tcgen05.`, split at dots. Errors name the modifier or the
    /// combination.
    pub fn parse(modifiers: &[&str]) -> Result<Self, String> {
        let (mut kind, mut block, mut block_scale, mut weight_stationary) = (None, None, false, false);
        let mut pair = false;
        for &modifier in modifiers {
            match modifier {
                "mma" | "cta_group::1" => {}
                "cta_group::2" => pair = true,
                "kind::f16" => kind = Some(Kind::F16),
                "kind::tf32" => kind = Some(Kind::Tf32),
                "kind::i8" => kind = Some(Kind::I8),
                "kind::f8f6f4" => kind = Some(Kind::F8f6f4),
                "kind::mxf8f6f4" => kind = Some(Kind::Mxf8f6f4),
                "kind::mxf4" => kind = Some(Kind::Mxf4),
                "kind::mxf4nvf4" => kind = Some(Kind::Mxf4nvf4),
                "block_scale" => block_scale = true,
                "block16" | "scale_vec::4X" => block = Some(16),
                "block32" | "scale_vec::2X" | "scale_vec::1X" => block = Some(32),
                "ws" => weight_stationary = true,
                // A collector buffer repeats values of shared memory.
                _ if modifier.starts_with("collector::") => {}
                _ => return Err(format!("tcgen05.mma: unknown modifier .{modifier}")),
            }
        }
        let block = match (kind, block_scale, block) {
            _ if pair && weight_stationary => None,
            (Some(Kind::F16 | Kind::Tf32 | Kind::I8 | Kind::F8f6f4), false, None) => Some(0),
            _ if weight_stationary => None,
            (Some(Kind::Mxf8f6f4 | Kind::Mxf4), true, None | Some(32)) => Some(32),
            (Some(Kind::Mxf4nvf4), true, block) => block,
            _ => None,
        };
        match kind.zip(block) {
            Some((kind, block)) => Ok(Self { kind, block, weight_stationary, pair }),
            None => Err(format!("tcgen05.{}: unsupported combination", modifiers.join("."))),
        }
    }

    /// Whether the instruction has scale operands.
    pub fn is_block_scaled(&self) -> bool {
        self.block != 0
    }

    /// D = A B (+ D).
    ///
    /// - `memories`: of the block, or of both blocks of a pair, the even one first
    /// - `read`: fills its buffer from a shared address of the block with this index in `memories`
    ///
    /// Errors: a descriptor that does not fit the kind, or a cell of tensor memory that is not
    /// allocated or is read before it is written. Without `avx2,fma` in the caller's target
    /// features the result is the same and slow.
    #[inline(always)]
    pub fn execute(
        &self,
        memories: &mut [impl BorrowMut<TensorMemory>],
        operands: &Tcgen05Operands,
        read: &mut impl FnMut(usize, u32, &mut [u8]),
    ) -> Result<(), String> {
        let descriptor = InstructionDescriptor::decode(operands.instruction, self.is_block_scaled())?;
        let layout = self.layout(&descriptor).ok_or_else(|| self.mismatch(&descriptor, "shape"))?;
        let a_format =
            self.format(descriptor.a_format).ok_or_else(|| self.mismatch(&descriptor, "format of A"))?;
        let b_format =
            self.format(descriptor.b_format).ok_or_else(|| self.mismatch(&descriptor, "format of B"))?;
        let sum = self.sum(&descriptor).ok_or_else(|| self.mismatch(&descriptor, "format of D"))?;
        let b_shared = SharedDescriptor::decode_tcgen05(operands.b)?;
        let columns = 0..(descriptor.columns / memories.len()) as u32;
        let mut b_buffers = [[0; MAX_TILE_BYTES]; 2];
        let [first, second] = &mut b_buffers;
        let mut b_of = |at: usize, buffer| {
            let mut read = |address: u32, bytes: &mut [u8]| read(at, address, bytes);
            b_format.read_tile(&b_shared, descriptor.b_major, columns.clone(), &mut read, buffer)
        };
        let first = b_of(0, first)?;
        let b = [first, if self.pair { b_of(1, second)? } else { first }];
        if let Variant::Scaled { a_id, b_id, .. } = descriptor.variant {
            let blocks = if matches!(a_format, Format::E2m1) { 64 } else { 32 } / self.block;
            if a_id.max(b_id) + blocks > 4 {
                return Err(self.mismatch(&descriptor, "scale id"));
            }
        }
        let half = columns.end as usize / 8;
        for (at, memory) in memories.iter_mut().enumerate() {
            let memory = memory.borrow_mut();
            let mut read = |address: u32, bytes: &mut [u8]| read(at, address, bytes);
            let mut a_buffer = [0; MAX_TILE_BYTES];
            let a = match operands.a {
                Tcgen05A::Descriptor(code) => {
                    let (shared, rows) = (SharedDescriptor::decode_tcgen05(code)?, 0..layout.rows as u32);
                    let major = descriptor.a_major;
                    A::Shared(a_format.read_tile(&shared, major, rows, &mut read, &mut a_buffer)?)
                }
                Tcgen05A::TensorMemory(_) if a_format.packing() != Packing::Bytes => {
                    return Err(self.mismatch(&descriptor, "format of A in tensor memory"));
                }
                Tcgen05A::TensorMemory(address) => A::TensorMemory(address),
            };
            let product = Product { block: self.block, operands, descriptor, layout, sum, a, b, half };
            match (a_format, b_format) {
                (Format::F16, Format::F16) => product.floats::<_, _, 16>(memory, F16, F16),
                (Format::Bf16, Format::Bf16) => product.floats::<_, _, 16>(memory, Bf16, Bf16),
                (Format::Tf32, Format::Tf32) => product.floats::<_, _, 8>(memory, Tf32, Tf32),
                (Format::Bytes(a, _), Format::Bytes(b, _)) => {
                    product.floats::<_, _, 32>(memory, FloatByte(a), FloatByte(b))
                }
                (Format::E2m1, Format::E2m1) => product.floats::<_, _, 64>(memory, E2m1, E2m1),
                (Format::Int8(a), Format::Int8(b)) => product.integers(memory, Int8(a), Int8(b)),
                _ => Err(self.mismatch(&descriptor, "pair of formats")),
            }?;
        }
        Ok(())
    }

    /// Blocks that execute the instruction together.
    pub fn num_blocks(&self) -> usize {
        if self.pair { 2 } else { 1 }
    }

    /// Where D lies in each block; `None`: a shape that does not exist, or that of a pair with 128 scaled
    /// rows, whose scales no source that we know places.
    fn layout(&self, descriptor: &InstructionDescriptor) -> Option<Layout> {
        let InstructionDescriptor { rows, columns, .. } = *descriptor;
        let scaled = self.is_block_scaled();
        // Columns are a multiple of `step`.
        let (step, rows, banks, group_pitch) = match (self.pair, self.weight_stationary, rows) {
            (true, false, 256) => (16, 128, 1, GROUP),
            (true, false, 128) if !scaled => (16, 64, 2, GROUP),
            (false, true, 32 | 64 | 128) => (64, rows, 128 / rows, GROUP),
            (false, false, 128) => (if scaled { 8 } else { 16 }, rows, 1, GROUP),
            (false, false, 64) if !scaled => (8, rows, 1, 32),
            _ => return None,
        };
        if columns == 0 || columns > 256 || columns % step != 0 || (self.weight_stationary && columns == 192)
        {
            return None;
        }
        Some(Layout { rows, width: columns / banks, group_pitch, banks })
    }

    fn mismatch(&self, descriptor: &InstructionDescriptor, what: &str) -> String {
        format!("tcgen05.mma {self:?}: the {what} does not fit {descriptor:?}")
    }

    fn format(&self, code: u32) -> Option<Format> {
        match (self.kind, code) {
            (Kind::F16, 0) => Some(Format::F16),
            (Kind::F16, 1) => Some(Format::Bf16),
            (Kind::Tf32, 2) => Some(Format::Tf32),
            (Kind::I8, 0) => Some(Format::Int8(0)),
            (Kind::I8, 1) => Some(Format::Int8(128)),
            (Kind::Mxf4 | Kind::Mxf4nvf4, 1) => Some(Format::E2m1),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 0) => Some(Format::Bytes(&E4M3, Packing::Bytes)),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 1) => Some(Format::Bytes(&E5M2, Packing::Bytes)),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 3) => Some(Format::Bytes(&E2M3, Packing::Sixes)),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 4) => Some(Format::Bytes(&E3M2, Packing::Sixes)),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 5) => Some(Format::Bytes(&E2M1, Packing::Nibbles)),
            _ => None,
        }
    }

    fn sum(&self, descriptor: &InstructionDescriptor) -> Option<Sum> {
        match (self.kind, descriptor.variant) {
            (Kind::Mxf4nvf4, Variant::Scaled { .. }) => Some(Sum::Float(FloatSum::F32)),
            (_, Variant::Scaled { format, .. }) => {
                (format == ScaleFormat::Ue8m0).then_some(Sum::Float(FloatSum::F32))
            }
            (Kind::I8, Variant::Plain { d_format: 2, saturate }) => Some(Sum::S32 { saturate }),
            (Kind::I8, _) => None,
            (Kind::F16, Variant::Plain { d_format: 0, .. }) if descriptor.a_format == 1 => None,
            (Kind::F16 | Kind::F8f6f4, Variant::Plain { d_format: 0, .. }) => Some(Sum::Float(FloatSum::F16)),
            (_, Variant::Plain { d_format: 1, .. }) => Some(Sum::Float(FloatSum::F32)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    Float(FloatSum),
    S32 { saturate: bool },
}

/// Element formats with what unpacking them needs.
#[derive(Clone, Copy, Debug)]
enum Format {
    F16,
    Bf16,
    Tf32,
    Int8(i32),
    Bytes(&'static ByteTable, Packing),
    E2m1,
}

impl Format {
    /// How shared memory packs elements below 8 bits.
    fn packing(self) -> Packing {
        if let Self::Bytes(_, packing) = self { packing } else { Packing::Bytes }
    }

    #[inline(always)]
    fn read_tile<'a>(
        self,
        shared: &SharedDescriptor,
        major: Major,
        extent: std::ops::Range<u32>,
        read: &mut impl FnMut(u32, &mut [u8]),
        buffer: &'a mut [u8],
    ) -> Result<Tile<'a>, String> {
        let element_bytes = match self {
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 => 4,
            _ => 1,
        };
        let narrow = self.packing() != Packing::Bytes || matches!(self, Self::E2m1);
        if major == Major::Mn && (narrow || !(extent.end as usize * element_bytes).is_multiple_of(16)) {
            return Err(format!("tcgen05.mma: no MN-major tile of {} elements of {self:?}", extent.end));
        }
        Ok(Tile::read(shared, major, extent, element_bytes, self.packing(), read, buffer))
    }
}

/// Where rows and columns of D lie in a block.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Rows of the block.
    rows: usize,
    /// Columns of tensor memory that D spans.
    width: usize,
    /// Lanes from one group of 16 rows to the next.
    group_pitch: usize,
    /// Banks of lanes over which the columns are split.
    banks: usize,
}

impl Layout {
    /// First lane of rows 16 `group` to 16 `group` + 15 in `bank`.
    fn lane(&self, group: usize, bank: usize) -> usize {
        group * self.group_pitch + bank * self.rows
    }
}

enum A<'a> {
    Shared(Tile<'a>),
    /// An address.
    TensorMemory(u32),
}

/// The part of one block in an instruction, with decoded operands.
struct Product<'a> {
    block: usize,
    operands: &'a Tcgen05Operands,
    descriptor: InstructionDescriptor,
    layout: Layout,
    sum: Sum,
    a: A<'a>,
    /// Columns of both blocks of a pair; twice those of one.
    b: [Tile<'a>; 2],
    /// Columns of a tile of B, divided by eight.
    half: usize,
}

impl Product<'_> {
    #[inline(always)]
    fn floats<EA: Element<Value = f32>, EB: Element<Value = f32>, const K: usize>(
        &self,
        memory: &mut TensorMemory,
        a_element: EA,
        b_element: EB,
    ) -> Result<(), String> {
        let sum = if self.sum == Sum::Float(FloatSum::F16) { FloatSum::F16 } else { FloatSum::F32 };
        let input_scale = f32::powi(0.5, self.operands.scale_input_d as i32);
        let negate = self.descriptor.negate_a != self.descriptor.negate_b;
        let scales = self.scale_words(memory)?;
        let least = [a_element.least_exponent(), b_element.least_exponent()];
        for bank in 0..self.layout.banks {
            let mut a = self.a_groups::<EA, K>(memory, a_element, bank)?;
            if negate {
                for value in a.as_flattened_mut().as_flattened_mut() {
                    *value = -*value;
                }
            }
            for block in 0..self.layout.width / 8 {
                let b = self.columns::<EB, K>(b_element, bank * self.layout.width / 8 + block);
                for (group, a) in a.iter().enumerate() {
                    let (lane, column) = self.position(group, bank, block);
                    let mut sums = [[0.0; 8]; GROUP];
                    if self.operands.accumulate {
                        sums = sum.decode_words(&memory.read_tile(lane, column)?);
                        for value in sums.as_flattened_mut() {
                            *value *= input_scale;
                        }
                    }
                    match self.descriptor.variant {
                        Variant::Scaled { format, a_id, b_id } if K == 64 => {
                            let codes = |index| scales.codes(group, block, a_id + index, b_id + index);
                            add_blocks(a, &b, self.block, format, codes, &mut sums);
                        }
                        Variant::Scaled { format, a_id, b_id } => {
                            let (a_codes, b_codes) = scales.codes(group, block, a_id, b_id);
                            let codes = [&a_codes[..], &b_codes];
                            FusedSum::of_tcgen05(K).add_scaled(a, &b, least, format, codes, &mut sums);
                        }
                        Variant::Plain { .. } => FusedSum::of_tcgen05(K).add(a, &b, least, sum, &mut sums),
                    }
                    memory.write_tile(
                        lane,
                        column,
                        &sum.encode_words(&sums),
                        self.operands.disabled_lanes,
                    )?;
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn integers(&self, memory: &mut TensorMemory, a_element: Int8, b_element: Int8) -> Result<(), String> {
        let saturate = self.sum == Sum::S32 { saturate: true };
        for bank in 0..self.layout.banks {
            let a = self.a_groups::<Int8, 32>(memory, a_element, bank)?;
            for block in 0..self.layout.width / 8 {
                let b: [Row<f32>; 32] = self.columns(b_element, bank * self.layout.width / 8 + block);
                for (group, a) in a.iter().enumerate() {
                    let (lane, column) = self.position(group, bank, block);
                    let mut products = [[0.0; 8]; GROUP];
                    accumulate(a, &b, 0..32, &mut products);
                    let mut words = [[0; 8]; GROUP];
                    if self.operands.accumulate {
                        words = memory.read_tile(lane, column)?;
                    }
                    add_s32(&products, saturate, &mut words);
                    memory.write_tile(lane, column, &words, self.operands.disabled_lanes)?;
                }
            }
        }
        Ok(())
    }

    /// Columns 8 `block` to 8 `block` + 7 of B.
    #[inline(always)]
    fn columns<E: Element<Value: Number>, const K: usize>(
        &self,
        element: E,
        block: usize,
    ) -> [Row<E::Value>; K] {
        self.b[block / self.half].columns(element, block % self.half)
    }

    /// Lane and column of D's tile.
    fn position(&self, group: usize, bank: usize, block: usize) -> (usize, usize) {
        let (lane, column) = split_address(self.operands.d);
        (lane + self.layout.lane(group, bank), column + 8 * block)
    }

    /// A by groups of 16 rows; from tensor memory, the copy in the lanes of `bank`.
    #[inline(always)]
    fn a_groups<E: Element<Value: Number>, const K: usize>(
        &self,
        memory: &TensorMemory,
        element: E,
        bank: usize,
    ) -> Result<Vec<[[E::Value; K]; GROUP]>, String> {
        let groups = 0..self.layout.rows / GROUP;
        let address = match &self.a {
            A::Shared(tile) => return Ok(groups.map(|group| tile.rows(element, group)).collect()),
            A::TensorMemory(address) => *address,
        };
        let (first_lane, first_column) = split_address(address);
        let mut dense = vec![[[E::Value::default(); K]; GROUP]; groups.len()];
        for (group, rows) in dense.iter_mut().enumerate() {
            let lane = first_lane + self.layout.lane(group, bank);
            for (row, values) in rows.iter_mut().enumerate() {
                for (column, out) in values.chunks_exact_mut(E::PER_REGISTER).enumerate() {
                    element.unpack(memory.read_written(lane + row, first_column + column)?, out);
                }
            }
        }
        Ok(dense)
    }

    /// The scale factors of all rows and columns; none without block scaling. Row r lies in lane r
    /// mod 32 and column r / 32; each quarter of the lanes has its own copy and serves its own
    /// rows.
    fn scale_words(&self, memory: &TensorMemory) -> Result<ScaleWords, String> {
        let mut words = ScaleWords::default();
        if self.block == 0 {
            return Ok(words);
        }
        let (a, b) = self.operands.scales.ok_or("tcgen05.mma: block scaling without scale addresses")?;
        let word = |address: u32, quarter: usize, row: usize| {
            // The two top bits repeat the scale id of the instruction descriptor.
            let (lane, column) = split_address(address & 0x3fff_ffff);
            memory.read_written(lane + 32 * quarter + row % 32, column + row / 32)
        };
        for row in 0..self.layout.rows {
            words.a.push(word(a, row / 32, row)?);
        }
        for (quarter, words) in words.b.iter_mut().enumerate() {
            for column in 0..self.descriptor.columns {
                words.push(word(b, quarter, column)?);
            }
        }
        Ok(words)
    }
}

/// Columns of tensor memory with up to four scale factors each.
#[derive(Default)]
struct ScaleWords {
    /// By row.
    a: Vec<u32>,
    /// By quarter of the lanes and column.
    b: [Vec<u32>; 4],
}

impl ScaleWords {
    /// Codes in byte `a_byte` or `b_byte` for the rows of `group` and the columns of `block`.
    #[inline(always)]
    fn codes(&self, group: usize, block: usize, a_byte: usize, b_byte: usize) -> ([u8; GROUP], [u8; 8]) {
        let (mut a_codes, mut b_codes) = ([0; GROUP], [0; 8]);
        for (code, word) in a_codes.iter_mut().zip(&self.a[GROUP * group..]) {
            *code = (word >> (8 * a_byte)) as u8;
        }
        for (code, word) in b_codes.iter_mut().zip(&self.b[group / 2][8 * block..]) {
            *code = (word >> (8 * b_byte)) as u8;
        }
        (a_codes, b_codes)
    }
}

#[cfg(test)]
mod tests;
