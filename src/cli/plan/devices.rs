//! Devices by name: memory, bandwidth and arithmetic that a good program reaches on them.

use serde::Serialize;

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Device {
    /// Name as on the command line.
    pub name: String,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Reachable bandwidth, bytes per second; `None` for a bare size.
    pub bandwidth: Option<f64>,
    /// Reachable bf16 matrix arithmetic, FLOP per second; `None` for a bare size.
    pub flops: Option<f64>,
    /// What has been measured on such devices beside their limits; `None` = nothing.
    pub measured: Option<&'static str>,
}

/// A number of equal devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceSet {
    /// How many.
    pub count: usize,
    /// Each of them.
    pub device: Device,
}

/// (name, MiB of memory that the driver reports, reachable TB/s, reachable bf16 TFLOP/s). Bandwidth and arithmetic of the H200 are
/// measured, and the bandwidth of the H100; that of the RTX PRO 6000 is of measured copies; the others are some nine tenths of the
/// maker's figure.
const KNOWN: [(&str, u64, f64, f64); 11] = [
    ("rtx-pro-6000", 97_887, 1.5, 400.0),
    ("l40s", 46_068, 0.78, 325.0),
    ("a100", 81_920, 1.8, 280.0),
    ("h20", 97_871, 3.6, 133.0),
    ("h100", 81_559, 2.9, 790.0),
    ("h200", 143_771, 4.3, 790.0),
    ("b200", 183_359, 7.2, 1700.0),
    ("b300", 275_040, 7.2, 1700.0),
    ("gb200", 189_471, 7.2, 1900.0),
    ("gb300", 284_208, 7.2, 1900.0),
    ("mi355x", 294_896, 7.2, 2250.0),
];

/// What has been measured, by device.
const MEASURED: [(&str, &str); 4] = [
    (
        "rtx-pro-6000",
        "published of another engine on 4 of them, Kimi-K2.6 NVFP4 with 192 experts: 71 tokens/s of one sequence with drafts, prompts at 2,070 tokens/s; nothing of this program",
    ),
    (
        "h100",
        "a MoE layer of Kimi K2's shape in NVFP4 took 287 us in a step of one sequence, 59 % of the limit, and 11.4 ms for 2,048 tokens of a prompt",
    ),
    (
        "h200",
        "a MoE layer of Kimi K2's shape in NVFP4 took 208 us in a step of one sequence, 55 % of the limit",
    ),
    ("mi355x", "nothing: this program computes on NVIDIA GPUs and on CPUs"),
];

/// Most devices of a set.
const MAX_COUNT: usize = 1024;

impl DeviceSet {
    /// `4xrtx-pro-6000`, `h200`, `4x96GB`, `2x80GiB`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let (count, name) = match lower.split_once('x') {
            Some((count, name)) if !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()) => {
                (count.parse::<usize>().unwrap_or(usize::MAX), name)
            }
            _ => (1, lower.as_str()),
        };
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(format!("--devices {text:?}: the number must be from 1 to {MAX_COUNT}"));
        }
        if let Some((name, mebibytes, terabytes, teraflops)) = KNOWN.iter().find(|known| known.0 == name) {
            let device = Device {
                name: (*name).into(),
                memory_bytes: mebibytes << 20,
                bandwidth: Some(terabytes * 1e12),
                flops: Some(teraflops * 1e12),
                measured: MEASURED.iter().find(|(known, _)| known == name).map(|(_, text)| *text),
            };
            return Ok(Self { count, device });
        }
        let unit = [("gib", 1u64 << 30), ("gb", 1_000_000_000)].into_iter();
        let size = unit.filter_map(|(unit, bytes)| {
            let number: f64 = name.strip_suffix(unit)?.trim().parse().ok()?;
            (number > 0.0 && number <= 1e6).then_some((number * bytes as f64) as u64)
        });
        match size.into_iter().next() {
            Some(memory_bytes) => {
                let name = name.to_owned();
                Ok(Self {
                    count,
                    device: Device { name, memory_bytes, bandwidth: None, flops: None, measured: None },
                })
            }
            None => {
                let names: Vec<&str> = KNOWN.iter().map(|known| known.0).collect();
                Err(format!(
                    "--devices {text:?} is not known: expected NUMBERxDEVICE with {} or a size such as 96GB",
                    names.join(", ")
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes() {
        let check = |text: &str, count: usize, bytes: u64| {
            let set = DeviceSet::parse(text).unwrap();
            assert_eq!((set.count, set.device.memory_bytes), (count, bytes), "{text}");
        };
        check("4xrtx-pro-6000", 4, 97_887 << 20);
        check("8xH200", 8, 143_771 << 20);
        check("b300", 1, 275_040 << 20);
        check("8xMI355X", 8, 294_896 << 20);
        assert!(DeviceSet::parse("h100").unwrap().device.measured.is_some());
        check("4x96GB", 4, 96_000_000_000);
        check("2x80GiB", 2, 80 << 30);
        check("1.5gb", 1, 1_500_000_000);
        for wrong in [
            "",
            "4x",
            "4xh1000",
            "0xh200",
            "9999xh200",
            "99999999999999999999xh200",
            "4x-1GB",
            "4xNaNGB",
            "4x1e9GB",
            "x",
        ] {
            assert!(DeviceSet::parse(wrong).is_err(), "{wrong}");
        }
    }
}
