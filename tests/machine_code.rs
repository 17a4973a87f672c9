//! Machine code of Hopper as nvdisasm prints it: whether operands of products that run are left alone.
//!
//! A product of `wgmma` with A in registers reads them after it was issued, until a wait for its group (PTX ISA, wgmma.mma_async,
//! "accessing the registers ... is undefined"). The compiler orders writes behind that wait, or says in a remark that it could not
//! (`src/cuda/ptxas_log.rs`); this reads what it made.

use std::collections::{BTreeMap, BTreeSet};

/// Registers that products read, by group: the one that is open, then those that were begun, the last one first.
type Running = Vec<BTreeSet<u16>>;

/// Groups that are told apart, the open one included: those of a loop without a wait have no number.
const MOST_GROUPS: usize = 6;

/// An instruction: its guard, and the rest of the line.
struct Instruction<'a> {
    guarded: bool,
    mnemonic: &'a str,
    operands: Vec<&'a str>,
    line: &'a str,
}

/// Instructions of one function, and the places of its labels.
#[derive(Default)]
struct Function<'a> {
    instructions: Vec<Instruction<'a>>,
    labels: BTreeMap<&'a str, usize>,
}

/// Lines that write a register while a product may still read it.
pub(crate) fn overwritten_operands(code: &str) -> Vec<String> {
    functions(code).iter().flat_map(overwritten).collect()
}

fn functions(code: &str) -> Vec<Function<'_>> {
    let mut functions = vec![Function::default()];
    for line in code.lines().map(str::trim) {
        if line.starts_with(".section") {
            functions.push(Function::default());
        }
        let Some(function) = functions.last_mut() else { continue };
        if let Some(label) = line.strip_suffix(':') {
            function.labels.insert(label, function.instructions.len());
        } else if let Some(instruction) = Instruction::parse(line) {
            function.instructions.push(instruction);
        }
    }
    functions
}

impl<'a> Instruction<'a> {
    /// `/*0a10*/ @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;`
    fn parse(line: &'a str) -> Option<Self> {
        let text = line.strip_prefix("/*")?.split_once("*/")?.1.split(';').next()?.trim();
        let (guarded, text) = match text.strip_prefix('@') {
            Some(rest) => (true, rest.split_once(' ')?.1.trim()),
            None => (false, text),
        };
        let (mnemonic, operands) = text.split_once(' ').unwrap_or((text, ""));
        let operands = operands.split(',').map(str::trim).filter(|operand| !operand.is_empty()).collect();
        Some(Self { guarded, mnemonic, operands, line })
    }

    fn is_product(&self) -> bool {
        self.mnemonic.starts_with("HGMMA")
    }

    /// First register that is written, and the number of those.
    fn written(&self) -> Option<(u16, u16)> {
        if self.mnemonic.contains("SETP") || self.mnemonic.starts_with("ST") {
            return None;
        }
        // A predicate may be written too, and stands in front.
        let is_predicate = |operand: &&&str| operand.starts_with('P');
        let first = register(self.operands.iter().find(|operand| !is_predicate(operand))?)?;
        let part = |name: &str| self.mnemonic.split('.').any(|part| part == name);
        let count = match self.mnemonic.split('.').next() {
            // 64 rows by N columns in f32, of 128 threads.
            Some("HGMMA") => {
                let columns = self.mnemonic.split('x').nth(1).and_then(|columns| columns.parse::<u16>().ok());
                columns.map_or(128, |columns| columns / 2)
            }
            Some("LDSM") if part("4") => 4,
            _ if part("128") => 4,
            _ if part("64") || part("WIDE") || self.mnemonic.starts_with('D') => 2,
            _ => 1,
        };
        Some((first, count))
    }
}

/// The number of a register; `None` of RZ and of everything else.
fn register(operand: &str) -> Option<u16> {
    operand.strip_prefix('R')?.split('.').next()?.parse().ok()
}

fn overwritten(function: &Function<'_>) -> Vec<String> {
    let code = &function.instructions;
    let mut found = BTreeSet::new();
    let mut before: Vec<Option<Running>> = vec![None; code.len() + 1];
    let mut next = vec![(0, Running::new())];
    while let Some((at, arriving)) = next.pop() {
        let grew = match &mut before[at] {
            Some(known) => merge(known, &arriving),
            unknown => {
                *unknown = Some(arriving);
                true
            }
        };
        let (true, Some(instruction), Some(known)) = (grew, code.get(at), &before[at]) else { continue };
        let mut running = known.clone();
        if let Some((first, count)) = instruction.written() {
            let writes = |registers: &BTreeSet<u16>| registers.range(first..first + count).next().is_some();
            if running.iter().any(writes) {
                found.insert(format!("{at}: {}", instruction.line));
            }
        }
        step(instruction, &mut running);
        let branches =
            ["BRA", "BRX", "EXIT", "RET"].iter().any(|name| instruction.mnemonic.starts_with(name));
        if branches {
            let target = |operand: &&str| {
                let label = operand.trim_start_matches("`(").trim_end_matches(')');
                function.labels.get(label).copied()
            };
            let targets = instruction.operands.iter().filter_map(target);
            next.extend(targets.map(|target| (target, running.clone())));
        }
        if !branches || instruction.guarded {
            next.push((at + 1, running));
        }
    }
    found.into_iter().collect()
}

