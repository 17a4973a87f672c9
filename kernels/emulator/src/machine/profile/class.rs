//! Classes of instructions by opcode.

use crate::lower::Type;

/// What an instruction is for. Accesses carry the bytes of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// `mma`, `wgmma.mma_async`, `tcgen05.mma`.
    Mma,
    /// `ldmatrix`.
    LdMatrix,
    /// `stmatrix`.
    StMatrix,
    /// `ld.global`.
    LoadGlobal(u32),
    /// `st.global`.
    StoreGlobal(u32),
    /// `ld.shared`.
    LoadShared(u32),
    /// `st.shared`, `st.async`.
    StoreShared(u32),
    /// `ld` from local, parameter, constant or generic addresses.
    LoadOther(u32),
    /// `st` to local or generic addresses.
    StoreOther(u32),
    /// `atom`, `red`.
    Atomic,
    /// `cp.async`.
    CopyAsync,
    /// `cp.async.bulk`, `cp.reduce.async.bulk`.
    BulkCopy,
    /// Commits of copies and products, and waits for them.
    CopyControl,
    /// `tcgen05` apart from products.
    TensorMemory,
    /// `bar`, `barrier`, `mbarrier`, `fence`, `membar`.
    Synchronize,
    /// `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`, `bar.warp.sync`, `movmatrix`.
    Warp,
    /// Arithmetic and comparisons of floats.
    Float,
    /// Arithmetic, comparisons and logic of integers, bits and predicates.
    Integer,
    /// `cvt`.
    Convert,
    /// `mov`, `cvta`, `mapa`.
    Move,
    /// `bra`, `brx`, `ret`, `exit`, `trap`.
    Control,
    /// `prefetch`, `createpolicy`, `griddepcontrol`, `setmaxnreg` and other hints.
    Hint,
}

impl Class {
    /// The class of an opcode with its modifiers.
    pub fn of(opcode: &str) -> Self {
        let mut parts = opcode.split('.');
        let mnemonic = parts.next().unwrap_or("");
        let rest: Vec<&str> = parts.collect();
        let has = |modifier: &str| rest.contains(&modifier);
        let bytes = || {
            let element = rest.iter().rev().find_map(|name| Type::parse(name)).map_or(0, Type::bytes);
            let elements = rest.iter().find_map(|name| name.strip_prefix('v')?.parse::<u32>().ok());
            element * elements.unwrap_or(1)
        };
        let shared = rest.iter().any(|name| name.starts_with("shared"));
        let waits = has("commit_group") || has("wait_group") || has("wait_all") || has("mbarrier");
        match mnemonic {
            "mma" => Self::Mma,
            "wgmma" if has("mma_async") => Self::Mma,
            "wgmma" => Self::CopyControl,
            "tcgen05" if has("mma") => Self::Mma,
            "tcgen05" => Self::TensorMemory,
            "ldmatrix" => Self::LdMatrix,
            "stmatrix" => Self::StMatrix,
            "ld" | "ldu" if has("global") => Self::LoadGlobal(bytes()),
            "ld" if shared => Self::LoadShared(bytes()),
            "ld" => Self::LoadOther(bytes()),
            "st" if has("global") => Self::StoreGlobal(bytes()),
            "st" if shared => Self::StoreShared(bytes()),
            "st" => Self::StoreOther(bytes()),
            "atom" | "red" => Self::Atomic,
            "cp" if has("prefetch") => Self::Hint,
            "cp" if waits && !has("global") => Self::CopyControl,
            "cp" if has("bulk") => Self::BulkCopy,
            "cp" => Self::CopyAsync,
            "bar" if has("warp") => Self::Warp,
            "bar" | "barrier" | "mbarrier" | "fence" | "membar" => Self::Synchronize,
            "shfl" | "vote" | "match" | "redux" | "elect" | "activemask" | "movmatrix" => Self::Warp,
            "cvt" => Self::Convert,
            "mov" | "cvta" | "mapa" | "getctarank" => Self::Move,
            "bra" | "brx" | "ret" | "exit" | "trap" | "call" => Self::Control,
            "prefetch" | "prefetchu" | "createpolicy" | "griddepcontrol" | "setmaxnreg" | "nanosleep"
            | "discard" | "applypriority" | "pmevent" | "brkpt" | "tensormap" => Self::Hint,
            _ => {
                let float = |name: &str| name.starts_with('f') || name.starts_with("bf");
                let is_type = |name: &&&str| Type::parse(name).is_some();
                match rest.iter().rev().find(is_type) {
                    Some(name) if float(name) => Self::Float,
                    _ => Self::Integer,
                }
            }
        }
    }
}
