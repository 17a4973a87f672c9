//! PTX text to a [`Module`]: names resolved, nothing interpreted.

mod token;
mod module;
mod parser;

pub use module::{
    Directives, Function, Immediate, Instruction, Module, Operand, Parameter, Register, RegisterKind, Space,
    SymbolRef, Variable,
};
pub use parser::{ParseError, parse};
