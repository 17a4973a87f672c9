//! Types of PTX instructions.

/// A fundamental type, as it stands behind a dot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Pred,
    U8,
    S8,
    B8,
    U16,
    S16,
    B16,
    U32,
    S32,
    B32,
    U64,
    S64,
    B64,
    B128,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    U16x2,
    S16x2,
    F32,
    F32x2,
    F64,
    Tf32,
    E4m3x2,
    E5m2x2,
    E2m1x2,
    E2m3x2,
    E3m2x2,
    Ue8m0x2,
}

impl Type {
    /// The type of that name.
    pub(crate) fn parse(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "u8" => Type::U8,
            "s8" => Type::S8,
            "b8" => Type::B8,
            "u16" => Type::U16,
            "s16" => Type::S16,
            "b16" => Type::B16,
            "u32" => Type::U32,
            "s32" => Type::S32,
            "b32" => Type::B32,
            "u64" => Type::U64,
            "s64" => Type::S64,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::Bf16x2,
            "u16x2" => Type::U16x2,
            "s16x2" => Type::S16x2,
            "f32" => Type::F32,
            "f32x2" => Type::F32x2,
            "f64" => Type::F64,
            "tf32" => Type::Tf32,
            "e4m3x2" => Type::E4m3x2,
            "e5m2x2" => Type::E5m2x2,
            "e2m1x2" => Type::E2m1x2,
            "e2m3x2" => Type::E2m3x2,
            "e3m2x2" => Type::E3m2x2,
            "ue8m0x2" => Type::Ue8m0x2,
            _ => return None,
        })
    }

    /// Width.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::U8 | Type::S8 | Type::B8 | Type::E2m1x2 => 8,
            Type::U16 | Type::S16 | Type::B16 | Type::F16 | Type::Bf16 => 16,
            Type::E4m3x2 | Type::E5m2x2 | Type::E2m3x2 | Type::E3m2x2 | Type::Ue8m0x2 => 16,
            Type::U64 | Type::S64 | Type::B64 | Type::F64 | Type::F32x2 => 64,
            Type::B128 => 128,
            _ => 32,
        }
    }

    /// Width in bytes.
    pub(crate) fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether a value is sign-extended.
    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// Whether a register of the type takes 64 bits.
    pub(crate) fn is_wide(self) -> bool {
        self.bits() == 64
    }
}
