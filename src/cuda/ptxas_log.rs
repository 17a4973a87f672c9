//! What ptxas prints with `-v`: the resources of each function, and remarks that mean slow code.

use super::FunctionUsage;

/// Remarks by which ptxas reports that it gave an instruction's speed up: C7508 `setmaxnreg` ignored, C7510 and others of this text
/// wgmma serialized.
const SLOW_REMARKS: [&str; 3] = ["C7508", "C7510", "Potential Performance Loss"];

/// Resources of the entry functions in a log, in its order. A function whose log lacks the register count, the shared
/// memory or the stack frame is left out.
pub(super) fn functions(log: &str) -> Vec<FunctionUsage> {
    let mut found = Vec::new();
    let mut current: Option<(FunctionUsage, bool)> = None;
    for line in log.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '").map(|(_, rest)| rest) {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            current = Some((FunctionUsage { name, ..FunctionUsage::default() }, false));
        } else if let Some((usage, has_stack)) = &mut current {
            if let Some(stack) = number_before(line, " bytes stack frame") {
                usage.stack_bytes = stack;
                let spills =
                    (number_before(line, " bytes spill stores"), number_before(line, " bytes spill loads"));
                if let (Some(stores), Some(loads)) = spills {
                    (usage.spill_store_bytes, usage.spill_load_bytes) = (stores, loads);
                    *has_stack = true;
                }
            } else if let Some(registers) = number_before(line, " registers") {
                usage.registers = registers;
                usage.shared_bytes = number_before(line, " bytes smem").unwrap_or(0);
                if *has_stack {
                    found.push(std::mem::take(usage));
                }
                current = None;
            }
        }
    }
    found
}

/// The first line that reports slow code.
pub(super) fn slow_remark(log: &str) -> Option<&str> {
    log.lines().find(|line| SLOW_REMARKS.iter().any(|code| line.contains(code))).map(str::trim)
}

/// The number in `line` that `unit` follows.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let before = &line[..line.find(unit)?];
    let digits = before.len() - before.bytes().rev().take_while(u8::is_ascii_digit).count();
    before[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVRTC 13.5.37 for sm_90a.
    const LOG_13_5: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spilling' for 'sm_90a'
ptxas info    : Function properties for spilling
ptxas         .     400 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 31 registers, used 0 barriers, 400 bytes cumulative stack size
ptxas info    : Compile time = 35.387 ms
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 32 bytes smem, 364 bytes cmem[0]
ptxas info    : Compile time = 1.641 ms
";

    fn usage(name: &str, registers: u32, shared: u32, stack: u32, stores: u32, loads: u32) -> FunctionUsage {
        FunctionUsage {
            name: name.into(),
            registers,
            shared_bytes: shared,
            stack_bytes: stack,
            spill_store_bytes: stores,
            spill_load_bytes: loads,
        }
    }

    #[test]
    fn resources_are_read_per_function() {
        assert_eq!(functions(LOG_13_5), [usage("spilling", 31, 0, 400, 12, 16), usage("k", 10, 32, 0, 0, 0)]);
    }

    #[test]
    fn a_function_with_an_incomplete_log_is_absent() {
        for removed in ["stack frame", "registers"] {
            let lines: Vec<&str> = LOG_13_5.lines().filter(|line| !line.contains(removed)).collect();
            assert_eq!(functions(&lines.join("\n")), [], "{removed}");
        }
        assert_eq!(functions(""), []);
    }

    #[test]
    fn slow_code_is_reported() {
        let serialized =
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized";
        assert_eq!(slow_remark(&format!("{LOG_13_5}{serialized}\n")), Some(serialized));
        assert_eq!(slow_remark(LOG_13_5), None);
    }
}
