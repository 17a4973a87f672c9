//! The C library's heap: what large requests leave behind is given back to the system.

/// Blocks from this size on are mapped on their own and unmapped when they are freed, bytes.
/// Larger: fewer page faults, more memory that stays after a large request.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD_BYTES: libc::c_int = 1 << 20;

/// Fixes the size from which blocks are mapped on their own. glibc raises it by itself, to 32 MiB,
/// with each such block that is freed: request bodies and their texts would then lie in arenas, and
/// stay there for good.
pub(super) fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes and returns integers; sets a parameter of the allocator, which any thread may
    // do at any time.
    let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) } == 1;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if !set {
        tracing::warn!(
            "the allocator refused M_MMAP_THRESHOLD: memory of large requests stays in its arenas"
        );
    }
}
