//! Registers to slots: registers that are never alive at the same place of the text share one.
//!
//! Compilers print a new register for nearly every value, thousands in an unrolled loop; a file with a slot for each
//! would not fit in a processor's cache and would take longer to clear than a block runs. Lifetimes are hulls of what
//! dataflow finds alive, in the order of the text (Poletto and Sarkar, "Linear Scan Register Allocation", 1999). Lanes
//! of a warp that are at different places do not meet in a slot, since each has its own word of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::text::{Function, Instruction, Operand, RegisterKind};

/// Where the registers of a function are.
#[derive(Debug)]
pub(super) struct Places {
    /// Slot or predicate index of each register.
    pub(super) of: Vec<u32>,
    /// Slots used.
    pub(super) slots: u32,
    /// Predicates used.
    pub(super) predicates: u32,
}

/// Places behind `slots` and `predicates` that are taken already.
pub(super) fn allocate(function: &Function, slots: u32, predicates: u32) -> Places {
    let lifetimes = match writes_late(function) {
        true => vec![Some((0, usize::MAX)); function.registers.len()],
        false => lifetimes(function),
    };
    let mut order: Vec<usize> =
        (0..lifetimes.len()).filter(|register| lifetimes[*register].is_some()).collect();
    order.sort_by_key(|register| lifetimes[*register]);
    let mut places = Places { of: vec![0; lifetimes.len()], slots, predicates };
    // By kind: free places, and those that end before a place of the text become free.
    let mut free: [Vec<u32>; 4] = Default::default();
    let mut taken: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    for register in order {
        let Some((first, last)) = lifetimes[register] else { continue };
        while let Some(Reverse((end, other))) = taken.peek().copied().filter(|Reverse((end, _))| *end < first)
        {
            taken.pop();
            debug_assert!(end < first);
            free[kind(function, other)].push(places.of[other]);
        }
        let size = [1, 1, 2, 4][kind(function, register)];
        places.of[register] = free[kind(function, register)].pop().unwrap_or_else(|| {
            let next = match function.registers[register].kind {
                RegisterKind::Predicate => &mut places.predicates,
                _ => &mut places.slots,
            };
            *next += size;
            *next - size
        });
        taken.push(Reverse((last, register)));
    }
    places
}

fn kind(function: &Function, register: usize) -> usize {
    match function.registers[register].kind {
        RegisterKind::Predicate => 0,
        RegisterKind::Narrow => 1,
        RegisterKind::Wide => 2,
        RegisterKind::Quad => 3,
    }
}

/// Whether an instruction writes registers after it: their last use in the text is then not their last one.
fn writes_late(function: &Function) -> bool {
    function.code.iter().any(|i| i.opcode.starts_with("wgmma") || i.opcode.starts_with("tcgen05"))
}

/// Mnemonics whose first operand is written and not read. All others are taken to read what they name, which makes
/// lifetimes longer and never wrong.
const WRITES_FIRST: &[&str] = &[
    "abs", "add", "addc", "and", "atom", "bfe", "bfi", "brev", "clz", "cos", "cvt", "cvta", "div", "ex2",
    "fma", "ld", "ldmatrix", "ldu", "lg2", "lop3", "mad", "mad24", "madc", "max", "min", "mma", "mov", "mul",
    "mul24", "neg", "not", "or", "popc", "prmt", "rcp", "redux", "rem", "rsqrt", "sad", "selp", "setp",
    "shf", "shfl", "shl", "shr", "sin", "sqrt", "sub", "subc", "tanh", "vote", "xor",
];

/// Calls `with` for every register of an operand.
fn each(operand: &Operand, with: &mut impl FnMut(usize)) {
    match operand {
        Operand::Register(register) | Operand::Not(register) => with(*register),
        Operand::Vector(list) => list.iter().for_each(|operand| each(operand, with)),
        Operand::Address(base, _) => each(base, with),
        Operand::Tensor(map, list) => {
            each(map, with);
            list.iter().for_each(|operand| each(operand, with));
        }
        Operand::Pair(first, second) => {
            each(first, with);
            each(second, with);
        }
        Operand::Immediate(_)
        | Operand::Special(_)
        | Operand::Symbol(_)
        | Operand::Label(_)
        | Operand::Targets(_)
        | Operand::Sink => {}
    }
}

