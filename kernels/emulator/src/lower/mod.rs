//! A parsed kernel to a [`Program`]: operands to slots, opcodes to operations.
//!
//! Modifiers are a set: compilers print them in different orders. An opcode or a modifier that no
//! family knows is an error with the instruction's text.

mod types;
mod allocate;
mod operands;
mod arithmetic;
mod compare;
mod convert;
mod data;
mod memory;
mod warp;
mod transfer;
mod matrix;

use std::collections::HashMap;

pub(crate) use operands::{GLOBAL_START, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, dynamic_shared_start};
pub(crate) use types::Type;

use allocate::{Places, allocate};

use crate::execute::{Alu, Isa, Kernel, Operands};
use crate::program::{Action, Constant, Inst, Program, SHARED_START};
use crate::text::{Function, Instruction, Module, Operand, Space};

/// A kernel that cannot be lowered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LowerError {
    /// Line of the instruction in the text; 0 for the kernel as a whole.
    pub(crate) line: u32,
    /// Reason, with the opcode.
    pub(crate) text: String,
}

impl std::fmt::Display for LowerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for LowerError {}

/// Most 32-bit words of registers of a thread: 32 MiB in a warp.
const MAX_SLOTS: u32 = 1 << 18;

type Result<T, E = String> = std::result::Result<T, E>;

/// Lowers a kernel of a module. `globals` are the addresses of the module's variables, 0 for those
/// in shared memory.
pub(crate) fn lower(module: &Module, function: &Function, globals: &[u64]) -> Result<Program, LowerError> {
    let mut lowering =
        Lowering::new(module, function, globals).map_err(|text| LowerError { line: 0, text })?;
    let mut starts = Vec::with_capacity(function.code.len());
    for instruction in &function.code {
        starts.push(lowering.code.len() as u32);
        lowering.begin(instruction);
        lowering.instruction(instruction).map_err(|reason| LowerError {
            line: instruction.line,
            text: format!("`{}`: {reason}", instruction.opcode),
        })?;
    }
    // A kernel may end without `ret`.
    starts.push(lowering.code.len() as u32);
    lowering.guard = None;
    lowering.opcode = "exit".to_string();
    lowering.emit(Action::Exit, Operands::default());
    for inst in &mut lowering.code {
        match &mut inst.action {
            Action::Branch(target) => *target = starts[*target as usize],
            Action::BranchTable(targets) => {
                targets.iter_mut().for_each(|target| *target = starts[*target as usize]);
            }
            _ => {}
        }
    }
    Ok(lowering.finish())
}

/// State of a lowering.
struct Lowering<'a> {
    module: &'a Module,
    function: &'a Function,
    globals: &'a [u64],
    isa: Isa,
    code: Vec<Inst>,
    opcodes: Vec<String>,
    /// Slot or predicate index of each register.
    places: Vec<u32>,
    slots: u32,
    predicates: u32,
    constants: HashMap<Constant, u32>,
    /// Offsets of the function's variables in their space.
    variables: Vec<u64>,
    /// Offsets of the module's shared variables; `None`: dynamic.
    shared: Vec<Option<u32>>,
    static_shared: u32,
    local_bytes: u32,
    /// Whether `tcgen05` instructions are of pairs of blocks, from the first that says so.
    pairs: Option<bool>,
    /// A slot of four that takes what is not wanted.
    sink: u32,
    // Of the current instruction.
    line: u32,
    guard: Option<(u32, bool)>,
    opcode: String,
}

impl<'a> Lowering<'a> {
    fn new(module: &'a Module, function: &'a Function, globals: &'a [u64]) -> Result<Self> {
        // Predicates 0 and 1 and slots 0 to 3 are reserved.
        let Places { of: places, slots, predicates } = allocate(function, 4, 2);
        let mut offset = u64::from(SHARED_START);
        let mut place = |size: u64, align: u64| {
            offset = offset.next_multiple_of(align);
            let at = offset;
            offset += size;
            at
        };
        let shared = module
            .variables
            .iter()
            .map(|v| (v.space == Space::Shared && v.size > 0).then(|| place(v.size, v.align) as u32))
            .collect();
        let mut local = 0u64;
        let mut variables = Vec::new();
        for variable in &function.variables {
            variables.push(match variable.space {
                Space::Shared => place(variable.size, variable.align),
                Space::Local => {
                    let at = local.next_multiple_of(variable.align);
                    local = at + variable.size;
                    at
                }
                other => {
                    return Err(format!("variable `{}` in {other:?} space in a function", variable.name));
                }
            });
        }
        if slots > MAX_SLOTS {
            return Err(format!("registers of {slots} words; {MAX_SLOTS} are possible"));
        }
        let static_shared = offset - u64::from(SHARED_START);
        if static_shared > 1 << 20 || local > 1 << 20 {
            return Err(format!("{static_shared} bytes of shared and {local} of local memory are too many"));
        }
        Ok(Self {
            module,
            function,
            globals,
            isa: Isa::best(),
            code: Vec::new(),
            opcodes: Vec::new(),
            places,
            slots,
            predicates,
            constants: HashMap::new(),
            variables,
            shared,
            static_shared: static_shared as u32,
            local_bytes: local as u32,
            pairs: None,
            sink: 0,
            line: 0,
            guard: None,
            opcode: String::new(),
        })
    }

