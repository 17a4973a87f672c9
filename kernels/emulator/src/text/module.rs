//! A parsed module.

use std::collections::HashMap;

/// A module: its variables and functions.
#[derive(Debug, Clone, Default)]
pub struct Module {
    /// The architecture of `.target`, as `sm_90a`.
    pub target: String,
    /// Module-scope variables.
    pub variables: Vec<Variable>,
    /// Entry points and device functions with a body.
    pub functions: Vec<Function>,
}

impl Module {
    /// The architecture of `.target` as a number: 90 of `sm_90a`.
    ///
    /// Errors: a `.target` that names none.
    pub fn architecture(&self) -> Result<u32, String> {
        let digits =
            self.target.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_ascii_alphabetic());
        digits.parse().map_err(|_| format!("`.target {}` names no architecture", self.target))
    }
}

/// State space of a variable or an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Registers' own; only in declarations.
    Register,
    /// Device memory.
    Global,
    /// Constant memory; read-only device memory here.
    Constant,
    /// Memory of a block, or of a cluster by a mapped address.
    Shared,
    /// Memory of a thread.
    Local,
    /// Kernel parameters.
    Param,
    /// An address that carries its space.
    Generic,
}

/// A variable in memory.
#[derive(Debug, Clone)]
pub struct Variable {
    /// State space.
    pub space: Space,
    /// Name in the text.
    pub name: String,
    /// Alignment, bytes.
    pub align: u64,
    /// Size, bytes; 0 for `.extern` arrays without a length.
    pub size: u64,
    /// Initial bytes; shorter than `size` if the rest is zero.
    pub init: Vec<u8>,
}

/// A kernel parameter.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Name in the text.
    pub name: String,
    /// Byte offset in the parameter block.
    pub offset: u64,
    /// Size, bytes.
    pub size: u64,
}

/// Launch limits that the text states.
#[derive(Debug, Clone, Copy, Default)]
pub struct Directives {
    /// `.reqntid`: the block must have this shape.
    pub required_block: Option<[u32; 3]>,
    /// `.maxntid`: threads of a block, at most.
    pub max_threads: Option<u32>,
    /// `.reqnctapercluster`: the cluster must have this shape.
    pub required_cluster: Option<[u32; 3]>,
}

/// A function.
#[derive(Debug, Clone)]
pub struct Function {
    /// Name in the text.
    pub name: String,
    /// Whether it can be launched.
    pub entry: bool,
    /// Parameters in order.
    pub parameters: Vec<Parameter>,
    /// Launch limits.
    pub directives: Directives,
    /// Registers of all scopes.
    pub registers: Vec<Register>,
    /// Variables of all scopes (shared, local).
    pub variables: Vec<Variable>,
    /// Instructions; labels are indices into this list.
    pub code: Vec<Instruction>,
}

/// A register of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// Name in the text.
    pub name: String,
    /// Width class.
    pub kind: RegisterKind,
}

/// Width class of a register. Registers have no type beyond it; instructions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterKind {
    /// One bit a lane.
    Predicate,
    /// 8, 16 or 32 bits.
    Narrow,
    /// 64 bits.
    Wide,
    /// 128 bits.
    Quad,
}

/// A literal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Immediate {
    /// An integer, sign-extended to 64 bits.
    Integer(u64),
    /// `0f` literal: bits of an f32.
    Single(u32),
    /// `0d` or decimal literal: bits of an f64.
    Double(u64),
}

/// What an address names.
#[derive(Debug, Clone, PartialEq)]
pub enum SymbolRef {
    /// Index into the module's variables.
    Module(usize),
    /// Index into the function's variables.
    Function(usize),
    /// Index into the function's parameters.
    Parameter(usize),
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Index into the function's registers.
    Register(usize),
    /// `!` before a predicate register.
    Not(usize),
    /// A literal.
    Immediate(Immediate),
    /// A read-only register such as `%tid.x`.
    Special(String),
    /// Address of a variable.
    Symbol(SymbolRef),
    /// `{a, b, ...}`.
    Vector(Vec<Operand>),
    /// `[base + offset]`; the base is a register, a symbol or a literal.
    Address(Box<Operand>, i64),
    /// `[map, {coordinates}]`.
    Tensor(Box<Operand>, Vec<Operand>),
    /// `d|p`: two destinations.
    Pair(Box<Operand>, Box<Operand>),
    /// Index of an instruction.
    Label(usize),
    /// Indices of the targets of `brx.idx`.
    Targets(Vec<usize>),
    /// `_`.
    Sink,
}

/// An instruction.
#[derive(Debug, Clone)]
pub struct Instruction {
    /// Line in the text.
    pub line: u32,
    /// Register of the guard and whether it is inverted.
    pub guard: Option<(usize, bool)>,
    /// Opcode with its modifiers, as in the text.
    pub opcode: String,
    /// Operands in the order of the text.
    pub operands: Vec<Operand>,
}

impl Instruction {
    /// The opcode split at its dots: the mnemonic and its modifiers.
    pub fn parts(&self) -> Vec<&str> {
        self.opcode.split('.').collect()
    }
}

impl Module {
    /// The function with this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// Indices of module variables by name.
    pub(super) fn names(&self) -> HashMap<&str, usize> {
        self.variables.iter().enumerate().map(|(index, variable)| (variable.name.as_str(), index)).collect()
    }
}