/// Calls `with` for every register of an instruction; true: written whether or not the guard holds, and not read.
fn registers(instruction: &Instruction, mut with: impl FnMut(usize, bool)) {
    let mnemonic = instruction.opcode.split('.').next().unwrap_or_default();
    let writes = WRITES_FIRST.contains(&mnemonic) && instruction.guard.is_none();
    for operand in instruction.operands.iter().skip(usize::from(writes)) {
        each(operand, &mut |register| with(register, false));
    }
    if let Some((register, _)) = instruction.guard {
        with(register, false);
    }
    if writes && let Some(operand) = instruction.operands.first() {
        each(operand, &mut |register| with(register, true));
    }
}

/// A set of registers.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn add(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn members(&self) -> impl Iterator<Item = usize> {
        let bits = |(word, bits): (usize, &u64)| {
            let bits = *bits;
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| 64 * word + bit)
        };
        self.0.iter().enumerate().flat_map(bits)
    }
}

/// A run of instructions without branches in or out of its inside.
struct Run {
    first: usize,
    /// The last one.
    last: usize,
    next: Vec<usize>,
    /// Read before they are written.
    reads: Set,
    writes: Set,
    alive_in: Set,
}

/// The first and the last instruction at which each register may be alive; `None`: it is not used.
fn lifetimes(function: &Function) -> Vec<Option<(usize, usize)>> {
    let count = function.registers.len();
    let mut runs = runs(function);
    loop {
        let mut changed = false;
        for at in (0..runs.len()).rev() {
            let alive_out = alive_out(&runs, at, count);
            let run = &mut runs[at];
            let words = alive_out.0.iter().zip(&run.writes.0).zip(&run.reads.0);
            let alive_in = Set(words.map(|((out, writes), reads)| reads | out & !writes).collect());
            changed |= alive_in != run.alive_in;
            run.alive_in = alive_in;
        }
        if !changed {
            break;
        }
    }
    let mut lifetimes: Vec<Option<(usize, usize)>> = vec![None; count];
    let mut extend = |register: usize, at: usize| {
        let (first, last) = lifetimes[register].get_or_insert((at, at));
        (*first, *last) = ((*first).min(at), (*last).max(at));
    };
    for (at, run) in runs.iter().enumerate() {
        run.alive_in.members().for_each(|register| extend(register, run.first));
        alive_out(&runs, at, count).members().for_each(|register| extend(register, run.last));
        for index in run.first..=run.last {
            registers(&function.code[index], |register, _| extend(register, index));
        }
    }
    lifetimes
}

fn alive_out(runs: &[Run], at: usize, count: usize) -> Set {
    let mut out = Set::new(count);
    for next in &runs[at].next {
        out.0.iter_mut().zip(&runs[*next].alive_in.0).for_each(|(out, alive)| *out |= alive);
    }
    out
}

