//! Architectures that kernels are compiled for.

use std::fmt;
use std::str::FromStr;

/// A compilation target of NVRTC. The suffix `a` allows the instructions of exactly that chip (PTX ISA, section 11.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// A100.
    Sm80,
    /// RTX 30, A40.
    Sm86,
    /// RTX 40, L40S.
    Sm89,
    /// H100, H200.
    Sm90a,
    /// B200.
    Sm100a,
    /// B300.
    Sm103a,
    /// RTX PRO 6000, RTX 50.
    Sm120a,
}

impl Arch {
    /// All of them, oldest first.
    pub const ALL: [Self; 7] =
        [Self::Sm80, Self::Sm86, Self::Sm89, Self::Sm90a, Self::Sm100a, Self::Sm103a, Self::Sm120a];

    /// Name as in `--gpu-architecture`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm86 => "sm_86",
            Self::Sm89 => "sm_89",
            Self::Sm90a => "sm_90a",
            Self::Sm100a => "sm_100a",
            Self::Sm103a => "sm_103a",
            Self::Sm120a => "sm_120a",
        }
    }

    /// Ten times the compute capability, as NVRTC lists what it supports.
    pub const fn number(self) -> i32 {
        match self {
            Self::Sm80 => 80,
            Self::Sm86 => 86,
            Self::Sm89 => 89,
            Self::Sm90a => 90,
            Self::Sm100a => 100,
            Self::Sm103a => 103,
            Self::Sm120a => 120,
        }
    }

    /// Whether kernels wait for the one in front of them (`griddepcontrol`; PTX ISA, sm_90).
    pub const fn has_dependent_launch(self) -> bool {
        self.number() >= 90
    }

    /// Whether tensor cores multiply 4-bit floats with a scale per block (kind `mxf4nvf4` of `mma.sync`, sm_120a, and of `tcgen05.mma`,
    /// sm_100a; PTX ISA).
    pub const fn multiplies_fp4(self) -> bool {
        self.number() >= 100
    }

    /// Whether a thread can bring a range of memory into the second cache (`cp.async.bulk.prefetch`; PTX ISA, sm_90).
    pub const fn fetches_ahead(self) -> bool {
        self.number() >= 90
    }

    /// Most shared memory of a block, static and dynamic, bytes (CUDA C++ Programming Guide, "Technical Specifications per Compute
    /// Capability").
    pub const fn max_shared_bytes(self) -> u32 {
        match self {
            Self::Sm80 => 163 << 10,
            Self::Sm86 | Self::Sm89 | Self::Sm120a => 99 << 10,
            Self::Sm90a | Self::Sm100a | Self::Sm103a => 227 << 10,
        }
    }

    /// The target whose CUBINs run on a device of compute capability `major.minor`. A CUBIN without suffix runs on
    /// later minor versions of its major version; one with suffix on its own version alone.
    pub fn of_capability(major: u32, minor: u32) -> Option<Self> {
        match (major, minor) {
            (8, 0..=5) => Some(Self::Sm80),
            (8, 6..=8) => Some(Self::Sm86),
            (8, 9) => Some(Self::Sm89),
            (9, 0) => Some(Self::Sm90a),
            (10, 0) => Some(Self::Sm100a),
            (10, 3) => Some(Self::Sm103a),
            (12, 0) => Some(Self::Sm120a),
            _ => None,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|arch| arch.name() == text).ok_or_else(|| {
            format!(
                "{text:?} is no architecture of the kernels: expected {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_back() {
        for arch in Arch::ALL {
            assert_eq!(arch.name().parse(), Ok(arch));
            let digits: String = arch.name().chars().filter(char::is_ascii_digit).collect();
            assert_eq!(digits.parse(), Ok(arch.number()));
        }
        assert!("sm_90".parse::<Arch>().unwrap_err().contains("sm_90a"));
    }

    #[test]
    fn capabilities_have_a_target_whose_cubins_run_on_them() {
        for (major, minor, expected) in [
            (7, 5, None),
            (8, 0, Some(Arch::Sm80)),
            (8, 7, Some(Arch::Sm86)),
            (8, 9, Some(Arch::Sm89)),
            (9, 0, Some(Arch::Sm90a)),
            (10, 0, Some(Arch::Sm100a)),
            (10, 3, Some(Arch::Sm103a)),
            (11, 0, None),
            (12, 0, Some(Arch::Sm120a)),
            (12, 1, None),
        ] {
            assert_eq!(Arch::of_capability(major, minor), expected, "{major}.{minor}");
        }
    }
}
