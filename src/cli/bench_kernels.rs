//! `perigee bench kernels`: times of the kernels of a GPU.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::commands::print;
use crate::boot::gpu::Gpu;
use crate::boot::{BootError, chain, open_checkpoint, read_blueprint, tuned_ops};
use crate::config::Settings;
use crate::config::args::BenchKernelsArgs;
use crate::config::device::DeviceConfig;
use perigee_cuda::tuner::{BenchSizes, Bucket, KernelTimes};
use perigee_model::Inventory;
use perigee_ops::Activations;

/// Measures and prints.
pub(super) fn bench_kernels(args: &BenchKernelsArgs, settings: &Settings) -> ExitCode {
    let result = measure(args, settings);
    let text = result.and_then(|(sizes, times)| match args.json {
        true => Ok(serde_json::to_string_pretty(&times)? + "\n"),
        false => Ok(table(&sizes, &times)),
    });
    match text {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("perigee: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &BenchKernelsArgs, settings: &Settings) -> Result<(BenchSizes, KernelTimes), BootError> {
    let sizes = match &settings.model.path {
        Some(_) => sizes_of_checkpoint(settings)?,
        None => BenchSizes::kimi_k2(),
    };
    let gpu = Gpu::find(
        &settings.kernels,
        Activations::Bf16,
        &DeviceConfig { ranks: 1, ..settings.device.clone() },
    )?;
    let rows: Vec<usize> = args.rows.iter().map(|rows| *rows as usize).collect();
    let mut times = gpu.kernel_times(&sizes, &rows, args.context as usize, &mut |time| {
        let variant = time.variant.as_deref().map_or(String::new(), |variant| format!(" by {variant}"));
        eprintln!("{}, {} rows{variant}: {:.1} us", time.op, time.rows, time.micros);
    })?;
    if !args.every_variant {
        times.retain_fastest();
    }
    Ok((sizes, times))
}

fn sizes_of_checkpoint(settings: &Settings) -> Result<BenchSizes, BootError> {
    let checkpoint = open_checkpoint(settings)?;
    let blueprint = read_blueprint(&checkpoint)?;
    let ops = tuned_ops(&Inventory::take(&checkpoint, &blueprint), &blueprint, None, 1, 1);
    Ok(BenchSizes {
        name: checkpoint.source().to_string(),
        mla: Some(blueprint.mla),
        top_k: blueprint.router.top_k,
        products: ops.into_iter().filter(|op| op.rows == Bucket::UpTo8).collect(),
    })
}

/// A line per op and number of rows.
fn table(sizes: &BenchSizes, times: &KernelTimes) -> String {
    let width = times.times.iter().map(|time| time.op.len()).max().unwrap_or(0).max(2);
    let mut text = format!(
        "{}; a copy on the device: {:.0} GB/s\n\n{:width$}  {:>5}  {:<12}  {:>9}  {:>7}  {:>7}  {:>5}\n",
        sizes.name,
        times.copy_bandwidth / 1e9,
        "op",
        "rows",
        "variant",
        "us",
        "GB/s",
        "TFLOP/s",
        "floor",
    );
    for time in &times.times {
        let _ = writeln!(
            text,
            "{:width$}  {:>5}  {:<12}  {:>9.1}  {:>7.0}  {:>7.1}  {:>4.0}%",
            time.op,
            time.rows,
            time.variant.as_deref().unwrap_or("-"),
            time.micros,
            time.bandwidth() / 1e9,
            time.flops() / 1e12,
            100.0 * time.bandwidth() / times.copy_bandwidth,
        );
    }
    text.push_str("\nfloor: the time of its bytes at the speed of the copy, as a share of its own; cuBLASLt: the vendor's library, where it is installed\n");
    for op in &times.left {
        let _ = writeln!(text, "{op}: no room in the device's memory");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_cuda::tuner::KernelTime;

    #[test]
    fn a_line_says_speed_and_share_of_the_floor() {
        let time = KernelTime {
            op: "linear bf16 7168x8192".into(),
            rows: 8,
            variant: Some("split16x8".into()),
            micros: 50.0,
            bytes: 117_440_512,
            flop: 939_524_096,
        };
        let slower = KernelTime { variant: Some("split32x8".into()), micros: 60.0, ..time.clone() };
        let vendors = KernelTime { variant: Some("cuBLASLt".into()), micros: 70.0, ..time.clone() };
        let mut times = KernelTimes {
            copy_bandwidth: 4.0e12,
            times: vec![slower, time.clone(), vendors.clone()],
            left: vec!["attend".into()],
        };
        times.retain_fastest();
        assert_eq!(times.times, [time, vendors]);
        let text = table(&BenchSizes::kimi_k2(), &times);
        let expected = "linear bf16 7168x8192      8  split16x8          50.0     2349     18.8    59%\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.ends_with("attend: no room in the device's memory\n"), "{text}");
    }
}
