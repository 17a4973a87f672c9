//! `perigee kernels`: compiles the kernels into the cache directory, and lists them.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::commands::{EXIT_USAGE, load_settings, print};
use crate::boot::memory_plan::format_bytes;
use crate::config::args::{KernelsBuildArgs, KernelsCommand};
use perigee_cuda::{
    Arch, CacheSettings, Compiler, Config, Installation, KernelCache, Nvrtc, Obtained, Origin, kernels,
};

/// Value of `--arch` for the architectures of this machine's GPUs.
const NATIVE: &str = "native";

/// `perigee kernels ...`.
pub(super) fn kernels(command: &KernelsCommand) -> ExitCode {
    match command {
        KernelsCommand::List => print(&list()),
        KernelsCommand::Build(args) => match load_settings(args) {
            Ok(loaded) => build(args, &loaded.settings.kernels),
            Err(code) => code,
        },
    }
}

fn list() -> String {
    let mut text = String::new();
    for kernel in kernels::ALL {
        let archs: Vec<&str> = kernel.archs.iter().map(|arch| arch.name()).collect();
        let _ = writeln!(text, "{}  {}", kernel.name, archs.join(" "));
        for function in kernel.functions {
            let _ = writeln!(text, "  {function}");
        }
    }
    text
}

fn build(args: &KernelsBuildArgs, config: &Config) -> ExitCode {
    let archs = match archs(&args.arch) {
        Ok(archs) => archs,
        Err(error) => {
            eprintln!("perigee: --arch: {error}");
            return if args.arch == NATIVE { ExitCode::FAILURE } else { ExitCode::from(EXIT_USAGE) };
        }
    };
    let headers = config.cache_dir.join("headers");
    let nvrtc = match Nvrtc::open(config.nvrtc_library.as_deref(), Some(&headers)) {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            eprintln!("perigee: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (major, minor) = nvrtc.version();
    eprintln!("NVRTC {major}.{minor} ({})", nvrtc.path().display());
    let compiler: Arc<dyn Compiler> = Arc::new(nvrtc);
    let settings = CacheSettings {
        dir: Some(config.cache_dir.clone()),
        max_bytes: config.max_cache_bytes,
        create: true,
    };
    let cache = KernelCache::open(&settings, Ok(compiler));
    if let Some(reason) = cache.degraded() {
        eprintln!("perigee: kernels cannot be stored: {reason}");
        return ExitCode::FAILURE;
    }
    let start = Instant::now();
    let jobs = cache.obtain_all(&archs, args.threads as usize, &|before, total, job| {
        eprintln!("{}", progress(before + 1, total, job));
    });
    let printed = print(&table(&jobs, &cache, start.elapsed(), config));
    for error in jobs.iter().filter_map(|job| job.result.as_ref().err()) {
        eprintln!("perigee: {error}");
    }
    if let Some(reason) = cache.degraded() {
        eprintln!("perigee: kernels were not stored: {reason}");
    }
    match jobs.iter().all(|job| job.result.is_ok()) && cache.degraded().is_none() {
        true => printed,
        false => ExitCode::FAILURE,
    }
}

/// Architectures of `--arch`, each once.
fn archs(text: &str) -> Result<Vec<Arch>, String> {
    let mut archs = match text {
        "all" => Arch::ALL.to_vec(),
        NATIVE => {
            let driver = Installation::probe().map_err(|error| error.to_string())?;
            driver
                .devices
                .iter()
                .map(|device| {
                    let (major, minor) = device.capability;
                    device.arch().ok_or_else(|| {
                        format!(
                            "there are no kernels for {} (compute capability {major}.{minor})",
                            device.name
                        )
                    })
                })
                .collect::<Result<_, _>>()?
        }
        list => list.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>()?,
    };
    archs.sort();
    archs.dedup();
    Ok(archs)
}

fn progress(done: usize, total: usize, job: &Obtained) -> String {
    let outcome = match &job.result {
        Ok(binary) if binary.origin == Origin::Disk => "in the cache".to_owned(),
        Ok(_) => format!("compiled in {:.0} ms", job.time.as_secs_f64() * 1e3),
        Err(_) => "failed".to_owned(),
    };
    format!("[{done}/{total}] {} {}: {outcome}", job.kernel.name, job.arch)
}

/// A line per kernel and architecture: the most that any function of it uses.
fn table(jobs: &[Obtained], cache: &KernelCache, time: Duration, config: &Config) -> String {
    let width = jobs.iter().map(|job| job.kernel.name.len()).max().unwrap_or(0).max("kernel".len());
    let mut text = format!(
        "{:width$}  {:<8} {:>9} {:>12} {:>9} {:>7}  origin\n",
        "kernel", "arch", "registers", "shared bytes", "bytes", "ms"
    );
    for job in jobs {
        let _ = write!(text, "{:width$}  {:<8} ", job.kernel.name, job.arch.name());
        let _ = match &job.result {
            Ok(binary) => {
                let most = |of: fn(&perigee_cuda::FunctionUsage) -> u32| {
                    binary.functions.iter().map(of).max().unwrap_or(0)
                };
                let origin = match binary.origin {
                    Origin::Disk => "cache",
                    Origin::Compiled => "compiled",
                };
                writeln!(
                    text,
                    "{:>9} {:>12} {:>9} {:>7.0}  {origin}",
                    most(|usage| usage.registers),
                    most(|usage| usage.shared_bytes),
                    binary.cubin.len(),
                    binary.compile_time.as_secs_f64() * 1e3
                )
            }
            Err(_) => writeln!(text, "{:>9} {:>12} {:>9} {:>7}  failed", "-", "-", "-", "-"),
        };
    }
    let counters = cache.counters();
    let bytes: usize = jobs.iter().filter_map(|job| job.result.as_ref().ok()).map(|b| b.cubin.len()).sum();
    let _ = writeln!(
        text,
        "{} in {}: {} compiled, {} from the cache, {} evicted, in {:.2} s",
        format_bytes(bytes as u64),
        config.cache_dir.display(),
        counters.misses + counters.rebuilt,
        counters.disk_hits,
        counters.evicted,
        time.as_secs_f64()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_a_list_or_all() {
        assert_eq!(archs("all").unwrap(), Arch::ALL);
        assert_eq!(archs("sm_120a, sm_90a,sm_120a").unwrap(), [Arch::Sm90a, Arch::Sm120a]);
        for text in ["", "sm_90", "sm_90a,", "90"] {
            assert!(archs(text).unwrap_err().contains("sm_103a"), "{text}");
        }
    }

    #[test]
    fn the_list_has_every_function() {
        let list = list();
        for kernel in kernels::ALL {
            assert!(kernel.functions.iter().all(|function| list.contains(&format!("  {function}\n"))));
        }
    }
}
