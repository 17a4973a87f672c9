//! The processors beside a GPU: those of the memory node that its PCI slot belongs to.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Devices of the PCI bus, each with the file `local_cpulist` (Linux, Documentation/ABI/testing/sysfs-bus-pci).
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Processors beside a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores(Vec<RangeInclusive<usize>>);

impl Cores {
    /// Processors beside the device at this PCI address; `None`: the system does not tell, as in some virtual machines.
    pub fn beside(pci_bus_id: &str) -> Option<Self> {
        let folder = Path::new(PCI_DEVICES).join(pci_bus_id.to_ascii_lowercase());
        Self::parse(&fs::read_to_string(folder.join("local_cpulist")).ok()?)
    }

    /// A list such as `0-31,64-95`; `None` for an empty one and for anything else.
    fn parse(text: &str) -> Option<Self> {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let range = first.parse().ok()?..=last.parse().ok()?;
            (!range.is_empty() && *range.end() < CpuSet::MAX_CPU).then_some(range)
        };
        text.trim().split(',').map(range).collect::<Option<_>>().map(Self)
    }

    /// Keeps the calling thread, and those that it starts, on these processors as far as the process has them. Returns whether it has any:
    /// a thread without one of them stays where it is.
    pub fn stay(&self) -> bool {
        let allowed = sched_getaffinity(None).ok();
        let cores = allowed.and_then(|allowed| self.of(&allowed));
        cores.is_some_and(|cores| sched_setaffinity(None, &cores).is_ok())
    }

    /// These of the allowed processors; `None`: there are none.
    fn of(&self, allowed: &CpuSet) -> Option<CpuSet> {
        let mut cores = CpuSet::new();
        for core in self.0.iter().cloned().flatten().filter(|core| allowed.is_set(*core)) {
            cores.set(core);
        }
        (cores.count() > 0).then_some(cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_system_are_read() {
        assert_eq!(Cores::parse("0-3,8,10-11\n"), Some(Cores(vec![0..=3, 8..=8, 10..=11])));
        for text in ["", "\n", "a", "1-", "3-1", "0-99999999", "1;2"] {
            assert_eq!(Cores::parse(text), None, "{text:?}");
        }
        assert_eq!(Cores::beside("ffff:ff:1f.7"), None);
    }

    #[test]
    fn a_thread_keeps_to_what_the_process_has() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let own = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
            let foreign = (0..CpuSet::MAX_CPU).find(|core| !allowed.is_set(*core)).unwrap();
            assert!(!Cores(vec![foreign..=foreign]).stay());
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
            assert!(Cores(vec![own..=own, foreign..=foreign]).stay());
            let kept = sched_getaffinity(None).unwrap();
            assert!(kept.count() == 1 && kept.is_set(own));
        })
        .join()
        .unwrap();
    }
}
