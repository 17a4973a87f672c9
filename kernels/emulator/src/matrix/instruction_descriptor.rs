//! Instruction descriptors of `tcgen05.mma` (PTX ISA 9.0, "Instruction descriptor").

use super::block_scale::ScaleFormat;
use super::shared_descriptor::Major;

/// The fields of a descriptor. Formats are codes whose meaning depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionDescriptor {
    /// M.
    pub rows: usize,
    /// N.
    pub columns: usize,
    /// Element code of A.
    pub a_format: u32,
    /// Element code of B.
    pub b_format: u32,
    /// Whether A is negated.
    pub negate_a: bool,
    /// Whether B is negated.
    pub negate_b: bool,
    /// Layout of A in shared memory.
    pub a_major: Major,
    /// Layout of B in shared memory.
    pub b_major: Major,
    /// What the block-scaled and the other kinds differ in.
    pub variant: Variant,
}

/// Fields that depend on block scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Without scale factors.
    Plain {
        /// 0 f16, 1 f32, 2 s32.
        d_format: u32,
        /// Whether an s32 sum is clamped.
        saturate: bool,
    },
    /// With scale factors; the sum is f32.
    Scaled {
        /// Format of all factors.
        format: ScaleFormat,
        /// First byte of A's factors within their column.
        a_id: usize,
        /// First byte of B's factors within their column.
        b_id: usize,
    },
}

impl InstructionDescriptor {
    /// Decodes `descriptor`. Errors name a feature that is not known: sparsity, shifts, K = 96.
    pub fn decode(descriptor: u32, block_scaled: bool) -> Result<Self, String> {
        let field = |first: u32, bits: u32| descriptor >> first & ((1 << bits) - 1);
        let unknown =
            |what: &str| Err(format!("instruction descriptor {descriptor:#010x}: {what} is not known"));
        if field(2, 1) != 0 {
            return unknown("sparsity");
        }
        let variant = if block_scaled {
            if field(31, 1) != 0 {
                return unknown("K = 96");
            }
            let format = if field(23, 1) == 1 { ScaleFormat::Ue8m0 } else { ScaleFormat::Ue4m3 };
            Variant::Scaled { format, a_id: field(29, 2) as usize, b_id: field(4, 2) as usize }
        } else {
            if field(30, 2) != 0 {
                return unknown("a shift of B");
            }
            Variant::Plain { d_format: field(4, 2), saturate: field(3, 1) == 1 }
        };
        let major = |bit| if bit == 1 { Major::Mn } else { Major::K };
        Ok(Self {
            rows: 16 * field(24, 5) as usize,
            columns: 8 * field(17, 6) as usize,
            a_format: field(7, 3),
            b_format: field(10, 3),
            negate_a: field(13, 1) == 1,
            negate_b: field(14, 1) == 1,
            a_major: major(field(15, 1)),
            b_major: major(field(16, 1)),
            variant,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_descriptors() {
        // As a compiler prints them for MXFP4 and bf16 products.
        let mx = InstructionDescriptor::decode(1_216_873_632, true).expect("known");
        assert_eq!((mx.rows, mx.columns, mx.a_format, mx.b_format), (128, 32, 1, 1));
        assert_eq!(mx.variant, Variant::Scaled { format: ScaleFormat::Ue8m0, a_id: 2, b_id: 2 });
        let bf16 =
            InstructionDescriptor::decode(4 << 24 | 4 << 17 | 1 << 16 | 1 << 10 | 1 << 7 | 1 << 4, false);
        let expected = InstructionDescriptor {
            rows: 64,
            columns: 32,
            a_format: 1,
            b_format: 1,
            negate_a: false,
            negate_b: false,
            a_major: Major::K,
            b_major: Major::Mn,
            variant: Variant::Plain { d_format: 1, saturate: false },
        };
        assert_eq!(bf16, Ok(expected));
        assert!(InstructionDescriptor::decode(4, false).is_err());
        assert!(InstructionDescriptor::decode(1 << 30, false).is_err());
        assert!(InstructionDescriptor::decode(1 << 31, true).is_err());
    }
}
