//! Scalar arithmetic of PTX: conversions, roundings, integer and floating-point operations of one lane.
//!
//! Every function is pure, inlines into its caller and, where the operation allows, has no branch on a
//! value, so that a loop over the 32 lanes of a warp vectorises. A [`round::Mode`] written as a constant
//! folds away. The loop itself belongs into a plain function with the target features: a closure there keeps
//! the features to itself and may not inline.
//!
//! Results equal the PTX ISA bit for bit with three exceptions, which the ISA itself leaves open: the
//! payload of a NaN that an f32 or f64 operation returns, the last bits of `.approx` and `.full`
//! instructions (here at most a few ulp from exact) and integer division by zero.

pub mod round;
pub mod integer;
pub mod bits;
pub mod float;
pub mod double;
pub mod approximate;
pub mod extremum;
pub mod comparison;
pub mod sixteen;
pub mod half;
pub mod bf16;
pub mod narrow;
pub mod convert;
pub mod packed;

#[cfg(test)]
mod tests;
