//! The tensor map (`CUtensorMap`): 128 bytes that describe a tensor in global memory and the box that one
//! copy moves.
//!
//! NVIDIA does not publish the layout of the 128 bytes. The layout here is private to the emulator and
//! starts with a mark, so that memory which is not a tensor map is recognised. Little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | mark |
//! | 8..16 | global address |
//! | 16 | element code of `tensormap.replace` |
//! | 17 | rank - 1 |
//! | 18 | interleave layout, always 0 |
//! | 19, 20 | swizzle mode, swizzle atomicity |
//! | 21 | fill mode |
//! | 24..64 | five dimensions in elements, 64 bits each, the fastest first |
//! | 64..96 | four strides in bytes, 64 bits each; dimension 0 has none |
//! | 96..106 | five box dimensions in elements, 16 bits each |
//! | 106..111 | five element strides, 8 bits each |

pub use super::swizzle::Swizzle;
use std::fmt;

/// Bytes of an encoded tensor map.
pub const TENSOR_MAP_BYTES: usize = 128;
const MARK: [u8; 8] = *b"tensmap\x01";
const DIMS: usize = 24;
const STRIDES: usize = 64;
const BOX: usize = 96;
const ELEMENT_STRIDES: usize = 106;
const END: usize = 111;

/// Element type, numbered as in `tensormap.replace.elemtype` (PTX ISA 9.0, table 33). The driver numbers
/// differently: see [`Element::from_driver_code`].
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Element {
    U8 = 0,
    U16 = 1,
    U32 = 2,
    S32 = 3,
    U64 = 4,
    S64 = 5,
    F16 = 6,
    F32 = 7,
    F32Ftz = 8,
    F64 = 9,
    Bf16 = 10,
    Tf32 = 11,
    Tf32Ftz = 12,
    /// `16U4_ALIGN8B`: 4-bit elements, packed on both sides.
    B4x16 = 13,
    /// `16U4_ALIGN16B`: sixteen packed elements, then 8 bytes of padding in shared memory.
    B4x16P64 = 14,
    /// `16U6_ALIGN16B`: sixteen packed 6-bit elements, then 4 bytes of padding in shared memory.
    B6x16P32 = 15,
}

/// What a load writes for elements outside the tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Zero.
    #[default]
    Zero,
    /// NaN, for floating-point elements.
    Nan,
}

/// A tiled tensor map without interleave. Arrays hold `rank` entries (`strides_bytes` one fewer); the rest
/// is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Element type.
    pub element: Element,
    /// Dimensions, 1 to 5.
    pub rank: u32,
    /// Global address of element 0.
    pub address: u64,
    /// Elements in each dimension, the fastest first.
    pub dims: [u64; 5],
    /// Bytes from one index to the next in dimensions 1 to 4.
    pub strides_bytes: [u64; 4],
    /// Elements that the box spans in each dimension.
    pub box_dims: [u32; 5],
    /// Step through the box in each dimension; dimension 0 ignores it.
    pub element_strides: [u32; 5],
    /// Swizzle of the shared side.
    pub swizzle: Swizzle,
    /// Value of elements outside the tensor.
    pub fill: Fill,
}

/// A field of `tensormap.replace`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    GlobalAddress,
    Rank,
    BoxDim,
    GlobalDim,
    GlobalStride,
    ElementStride,
    ElementType,
    InterleaveLayout,
    SwizzleMode,
    SwizzleAtomicity,
    FillMode,
}