    fn begin(&mut self, instruction: &Instruction) {
        self.line = instruction.line;
        self.opcode.clone_from(&instruction.opcode);
        self.guard = instruction.guard.map(|(register, inverted)| (self.places[register], inverted));
    }

    fn emit(&mut self, action: Action, operands: Operands) {
        let (guard, inverted) = self.guard.unwrap_or((crate::program::TRUE, false));
        let invert = if inverted { u32::MAX } else { 0 };
        self.code.push(Inst { guard, invert, operands, action, line: self.line });
        self.opcodes.push(self.opcode.clone());
    }

    /// Emits a register operation.
    fn alu<K: Kernel>(&mut self, operands: Operands) {
        let run: Alu = self.isa.pick::<K>();
        self.emit(Action::Alu(run), operands);
    }

    fn temporary(&mut self, slots: u32) -> u32 {
        self.slots += slots;
        self.slots - slots
    }

    fn instruction(&mut self, instruction: &Instruction) -> Result<()> {
        let parts = instruction.parts();
        let Modifiers { mnemonic, rest } = Modifiers::of(&parts);
        let modifiers = Modifiers { mnemonic, rest };
        let operands = &instruction.operands[..];
        let handled = self.arithmetic(&modifiers, operands)?
            || self.compare(&modifiers, operands)?
            || self.convert(&modifiers, operands)?
            || self.data(&modifiers, operands)?
            || self.control(&modifiers, operands)?
            || self.memory(&modifiers, operands)?
            || self.warp(&modifiers, operands)?
            || self.transfer(&modifiers, operands)?
            || self.matrix(&modifiers, operands)?;
        if handled { Ok(()) } else { Err("the emulator does not know this instruction".to_string()) }
    }

    fn control(&mut self, modifiers: &Modifiers<'_>, operands: &[Operand]) -> Result<bool> {
        match modifiers.mnemonic {
            "bra" => match operands {
                [Operand::Label(target)] => self.emit(Action::Branch(*target as u32), Operands::default()),
                _ => return Err("a branch needs a label".to_string()),
            },
            "brx" => match operands {
                [index, Operand::Targets(targets)] => {
                    let a = self.narrow(index, Type::U32)?;
                    let targets = targets.iter().map(|&target| target as u32).collect();
                    self.emit(Action::BranchTable(targets), Operands { a, ..Operands::default() });
                }
                _ => return Err("an indexed branch needs a table".to_string()),
            },
            "ret" | "exit" => self.emit(Action::Exit, Operands::default()),
            "trap" => self.emit(Action::Trap, Operands::default()),
            "nanosleep" => self.emit(Action::Yield, Operands::default()),
            "membar" => self.emit(Action::Fence(memory::fence(modifiers)), Operands::default()),
            // A fence between proxies orders nothing between threads, unless it names an ordering.
            "fence" if !modifiers.has("proxy") || modifiers.has("acquire") || modifiers.has("release") => {
                self.emit(Action::Fence(memory::fence(modifiers)), Operands::default());
            }
            "fence" | "griddepcontrol" | "setmaxnreg" | "prefetch" | "prefetchu" | "discard"
            | "applypriority" | "pmevent" | "brkpt" => {
                self.emit(Action::Nop, Operands::default());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(self) -> Program {
        let mut constants: Vec<(u32, Constant)> =
            self.constants.into_iter().map(|(constant, slot)| (slot, constant)).collect();
        constants.sort_unstable_by_key(|&(slot, _)| slot);
        let parameters = &self.function.parameters;
        Program {
            name: self.function.name.clone(),
            code: self.code,
            opcodes: self.opcodes,
            slots: self.slots,
            predicates: self.predicates,
            constants,
            parameter_bytes: parameters.last().map_or(0, |last| last.offset + last.size),
            static_shared: self.static_shared,
            local_bytes: self.local_bytes,
            directives: self.function.directives,
        }
    }
}

/// An opcode's mnemonic and modifiers.
pub(crate) struct Modifiers<'a> {
    mnemonic: &'a str,
    rest: &'a [&'a str],
}

impl<'a> Modifiers<'a> {
    fn of(parts: &'a [&'a str]) -> Self {
        Self { mnemonic: parts[0], rest: &parts[1..] }
    }

    fn has(&self, modifier: &str) -> bool {
        self.rest.contains(&modifier)
    }

    /// The types among the modifiers, in order.
    fn types(&self) -> Vec<Type> {
        self.rest.iter().filter_map(|modifier| Type::parse(modifier)).collect()
    }

    /// The last type, which most instructions compute in.
    fn ty(&self) -> Result<Type> {
        self.types().last().copied().ok_or_else(|| "no type".to_string())
    }

    /// Fails on a modifier that is neither a type nor named.
    fn only(&self, known: &[&str]) -> Result<()> {
        match self.rest.iter().find(|modifier| Type::parse(modifier).is_none() && !known.contains(modifier)) {
            Some(unknown) => Err(format!("modifier `.{unknown}` is not known here")),
            None => Ok(()),
        }
    }
}

/// So many operands, or an error.
fn take<const N: usize>(operands: &[Operand]) -> Result<&[Operand; N]> {
    operands.try_into().map_err(|_| format!("{} operands instead of {N}", operands.len()))
}
