//! Registers of a warp and the operations on them: no memory, no control flow.
//!
//! An operation is a function over the register file, chosen once when a kernel is lowered, and
//! compiled for the vector instructions of the machine.

mod registers;
mod operation;

pub(crate) use operation::{Alu, Isa, Kernel, One, Op1, Op2, Op3, Operands, Three, Two, store};
pub(crate) use registers::{Pattern, Registers, Value, Word};