/// Why a tensor map cannot be encoded, decoded, replaced or used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorMapError {
    /// The bytes carry no tensor map.
    NotATensorMap,
    /// A field holds a code without a meaning here.
    UnknownCode {
        /// The field.
        field: &'static str,
        /// Its value.
        code: u64,
    },
    /// A quantity outside its range.
    OutOfRange {
        /// The quantity.
        what: &'static str,
        /// Its dimension, where it has one.
        dimension: Option<usize>,
        /// Its value.
        value: i64,
        /// Smallest allowed value.
        low: i64,
        /// Largest allowed value.
        high: i64,
    },
    /// A quantity that is not a multiple of what the copy unit needs.
    Misaligned {
        /// The quantity.
        what: &'static str,
        /// Its dimension, where it has one.
        dimension: Option<usize>,
        /// Its value.
        value: i64,
        /// What it must be a multiple of.
        multiple: u64,
    },
    /// The inner box is wider than the swizzle.
    InnerBoxTooWide {
        /// Bytes of the inner box in shared memory.
        bytes: u32,
        /// Bytes of the swizzle span.
        width: u32,
    },
    /// The swizzle does not exist for the element type.
    SwizzleForElement(Swizzle, Element),
    /// NaN fill of an element type that has no NaN.
    FillForElement(Element),
    /// A store to global memory of an element type that the emulator only loads.
    LoadOnly(Element),
    /// The instruction names another number of coordinates than the tensor map needs.
    Coordinates {
        /// Coordinates that the access needs.
        expected: usize,
        /// Coordinates of the instruction.
        got: usize,
    },
    /// `gather4` or `scatter4` with a tensor map that is not two-dimensional with a box of one row.
    NotRows {
        /// Rank of the tensor map.
        rank: u32,
        /// Rows of its box.
        rows: u32,
    },
}

type Result<T> = std::result::Result<T, TensorMapError>;

impl fmt::Display for TensorMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |dimension: &Option<usize>| match dimension {
            Some(dimension) => format!(" of dimension {dimension}"),
            None => String::new(),
        };
        match self {
            Self::NotATensorMap => write!(f, "no tensor map here: the 128 bytes carry no mark"),
            Self::UnknownCode { field, code } => write!(f, "tensor map {field} has the unknown code {code}"),
            Self::OutOfRange { what, dimension, value, low, high } => {
                write!(f, "tensor map {what}{} is {value}, outside {low} to {high}", place(dimension))
            }
            Self::Misaligned { what, dimension, value, multiple } => {
                write!(f, "tensor map {what}{} is {value}, not a multiple of {multiple}", place(dimension))
            }
            Self::InnerBoxTooWide { bytes, width } => {
                write!(f, "inner box of {bytes} bytes is wider than the swizzle of {width} bytes")
            }
            Self::SwizzleForElement(swizzle, element) => {
                write!(f, "no swizzle {swizzle:?} for elements {element:?}")
            }
            Self::FillForElement(element) => {
                write!(f, "NaN fill for elements {element:?}, which have no NaN")
            }
            Self::LoadOnly(element) => write!(f, "elements {element:?} can be loaded, not stored"),
            Self::Coordinates { expected, got } => {
                write!(f, "{got} tensor coordinates where the tensor map needs {expected}")
            }
            Self::NotRows { rank, rows } => write!(
                f,
                "gather4 and scatter4 need rank 2 and a box of one row, the tensor map has rank {rank} and {rows} rows"
            ),
        }
    }
}

impl std::error::Error for TensorMapError {}

