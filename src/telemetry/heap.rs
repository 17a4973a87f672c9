//! The program's allocator: the system's, with a count of the bytes that each thread has allocated.
//!
//! A thread's count can fall below zero, because a thread may free memory that another one
//! allocated: only differences are meaningful. Requested sizes are counted, so the same work gives
//! the same difference on every run.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes held now, and the most since the last `begin`.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// Bytes allocated and not freed by this thread.
pub fn allocated() -> isize {
    HELD.get().0
}

/// Restarts the maximum of this thread; returns the bytes held now.
pub fn begin() -> isize {
    let now = allocated();
    HELD.set((now, now));
    now
}

/// The most bytes that this thread has held since the last `begin`.
pub fn most() -> isize {
    HELD.get().1
}

/// Size from which a block is mapped on its own and unmapped when freed, bytes. Larger: fewer page
/// faults, more memory that stays after a large request.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MMAP_THRESHOLD_BYTES: libc::c_int = 1 << 20;
/// Free memory at the end of a heap from which the heap is trimmed, bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_THRESHOLD_BYTES: libc::c_int = 2 << 20;

/// Fixes the sizes from which freed memory returns to the system. glibc raises both by itself with
/// each large block that is freed, to 32 MiB and more: request bodies and the memory of
/// compilations would then stay in its heaps for good.
pub fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes and returns integers; sets parameters of the allocator, which any thread may do at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
    }
}

/// Returns the pages of freed memory of all threads to the system. Takes milliseconds if much is
/// free.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes no pointer, and glibc allows it at any time on any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

struct Counting;

fn count(change: isize) {
    // A thread that is ending has no counter left, and no later call reads it.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        let now = now.wrapping_add(change);
        held.set((now, most.max(now)));
    });
}

// SAFETY: every method hands its arguments to `System` and returns its answer; counting allocates
// nothing (the counter is initialised at compile time and has no destructor) and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's guarantees are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_holds_is_counted_to_the_byte() {
        let before = begin();
        let mut held: Vec<u8> = Vec::with_capacity(1000);
        assert_eq!(allocated() - before, 1000);
        held.reserve_exact(5000);
        assert_eq!(allocated() - before, held.capacity() as isize);
        let zeroed = vec![0u64; 100];
        assert_eq!(allocated() - before, held.capacity() as isize + 800);
        drop((held, zeroed));
        assert_eq!(allocated(), before);
        assert!(most() - before >= 5800, "{}", most() - before);
    }
}