/// What runs behind an instruction.
fn step(instruction: &Instruction<'_>, running: &mut Running) {
    if instruction.is_product() {
        if running.is_empty() {
            running.push(BTreeSet::new());
        }
        // D, A, B: a register, or a descriptor of shared memory.
        if let Some(a) = instruction.operands.get(1).and_then(|operand| register(operand)) {
            running[0].extend(a..a + 4);
        }
        if instruction.operands.contains(&"gsb0") {
            running.insert(0, BTreeSet::new());
            for oldest in running.split_off(running.len().min(MOST_GROUPS)) {
                running[MOST_GROUPS - 1].extend(oldest);
            }
        }
    } else if instruction.mnemonic == "WARPGROUP.DEPBAR.LE" {
        let left: usize = instruction.operands.get(1).and_then(|left| parse_hex(left)).unwrap_or(0);
        running.truncate(1 + left);
    }
}

fn parse_hex(text: &str) -> Option<usize> {
    usize::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Adds what may run on another way to the same place; whether that was more.
fn merge(known: &mut Running, other: &Running) -> bool {
    let mut grew = false;
    for (group, registers) in other.iter().enumerate() {
        if known.len() == group {
            known.push(BTreeSet::new());
            grew = true;
        }
        let before = known[group].len();
        known[group].extend(registers);
        grew |= known[group].len() > before;
    }
    grew
}

#[test]
fn a_write_to_an_operand_of_a_running_product_is_found() {
    let check = |body: &str, expected: &[&str]| {
        let lines = body.lines().map(|line| match line.ends_with(':') {
            true => line.to_owned(),
            false => format!("        /*0000*/ {line} ;"),
        });
        let code = [".section .text.f".to_owned()].into_iter().chain(lines).collect::<Vec<_>>().join("\n");
        let found = overwritten_operands(&code);
        assert_eq!(found.len(), expected.len(), "{body}: {found:?}");
        assert!(found.iter().zip(expected).all(|(found, expected)| found.contains(expected)), "{found:?}");
    };
    const PRODUCT: &str = "HGMMA.64x64x16.F32.BF16 R24, R164, gdesc[UR12], R24, gsb0";
    // Behind the wait, in front of the product, and beside its registers.
    check(
        &format!("MOV R164, R1\n{PRODUCT}\nMOV R168, R1\nWARPGROUP.DEPBAR.LE gsb0, 0x0\nMOV R165, R1\nEXIT"),
        &[],
    );
    // While it runs: alone, as the second of two registers, as the last of four.
    check(&format!("{PRODUCT}\nMOV R165, R1\nEXIT"), &["MOV R165"]);
    check(&format!("{PRODUCT}\nIMAD.WIDE.U32 R163, R1, 0x10, R2\nEXIT"), &["IMAD.WIDE"]);
    check(&format!("{PRODUCT}\n@P0 LDG.E.128.CONSTANT R161, desc[UR12][R2.64]\nEXIT"), &["LDG"]);
    check(&format!("{PRODUCT}\nLOP3.LUT P0, R167, R0, 0x1f, RZ, 0xc0, !PT\nEXIT"), &["LOP3"]);
    // What reads a register, or writes a predicate by it, leaves it alone.
    check(&format!("{PRODUCT}\nISETP.NE.AND P0, PT, R164, R165, PT\nSTS.128 [R164], R164\nEXIT"), &[]);
    // A wait that leaves one group: the product before the last one has ended.
    let second = PRODUCT.replace("R164", "R172");
    check(&format!("{PRODUCT}\n{second}\nWARPGROUP.DEPBAR.LE gsb0, 0x1\nMOV R164, R1\nEXIT"), &[]);
    check(&format!("{PRODUCT}\n{second}\nWARPGROUP.DEPBAR.LE gsb0, 0x1\nMOV R173, R1\nEXIT"), &["MOV R173"]);
    // On the way back of a loop, and on one of two ways.
    check(&format!(".L_1:\nMOV R166, R1\n{PRODUCT}\n@P0 BRA `(.L_1)\nEXIT"), &["MOV R166"]);
    check(
        &format!("{PRODUCT}\n@P0 BRA `(.L_1)\nWARPGROUP.DEPBAR.LE gsb0, 0x0\n.L_1:\nMOV R166, R1\nEXIT"),
        &["MOV R166"],
    );
    // Products whose A is in shared memory read no registers but their sums.
    check("HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, gsb0\nMOV R164, R1\nEXIT", &[]);
}