impl Element {
    const ALL: [Self; 16] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::S32,
        Self::U64,
        Self::S64,
        Self::F16,
        Self::F32,
        Self::F32Ftz,
        Self::F64,
        Self::Bf16,
        Self::Tf32,
        Self::Tf32Ftz,
        Self::B4x16,
        Self::B4x16P64,
        Self::B6x16P32,
    ];

    /// The element of a `tensormap.replace.elemtype` code.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// The element of a `CUtensorMapDataType`.
    pub fn from_driver_code(code: u32) -> Option<Self> {
        match code {
            8 => Some(Self::F64),
            9 => Some(Self::Bf16),
            10 => Some(Self::F32Ftz),
            _ => Self::from_code(u64::from(code)),
        }
    }

    /// Bits of one element in global memory.
    pub fn bits(self) -> u32 {
        match self {
            Self::B4x16 | Self::B4x16P64 => 4,
            Self::B6x16P32 => 6,
            Self::U8 => 8,
            Self::U16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::S32 | Self::F32 | Self::F32Ftz | Self::Tf32 | Self::Tf32Ftz => 32,
            Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    /// Bits of one element in shared memory, its share of the padding included.
    pub fn shared_bits(self) -> u32 {
        if self.is_padded() { 8 } else { self.bits() }
    }

    /// Whether groups of sixteen elements take 16 bytes of shared memory whatever their size.
    pub fn is_padded(self) -> bool {
        matches!(self, Self::B4x16P64 | Self::B6x16P32)
    }

    fn is_float(self) -> bool {
        use Element::*;
        matches!(self, F16 | F32 | F32Ftz | F64 | Bf16 | Tf32 | Tf32Ftz)
    }
}

impl Field {
    /// The field of an instruction's qualifier, as in `global_address`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "global_address" => Self::GlobalAddress,
            "rank" => Self::Rank,
            "box_dim" => Self::BoxDim,
            "global_dim" => Self::GlobalDim,
            "global_stride" => Self::GlobalStride,
            "element_stride" => Self::ElementStride,
            "elemtype" => Self::ElementType,
            "interleave_layout" => Self::InterleaveLayout,
            "swizzle_mode" => Self::SwizzleMode,
            "swizzle_atomicity" => Self::SwizzleAtomicity,
            "fill_mode" => Self::FillMode,
            _ => return None,
        })
    }
}

