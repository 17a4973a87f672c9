//! Packed operands: two or four values in one register, lowest first. `cvt` to a packed type takes its first
//! operand into the upper half: `join(b, a)`.

/// The halves of a 32-bit register, lower first.
#[inline(always)]
pub fn split(x: u32) -> (u16, u16) {
    (x as u16, (x >> 16) as u16)
}

/// Two 16-bit values as one register.
#[inline(always)]
pub fn join(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Applies an operation to both halves: f16x2, bf16x2, u16x2, s16x2.
#[inline(always)]
pub fn map(a: u32, f: impl Fn(u16) -> u16) -> u32 {
    join(f(a as u16), f((a >> 16) as u16))
}

/// [`map`] with two operands.
#[inline(always)]
pub fn map2(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    join(f(a as u16, b as u16), f((a >> 16) as u16, (b >> 16) as u16))
}

/// [`map`] with three operands.
#[inline(always)]
pub fn map3(a: u32, b: u32, c: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    join(f(a as u16, b as u16, c as u16), f((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16))
}

/// The halves of an f32x2, lower first.
#[inline(always)]
pub fn split_f32(x: u64) -> (f32, f32) {
    (f32::from_bits(x as u32), f32::from_bits((x >> 32) as u32))
}

/// Two f32 as one register.
#[inline(always)]
pub fn join_f32(low: f32, high: f32) -> u64 {
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

/// Applies an operation to both halves of f32x2 operands.
#[inline(always)]
pub fn map2_f32(a: u64, b: u64, f: impl Fn(f32, f32) -> f32) -> u64 {
    let ((a0, a1), (b0, b1)) = (split_f32(a), split_f32(b));
    join_f32(f(a0, b0), f(a1, b1))
}

/// [`map2_f32`] with three operands.
#[inline(always)]
pub fn map3_f32(a: u64, b: u64, c: u64, f: impl Fn(f32, f32, f32) -> f32) -> u64 {
    let ((a0, a1), (b0, b1), (c0, c1)) = (split_f32(a), split_f32(b), split_f32(c));
    join_f32(f(a0, b0, c0), f(a1, b1, c1))
}
