//! Threads that answer, beside threads that compute.

/// Slice of a thread that answers, nanoseconds; those of others are 0.7 to 2.8 ms.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 200_000;
/// `SCHED_FLAG_RESET_ON_FORK`: threads that this one starts have slices of the usual length, and no negative nice value.
#[cfg(target_os = "linux")]
const RESET_ON_FORK: u64 = 1;

/// Asks the system to run this thread soon after it wakes, also while others compute on every processor: with a shorter slice than
/// theirs it interrupts them (EEVDF, Linux 6.12 and later; earlier ones take no notice). Its share of the time stays what it is.
pub(crate) fn prefer_latency() {
    #[cfg(target_os = "linux")]
    set_slice(SLICE_NS);
}

/// The first version of the structure of `sched_getattr(2)`.
#[cfg(target_os = "linux")]
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The attributes of this thread, if the system tells.
#[cfg(target_os = "linux")]
fn attributes() -> Option<Attributes> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>();
    // SAFETY: the system writes at most `size` bytes, which the structure has.
    let code = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (code == 0).then_some(attributes)
}

#[cfg(target_os = "linux")]
fn set_slice(slice_ns: u64) {
    // Of another policy `runtime` means something else, and whoever set that or a negative nice value means it for all threads.
    let ordinary = |now: &Attributes| now.policy == libc::SCHED_OTHER as u32 && now.nice >= 0;
    let Some(mut attributes) = attributes().filter(ordinary) else { return };
    (attributes.runtime, attributes.flags) = (slice_ns, attributes.flags | RESET_ON_FORK);
    // SAFETY: the system reads as many bytes as `size`, which it has just filled in, says. Where it refuses, nothing changes.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_set_where_the_system_has_slices_and_nothing_else_changes() {
        std::thread::spawn(|| {
            let before = attributes().expect("every Linux since 3.14 tells");
            prefer_latency();
            let after = attributes().expect("it still does");
            // Systems before 6.12 have no slices and say 0; sandboxes may refuse.
            assert!([before.runtime, SLICE_NS].contains(&after.runtime), "{}", after.runtime);
            assert_eq!((before.policy, before.nice), (after.policy, after.nice));
            let child = std::thread::spawn(|| attributes().expect("it does").runtime).join().unwrap();
            assert_eq!(child, before.runtime, "the slice is this thread's alone");
        })
        .join()
        .unwrap();
    }
}