impl TensorMap {
    /// Checks what `cuTensorMapEncodeTiled` checks and encodes.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES]> {
        self.check()?;
        let rank = self.rank as usize;
        let (mode, atomicity) = self.swizzle.codes();
        let mut bytes = [0; TENSOR_MAP_BYTES];
        bytes[..8].copy_from_slice(&MARK);
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16] = self.element as u8;
        bytes[17] = self.rank as u8 - 1;
        bytes[19] = mode;
        bytes[20] = atomicity;
        bytes[21] = self.fill as u8;
        for i in 0..rank {
            put(&mut bytes, DIMS + 8 * i, self.dims[i].to_le_bytes());
            put(&mut bytes, BOX + 2 * i, (self.box_dims[i] as u16).to_le_bytes());
            bytes[ELEMENT_STRIDES + i] = self.element_strides[i] as u8;
        }
        for i in 0..rank - 1 {
            put(&mut bytes, STRIDES + 8 * i, self.strides_bytes[i].to_le_bytes());
        }
        Ok(bytes)
    }

    /// Reads an encoded tensor map. One that `tensormap.replace` left incomplete fails the checks of
    /// [`TensorMap::encode`].
    pub fn decode(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<Self> {
        if bytes[..8] != MARK || bytes[22..24] != [0; 2] || bytes[END..].iter().any(|&byte| byte != 0) {
            return Err(TensorMapError::NotATensorMap);
        }
        let unknown = |field, code: u8| TensorMapError::UnknownCode { field, code: u64::from(code) };
        let rank = u32::from(bytes[17]) + 1;
        if rank > 5 {
            return Err(out_of_range("rank", None, i64::from(rank), 1, 5));
        }
        if bytes[18] != 0 {
            return Err(unknown("interleave_layout", bytes[18]));
        }
        let mut map = Self {
            element: Element::from_code(u64::from(bytes[16])).ok_or(unknown("elemtype", bytes[16]))?,
            rank,
            address: u64::from_le_bytes(get(bytes, 8)),
            dims: [0; 5],
            strides_bytes: [0; 4],
            box_dims: [0; 5],
            element_strides: [0; 5],
            swizzle: Swizzle::from_codes(bytes[19], bytes[20]).ok_or(unknown("swizzle_mode", bytes[19]))?,
            fill: match bytes[21] {
                0 => Fill::Zero,
                1 => Fill::Nan,
                code => return Err(unknown("fill_mode", code)),
            },
        };
        let rank = rank as usize;
        for i in 0..rank {
            map.dims[i] = u64::from_le_bytes(get(bytes, DIMS + 8 * i));
            map.box_dims[i] = u32::from(u16::from_le_bytes(get(bytes, BOX + 2 * i)));
            map.element_strides[i] = u32::from(bytes[ELEMENT_STRIDES + i]);
        }
        for i in 0..rank - 1 {
            map.strides_bytes[i] = u64::from_le_bytes(get(bytes, STRIDES + 8 * i));
        }
        map.check()?;
        Ok(map)
    }

    /// `tensormap.replace`: changes one field of an encoded tensor map, or of 128 zero bytes, from which
    /// programs build a map. `ordinal` counts dimensions; for `GlobalStride`, 0 is the stride of
    /// dimension 1. Fields are checked together when the map is used.
    pub fn replace(bytes: &mut [u8; TENSOR_MAP_BYTES], field: Field, ordinal: u32, value: u64) -> Result<()> {
        let zero = bytes.iter().all(|&byte| byte == 0);
        if !zero && bytes[..8] != MARK {
            return Err(TensorMapError::NotATensorMap);
        }
        let index = ordinal as usize;
        let dimension = |last: i64| match i64::from(ordinal) {
            ordinal if ordinal > last => Err(out_of_range("ordinal", None, ordinal, 0, last)),
            _ => Ok(()),
        };
        let number = |what, low, high| match i64::try_from(value).unwrap_or(i64::MAX) {
            value if (low..=high).contains(&value) => Ok(()),
            value => Err(out_of_range(what, Some(index), value, low, high)),
        };
        let code = |field, last| match value {
            value if value > last => Err(TensorMapError::UnknownCode { field, code: value }),
            value => Ok(value as u8),
        };
        let mut next = *bytes;
        next[..8].copy_from_slice(&MARK);
        match field {
            Field::GlobalAddress => put(&mut next, 8, value.to_le_bytes()),
            Field::Rank => next[17] = code("rank - 1", 4)?,
            Field::ElementType => next[16] = code("elemtype", 15)?,
            Field::InterleaveLayout => next[18] = code("interleave_layout", 0)?,
            Field::SwizzleMode => next[19] = code("swizzle_mode", 3)?,
            Field::SwizzleAtomicity => next[20] = code("swizzle_atomicity", 3)?,
            Field::FillMode => next[21] = code("fill_mode", 1)?,
            Field::GlobalDim => {
                dimension(4)?;
                number("size", 1, 1 << 32)?;
                put(&mut next, DIMS + 8 * index, value.to_le_bytes());
            }
            Field::GlobalStride => {
                dimension(3)?;
                put(&mut next, STRIDES + 8 * index, value.to_le_bytes());
            }
            Field::BoxDim => {
                dimension(4)?;
                number("box", 1, 256)?;
                put(&mut next, BOX + 2 * index, (value as u16).to_le_bytes());
            }
            Field::ElementStride => {
                dimension(4)?;
                number("element stride", 1, 8)?;
                next[ELEMENT_STRIDES + index] = value as u8;
            }
        }
        *bytes = next;
        Ok(())
    }

    /// Whether the map may be the destination of a store or reduction.
    pub fn check_store(&self) -> Result<()> {
        if self.element.is_padded() { Err(TensorMapError::LoadOnly(self.element)) } else { Ok(()) }
    }

    /// Sixteen bytes of elements outside the tensor, aligned to the element.
    ///
    /// The bits of the NaN are not documented; these are the canonical ones.
    pub fn fill_pattern(&self) -> [u8; 16] {
        let element: &[u8] = match (self.fill, self.element.bits()) {
            (Fill::Zero, _) => &[0],
            (Fill::Nan, 16) => &[0xff, 0x7f],
            (Fill::Nan, 32) => &[0xff, 0xff, 0xff, 0x7f],
            (Fill::Nan, _) => &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        };
        std::array::from_fn(|i| element[i % element.len()])
    }

    fn check(&self) -> Result<()> {
        in_range("rank", None, i64::from(self.rank), 1, 5)?;
        let rank = self.rank as usize;
        let padded = self.element.is_padded();
        let alignment = if padded { 32 } else { 16 };
        aligned("address", None, self.address, alignment)?;
        for i in 0..rank {
            let size = i64::try_from(self.dims[i]).unwrap_or(i64::MAX);
            in_range("size", Some(i), size, 1, 1 << 32)?;
            in_range("box", Some(i), i64::from(self.box_dims[i]), 1, 256)?;
            in_range("element stride", Some(i), i64::from(self.element_strides[i]), 1, 8)?;
        }
        for (i, &stride) in self.strides_bytes[..rank - 1].iter().enumerate() {
            aligned("stride", Some(i + 1), stride, alignment)?;
            in_range("stride", Some(i + 1), i64::try_from(stride).unwrap_or(i64::MAX), 0, (1 << 40) - 1)?;
        }
        match self.element {
            Element::B4x16 => aligned("size", Some(0), self.dims[0], 2)?,
            _ if padded => {
                aligned("size", Some(0), self.dims[0], 128)?;
                in_range("box", Some(0), i64::from(self.box_dims[0]), 128, 128)?;
            }
            _ => {}
        }
        let inner_bits = self.box_dims[0] * self.element.shared_bits();
        aligned("inner box in bits", None, u64::from(inner_bits), 128)?;
        if let Some(width) = self.swizzle.width_bytes()
            && inner_bits / 8 > width
        {
            return Err(TensorMapError::InnerBoxTooWide { bytes: inner_bits / 8, width });
        }
        // The 64-byte atom exists for 6-bit stores alone, which `check_store` refuses.
        if padded && !matches!(self.swizzle, Swizzle::None | Swizzle::B128 | Swizzle::B128Atom32) {
            return Err(TensorMapError::SwizzleForElement(self.swizzle, self.element));
        }
        if self.fill == Fill::Nan && !self.element.is_float() {
            return Err(TensorMapError::FillForElement(self.element));
        }
        Ok(())
    }
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

fn out_of_range(
    what: &'static str,
    dimension: Option<usize>,
    value: i64,
    low: i64,
    high: i64,
) -> TensorMapError {
    TensorMapError::OutOfRange { what, dimension, value, low, high }
}

fn in_range(what: &'static str, dimension: Option<usize>, value: i64, low: i64, high: i64) -> Result<()> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(out_of_range(what, dimension, value, low, high)) }
}

fn aligned(what: &'static str, dimension: Option<usize>, value: u64, multiple: u64) -> Result<()> {
    if value.is_multiple_of(multiple) {
        Ok(())
    } else {
        Err(TensorMapError::Misaligned { what, dimension, value: value as i64, multiple })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A valid map with every field away from its default.
    fn example() -> TensorMap {
        TensorMap {
            element: Element::Bf16,
            rank: 3,
            address: 0x7f00_1234_5670,
            dims: [40, 1 << 32, 3, 0, 0],
            strides_bytes: [96, 1 << 39, 0, 0],
            box_dims: [64, 5, 256, 0, 0],
            element_strides: [1, 2, 8, 0, 0],
            swizzle: Swizzle::B128Atom32,
            fill: Fill::Nan,
        }
    }

    #[test]
    fn decode_returns_what_was_encoded() {
        let map = example();
        let all = [Swizzle::None, Swizzle::B128, Swizzle::B128Atom32Flip8, Swizzle::B128Atom64];
        for swizzle in all {
            let map = TensorMap { swizzle, ..map };
            assert_eq!(TensorMap::decode(&map.encode().unwrap()), Ok(map));
        }
        for element in Element::ALL {
            assert_eq!(Element::from_code(element as u64), Some(element));
            let map = TensorMap {
                element,
                fill: Fill::Zero,
                address: 4096,
                rank: 1,
                dims: [256, 0, 0, 0, 0],
                strides_bytes: [0; 4],
                box_dims: [128, 0, 0, 0, 0],
                element_strides: [1, 0, 0, 0, 0],
                swizzle: Swizzle::None,
            };
            assert_eq!(TensorMap::decode(&map.encode().unwrap()), Ok(map));
        }
        assert_eq!(Element::from_driver_code(9), Some(Element::Bf16));
        assert_eq!(Element::from_driver_code(7), Some(Element::F32));
        assert_eq!(Element::from_driver_code(16), None);
    }

    #[test]
    fn other_memory_is_not_a_tensor_map() {
        let encoded = example().encode().unwrap();
        let mut damaged = vec![[0; 128], [0xff; 128], std::array::from_fn(|i| i as u8)];
        for at in [0, 7, 22, END, 127] {
            let mut bytes = encoded;
            bytes[at] ^= 0x20;
            damaged.push(bytes);
        }
        for bytes in damaged {
            assert_eq!(TensorMap::decode(&bytes), Err(TensorMapError::NotATensorMap), "{bytes:?}");
        }
    }

    #[test]
    fn replacing_every_field_equals_encoding_anew() {
        let map = example();
        let mut other = TensorMap {
            element: Element::U8,
            rank: 5,
            address: 16,
            dims: [1; 5],
            strides_bytes: [16; 4],
            box_dims: [16; 5],
            element_strides: [1; 5],
            swizzle: Swizzle::B32,
            fill: Fill::Zero,
        };
        let changes = |map: &TensorMap| {
            let (mode, atomicity) = map.swizzle.codes();
            let mut changes = vec![
                (Field::GlobalAddress, 0, map.address),
                (Field::Rank, 0, u64::from(map.rank) - 1),
                (Field::ElementType, 0, map.element as u64),
                (Field::InterleaveLayout, 0, 0),
                (Field::SwizzleMode, 0, u64::from(mode)),
                (Field::SwizzleAtomicity, 0, u64::from(atomicity)),
                (Field::FillMode, 0, map.fill as u64),
            ];
            for i in 0..map.rank {
                changes.push((Field::GlobalDim, i, map.dims[i as usize]));
                changes.push((Field::BoxDim, i, u64::from(map.box_dims[i as usize])));
                changes.push((Field::ElementStride, i, u64::from(map.element_strides[i as usize])));
            }
            for i in 0..map.rank - 1 {
                changes.push((Field::GlobalStride, i, map.strides_bytes[i as usize]));
            }
            changes
        };
        // From zero memory, the bytes are those of an encoding; from another map, the values are.
        let mut bytes = [0; 128];
        for (field, ordinal, value) in changes(&map) {
            TensorMap::replace(&mut bytes, field, ordinal, value).unwrap();
        }
        assert_eq!(bytes, map.encode().unwrap());
        let mut bytes = other.encode().unwrap();
        for (field, ordinal, value) in changes(&map) {
            TensorMap::replace(&mut bytes, field, ordinal, value).unwrap();
        }
        assert_eq!(TensorMap::decode(&bytes), Ok(map));
        // One field alone.
        let mut bytes = other.encode().unwrap();
        TensorMap::replace(&mut bytes, Field::GlobalStride, 2, 4096).unwrap();
        other.strides_bytes[2] = 4096;
        assert_eq!(bytes, other.encode().unwrap());
    }

    #[test]
    fn replace_refuses_what_cannot_be() {
        let encoded = example().encode().unwrap();
        for (field, ordinal, value) in [
            (Field::Rank, 0, 5),
            (Field::ElementType, 0, 16),
            (Field::SwizzleMode, 0, 4),
            (Field::InterleaveLayout, 0, 1),
            (Field::GlobalDim, 5, 1),
            (Field::GlobalDim, 0, 0),
            (Field::GlobalStride, 4, 16),
            (Field::BoxDim, 0, 257),
            (Field::ElementStride, 0, 9),
        ] {
            let mut bytes = encoded;
            assert!(TensorMap::replace(&mut bytes, field, ordinal, value).is_err(), "{field:?} {value}");
            assert_eq!(bytes, encoded, "{field:?}");
        }
        let mut garbage = [7; 128];
        let result = TensorMap::replace(&mut garbage, Field::Rank, 0, 1);
        assert_eq!(result, Err(TensorMapError::NotATensorMap));
        let mut unfinished = [0; 128];
        TensorMap::replace(&mut unfinished, Field::Rank, 0, 1).unwrap();
        let missing =
            TensorMapError::OutOfRange { what: "size", dimension: Some(0), value: 0, low: 1, high: 1 << 32 };
        assert_eq!(TensorMap::decode(&unfinished), Err(missing));
    }

    #[test]
    fn encode_checks_what_the_driver_checks() {
        type Change = fn(&mut TensorMap);
        let cases: [(Change, &str); 14] = [
            (|m| m.rank = 6, "tensor map rank is 6, outside 1 to 5"),
            (|m| m.rank = 0, "tensor map rank is 0, outside 1 to 5"),
            (|m| m.address += 8, "tensor map address is 139638282147448, not a multiple of 16"),
            (|m| m.dims[1] += 1, "tensor map size of dimension 1 is 4294967297, outside 1 to 4294967296"),
            (|m| m.dims[2] = 0, "tensor map size of dimension 2 is 0, outside 1 to 4294967296"),
            (|m| m.strides_bytes[0] = 24, "tensor map stride of dimension 1 is 24, not a multiple of 16"),
            (
                |m| m.strides_bytes[1] = 1 << 40,
                "tensor map stride of dimension 2 is 1099511627776, outside 0 to 1099511627775",
            ),
            (|m| m.box_dims[2] = 257, "tensor map box of dimension 2 is 257, outside 1 to 256"),
            (|m| m.box_dims[0] = 4, "tensor map inner box in bits is 64, not a multiple of 128"),
            (|m| m.box_dims[0] = 72, "inner box of 144 bytes is wider than the swizzle of 128 bytes"),
            (|m| m.element_strides[1] = 9, "tensor map element stride of dimension 1 is 9, outside 1 to 8"),
            (|m| m.element = Element::U16, "NaN fill for elements U16, which have no NaN"),
            (
                |m| m.element = Element::B4x16P64,
                "tensor map address is 139638282147440, not a multiple of 32",
            ),
            (
                |m| {
                    *m = TensorMap {
                        element: Element::B4x16P64,
                        address: 0,
                        box_dims: [128, 1, 1, 0, 0],
                        ..*m
                    };
                    m.dims[0] = 128;
                    m.swizzle = Swizzle::B128Atom64;
                },
                "no swizzle B128Atom64 for elements B4x16P64",
            ),
        ];
        for (change, message) in cases {
            let mut map = example();
            change(&mut map);
            assert_eq!(map.encode().unwrap_err().to_string(), message);
        }
        // Without a swizzle the inner box may have any width.
        let mut wide = example();
        wide.swizzle = Swizzle::None;
        wide.box_dims[0] = 256;
        assert!(wide.encode().is_ok());
    }

    #[test]
    fn fills() {
        let mut map = example();
        assert_eq!(map.fill_pattern()[..4], [0xff, 0x7f, 0xff, 0x7f]);
        map.element = Element::F32;
        assert_eq!(map.fill_pattern()[..8], [0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
        map.fill = Fill::Zero;
        assert_eq!(map.fill_pattern(), [0; 16]);
    }
}
