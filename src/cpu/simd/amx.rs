//! The matrix unit (AMX BF16): whether it can be used.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::LazyLock;

/// Whether this machine has the unit and the system lets this process use it; asks the system for it, once.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
        /// AMX-BF16 and AMX-TILE in EDX of leaf 7.
        const UNITS: u32 = 1 << 22 | 1 << 24;
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & UNITS == UNITS && ask_for_tiles()
    });
    *AVAILABLE
}

/// Asks Linux to keep tile registers for the threads of this process (Documentation/arch/x86/xstate.rst).
#[cfg(target_os = "linux")]
fn ask_for_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILE_DATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call that takes two integers and touches no memory of ours.
    unsafe {
        asm!("syscall", inout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILE_DATA,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn ask_for_tiles() -> bool {
    false
}