fn runs(function: &Function) -> Vec<Run> {
    let code = &function.code;
    let targets = |instruction: &Instruction| -> Vec<usize> {
        let of = |operand: &Operand| match operand {
            Operand::Label(target) => vec![*target],
            Operand::Targets(targets) => targets.clone(),
            _ => Vec::new(),
        };
        instruction.operands.iter().flat_map(of).collect()
    };
    let ends = |instruction: &Instruction| {
        let mnemonic = instruction.opcode.split('.').next().unwrap_or_default();
        matches!(mnemonic, "bra" | "brx" | "ret" | "exit")
    };
    let mut is_first = vec![false; code.len() + 1];
    is_first[0] = true;
    for (index, instruction) in code.iter().enumerate() {
        targets(instruction).into_iter().for_each(|target| is_first[target] = true);
        is_first[index + 1] |= ends(instruction);
    }
    let firsts: Vec<usize> = (0..code.len()).filter(|index| is_first[*index]).collect();
    let run_of = |index: usize| firsts.binary_search(&index).ok();
    let run = |(number, first): (usize, &usize)| {
        let last = firsts.get(number + 1).map_or(code.len(), |next| *next) - 1;
        let end = &code[last];
        let mut next: Vec<usize> = targets(end).into_iter().filter_map(run_of).collect();
        if !ends(end) || end.guard.is_some() {
            next.extend(run_of(last + 1));
        }
        let mut run = Run {
            first: *first,
            last,
            next,
            reads: Set::new(function.registers.len()),
            writes: Set::new(function.registers.len()),
            alive_in: Set::new(function.registers.len()),
        };
        for instruction in &code[*first..=last] {
            registers(instruction, |register, is_written| match is_written {
                true => run.writes.add(register),
                false if !run.writes.has(register) => run.reads.add(register),
                false => {}
            });
        }
        run
    };
    firsts.iter().enumerate().map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    /// Registers of a function whose body is `body`, with their places.
    fn places(body: &str) -> Vec<(String, u32)> {
        let text = format!(
            ".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry f()\n{{\n.reg .b32 %r<9>;\n.reg .pred %p<3>;\n{body}\nret;\n}}\n"
        );
        let module = parse(&text).unwrap();
        let function = module.function("f").unwrap();
        let places = allocate(function, 4, 2);
        function
            .registers
            .iter()
            .zip(places.of)
            .map(|(register, place)| (register.name.clone(), place))
            .collect()
    }

    fn at(places: &[(String, u32)], name: &str) -> u32 {
        places.iter().find(|(other, _)| other == name).unwrap().1
    }

    #[test]
    fn registers_share_a_slot_one_after_the_other() {
        let p = places("mov.u32 %r1, 1;\nadd.u32 %r2, %r1, 1;\nadd.u32 %r3, %r2, 1;\nadd.u32 %r4, %r3, %r3;");
        assert_eq!(at(&p, "%r1"), at(&p, "%r3"));
        assert_ne!(at(&p, "%r1"), at(&p, "%r2"), "the source and the destination of one instruction");
        assert_eq!(at(&p, "%r2"), at(&p, "%r4"));
    }

    #[test]
    fn a_value_that_a_loop_carries_keeps_its_slot_through_it() {
        let p = places(
            "mov.u32 %r1, 0;\nL:\nmov.u32 %r2, 5;\nadd.u32 %r3, %r2, %r1;\nmov.u32 %r4, 7;\nadd.u32 %r5, %r4, 1;\nmov.u32 %r1, %r5;\nsetp.lt.u32 %p1, %r5, 9;\n@%p1 bra L;",
        );
        for other in ["%r2", "%r3", "%r4", "%r5"] {
            assert_ne!(at(&p, "%r1"), at(&p, other), "{other}");
        }
        assert!([at(&p, "%r2"), at(&p, "%r3")].contains(&at(&p, "%r4")));
    }

    #[test]
    fn a_value_written_in_one_iteration_and_read_in_the_next_keeps_its_slot() {
        // %r1 is written under a condition and read behind it: what an earlier iteration wrote counts.
        let p = places(
            "mov.u32 %r6, 0;\nL:\nmov.u32 %r2, 5;\nadd.u32 %r2, %r2, 1;\nsetp.eq.u32 %p1, %r2, 3;\n@%p1 bra M;\nmov.u32 %r1, 4;\nM:\nadd.u32 %r6, %r6, %r1;\nmov.u32 %r3, 3;\nadd.u32 %r6, %r6, %r3;\nsetp.lt.u32 %p2, %r6, 9;\n@%p2 bra L;",
        );
        for other in ["%r2", "%r3", "%r6"] {
            assert_ne!(at(&p, "%r1"), at(&p, other), "{other}");
        }
        let p = places(
            "mov.u32 %r6, 1;\nL:\nmov.u32 %r2, 5;\nadd.u32 %r2, %r2, 1;\nsetp.eq.u32 %p1, %r2, 3;\n@%p1 mov.u32 %r1, 4;\nadd.u32 %r6, %r6, %r1;\nsetp.lt.u32 %p2, %r6, 9;\n@%p2 bra L;",
        );
        assert_ne!(at(&p, "%r1"), at(&p, "%r2"), "a guarded write keeps the other lanes' values");
    }
}
