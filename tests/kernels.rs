//! Kernels through a real NVRTC where there is one, and the probe against made-up drivers.
//!
//! `scripts/nvrtc` installs NVRTC. Without it these tests print that they were skipped; with REQUIRE_NVRTC in the
//! environment they fail instead.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use perigee_cuda::kernels::{self, rms_norm};
use perigee_cuda::{
    Arch, CacheSettings, CompileError, Compiled, Compiler, Kernel, KernelCache, Limits, Nvrtc, Origin,
    Program,
};

use crate::emulated;
use crate::machine_code::overwritten_operands;

/// The library, or `None` where the test is skipped.
pub(crate) fn nvrtc(headers: Option<&Path>) -> Option<Nvrtc> {
    match Nvrtc::open(None, headers) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            assert!(env::var_os("REQUIRE_NVRTC").is_none(), "REQUIRE_NVRTC is set, and {error}");
            println!("skipped: {error}");
            None
        }
    }
}

fn compile(nvrtc: &Nvrtc, text: &str, function: &str) -> Result<Compiled, CompileError> {
    let mut program = Program::new(&rms_norm::KERNEL, Arch::Sm90a).unwrap();
    program.text = text.into();
    program.functions = vec![function.into()];
    program.cuda_headers = text.contains("<cuda_");
    nvrtc.compile(&program)
}

/// A test for each architecture but sm_100a, so that they share the cores. The kernels of that one are compiled by the program itself. An
/// architecture whose code is that of a tested one but for the numbers of registers is left to a change of kernels: `--run-ignored all`.
macro_rules! every_kernel_compiles {
    ($($(#[$attribute:meta])* $test:ident $arch:ident)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $test() {
            every_kernel_compiles_within_its_limits(Arch::$arch);
        }
    )*};
}

every_kernel_compiles! {
    every_kernel_compiles_for_sm_80 Sm80
    #[ignore = "a minute, and sm_80 is compiled"]
    every_kernel_compiles_for_sm_86 Sm86
    #[ignore = "a minute, and sm_80 is compiled"]
    every_kernel_compiles_for_sm_89 Sm89
    every_kernel_compiles_for_sm_90a Sm90a
    #[ignore = "a minute, and the program compiles them"]
    every_kernel_compiles_for_sm_100a Sm100a
    #[ignore = "a minute, and sm_100a is compiled"]
    every_kernel_compiles_for_sm_103a Sm103a
    every_kernel_compiles_for_sm_120a Sm120a
}

fn every_kernel_compiles_within_its_limits(arch: Arch) {
    assert_eq!(Arch::ALL.len(), 7, "every architecture has a test");
    let Some(compilations) = emulated::compilations() else { return };
    let dir = tempfile::tempdir().unwrap();
    for kernel in kernels::ALL.iter().filter(|kernel| kernel.archs.contains(&arch)) {
        let program = Program::new(kernel, arch).unwrap();
        let compiled = compilations.code(&program).unwrap_or_else(|error| panic!("{error}"));
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{}", kernel.name);
        assert!(compiled.ptx.contains(&format!(".target {arch}")), "{}", kernel.name);
        for function in kernel.functions {
            check_beginning(function, arch, &compiled.ptx);
        }
        if arch == Arch::Sm90a && kernel.name == kernels::route::KERNEL.name {
            let again = nvrtc(None).unwrap().compile(&program).unwrap();
            assert!(again.cubin == compiled.cubin, "{}: two compilations differ", kernel.name);
        }
        println!("{} {arch}: {} bytes", kernel.name, compiled.cubin.len());
        check_machine_code(kernel, arch, &compiled.cubin, dir.path());
    }
}

/// A kernel that may begin before the one in front of it has ended touches no memory but its parameters until that one has: the wait
/// comes first on every way, whatever the compiler moved.
fn check_beginning(function: &str, arch: Arch, ptx: &str) {
    let body = ptx.split(&format!(".entry {function}(")).nth(1).and_then(|rest| rest.split("\n}").next());
    let body = body.unwrap_or_else(|| panic!("{function} is not in the PTX"));
    let wait = body.split_once("griddepcontrol.wait;");
    if !arch.has_dependent_launch() {
        assert!(wait.is_none(), "{function} {arch} waits");
        return;
    }
    let (before, _) = wait.unwrap_or_else(|| panic!("{function} {arch} does not wait"));
    let arithmetic = [
        "mov.", "cvta.", "cvt.", "add.", "sub.", "mul.", "mad.", "shl.", "shr.", "and.", "or.", "not.",
        "setp.", "selp.", "min.", "max.",
    ];
    for line in before.lines().map(str::trim).filter(|line| !["", "{", "(", ")"].contains(line)) {
        let declares = line.starts_with('.') || line.starts_with("//");
        // Which products load weights early, and which blocks are the router's, is decided first.
        let parts = function.contains("_split")
            || function.contains("_wide")
            || function.starts_with("route_swiglu")
            || function.starts_with("tiled_latent");
        let decides = parts && (line.contains("bra") || line.starts_with("$L"));
        let harmless = declares
            || decides
            || line.starts_with("ld.param")
            || arithmetic.iter().any(|operation| line.starts_with(operation));
        assert!(harmless, "{function} {arch}: `{line}` comes before the wait");
    }
    // Every wait is followed by the trigger at once, and no trigger comes without it: `begin_kernel` says what depends on this order.
    let lines = body.lines().map(str::trim);
    let code: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("//")).collect();
    const PAIR: [&str; 2] = ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;"];
    let count = |line: &str| code.iter().filter(|other| **other == line).count();
    let pairs = code.windows(2).filter(|lines| *lines == PAIR).count();
    assert!(pairs > 0 && PAIR.map(count) == [pairs; 2], "{function} {arch}: the order of wait and trigger");
}

/// No local memory; loads and stores of 16 bytes, and tensor cores, where they belong.
fn check_machine_code(kernel: &Kernel, arch: Arch, cubin: &[u8], dir: &Path) {
    let Some(code) = machine_code(dir, cubin) else {
        println!("machine code not looked at: nvdisasm is not installed");
        return;
    };
    let lines = |mnemonic: &str| code.lines().filter(|line| line.contains(mnemonic)).count();
    assert_eq!((lines(" LDL"), lines(" STL")), (0, 0), "{} {arch}", kernel.name);
    let overwritten = overwritten_operands(&code);
    assert!(
        overwritten.is_empty(),
        "{} {arch}: operands of running products are written: {overwritten:?}",
        kernel.name
    );
    let functions = kernel.functions.len();
    if arch.has_dependent_launch() {
        assert!(lines(" ACQBULK") >= functions && lines(" PREEXIT") >= functions, "{} {arch}", kernel.name);
    }
    if kernel.name == kernels::wgmma_mla_prefill::KERNEL.name {
        assert!(lines(" HGMMA.64x64x16.F32.BF16") >= 12 * functions, "{arch}");
        assert!(lines(" HGMMA.64x128x16.F32.BF16") >= 4 * functions, "{arch}");
    } else if [kernels::wgmma_linear::KERNEL.name, kernels::wgmma_swiglu::KERNEL.name].contains(&kernel.name)
    {
        // Of every function, for two or three numbers of rows: two tiles of a warp by eight steps, and copies of 4 bytes of both panels.
        for (rows, columns) in
            [("_32x64", &[32, 48, 64][..]), ("_cluster32x64", &[32, 64]), ("_32x128", &[64, 96, 128])]
        {
            let functions = kernel.functions.iter().filter(|name| name.ends_with(rows)).count();
            for columns in columns {
                let mnemonic = format!(" HGMMA.64x{columns}x16.F32.BF16");
                assert!(functions > 0 && lines(&mnemonic) >= 16 * functions, "{} {arch}", kernel.name);
            }
        }
        // Panels come by bulk copies, to all blocks of a cluster.
        assert!(lines(" LDGSTS.E") >= 2 * 2 * 4 * (functions - 1), "{} {arch}", kernel.name);
        assert!(lines(" UBLKCP") >= 1, "{} {arch}", kernel.name);
        assert!(lines(" UCGABAR_WAIT") >= 2 * 4, "{} {arch}", kernel.name);
        assert!(lines(" USETMAXREG") >= 2 * functions, "{} {arch}", kernel.name);
    } else if kernel.name == kernels::wgmma_mla_expand::KERNEL.name {
        // A panel of 64 values of C.
        assert!(lines(" HGMMA.64x256x16.F32.BF16") >= 4, "{arch}");
    } else if kernel.name == kernels::row_panels::KERNEL.name {
        // Eight chunks of a thread, of four pairs of inputs each.
        assert!(lines(" STG.E.128") >= 8 && lines(" LDG.E") >= 8 * 4, "{arch}");
    } else if kernel.name == kernels::wgmma_mla_absorb::KERNEL.name {
        // Eight steps of three terms; the weights of a warp's columns; a cluster meets twice where heads are scaled.
        assert!(lines(" HMMA.16816.F32.BF16") >= 8 * 3 * functions, "{arch}");
        assert!(lines(" LDSM.16.MT88.4") >= 8 * functions && lines(" UCGABAR_WAIT") >= 2, "{arch}");
    } else if kernel.name.starts_with("wgmma_") {
        // Scores of 9 panels by 4 steps, the last panel in bf16 whatever the others are, and values of two times 128 columns by 4
        // steps.
        assert!(lines(" HGMMA.64x64x16.F32") >= 36 * functions, "{} {arch}", kernel.name);
        assert!(lines(" HGMMA.64x64x16.F32.BF16") >= 36 + 4 * (functions - 1), "{} {arch}", kernel.name);
        assert!(lines(" HGMMA.64x128x16.F32") >= 8 * functions, "{} {arch}", kernel.name);
        // A lane's codes of 16 keys, two in an instruction.
        assert!(lines(" F2FP.F16.E4M3.UNPACK_B") >= 128 * (functions - 1), "{} {arch}", kernel.name);
        assert!(lines(" USETMAXREG") >= 3 * functions, "{} {arch}", kernel.name);
    } else if kernel.name == kernels::tiled_mla_absorb::KERNEL.name {
        // Eight steps of three terms; the weights of a warp's columns.
        assert!(lines(" HMMA.16816.F32.BF16") >= 8 * 3 && lines(" LDSM.16.MT88.4") >= 8, "{arch}");
    } else if kernel.name == kernels::tiled_mla_combine::KERNEL.name {
        // Two halves of three terms; weights and terms of eight columns of a lane.
        assert!(lines(" HMMA.16816.F32.BF16") >= 2 * 3 * functions, "{arch}");
        assert!(lines(" LDG.E.128") >= 2 * functions && lines(" LDS.128") >= 3 * functions, "{arch}");
    } else if kernel.name.starts_with("tiled_mla_") {
        // Of every function of decode with 16 heads: scores of two times eight keys, values of 64 columns and 32 keys.
        // Prefill has more in two functions.
        assert!(lines(" HMMA.16816.F32.BF16") >= (2 * 9 + 8 * 2) * functions, "{} {arch}", kernel.name);
        assert!(lines(" LDSM.16.M") >= 8 * functions, "{} {arch}", kernel.name);
    } else if kernel.name.starts_with("tiled_") {
        // Of every function: a step of a unit, and the loads of a lane's codes.
        assert!(lines(" HMMA.16816.F32.BF16") >= 8 * functions, "{} {arch}", kernel.name);
        assert!(lines(" LDG.E.EF.128") >= 2 * functions, "{} {arch}", kernel.name);
        // Of every function for prompts: rows of eight, six and four operands of each of four pairs of steps, or of six alone, and
        // their copies.
        let blocks = |rows: &str| kernel.functions.iter().filter(|name| name.ends_with(rows)).count();
        let (many, some) = (blocks("_block32x64"), blocks("_block32x48"));
        let is_of_few = ["tiled_latent", "tiled_down"].contains(&kernel.name);
        assert_eq!((many > 0, some > 0), (!is_of_few, !is_of_few), "{}", kernel.name);
        assert!(lines(" LDS.128") >= 4 * ((8 + 6 + 4) * many + 6 * some), "{} {arch}", kernel.name);
        assert!(lines(" LDGSTS.E.BYPASS.128") >= (4 + 3 + 2) * many + 3 * some, "{} {arch}", kernel.name);
    }
    if kernel.name == kernels::fp8_mla_decode::KERNEL.name {
        // Two groups of heads and two terms: scores of four eights of keys by four steps, values of sixteen eights of columns; rope keys of four
        // eights, in codes or in bf16. Matrices of scores, of rope keys and of probabilities, and of values, transposed. No code is decoded.
        assert_eq!(lines(" QMMA.16832.F32.E4M3.E4M3"), (4 * 4 + 16) * 4 * functions + 4 * 2, "{arch}");
        assert_eq!(lines(" HMMA.16816.F32.BF16"), 4 * 2, "{arch}");
        assert_eq!(lines(" LDSM.16.M88.4"), (4 * 2 + 2 + 4) * functions, "{arch}");
        assert_eq!(lines(" LDSM.8.MT1616.2"), 8 * functions, "{arch}");
        assert!(lines(" UBLKCP") >= functions && lines(" UCGABAR_WAIT") >= functions, "{arch}");
    }
    if [kernels::fp4_linear::KERNEL.name, kernels::fp4_swiglu::KERNEL.name].contains(&kernel.name) {
        // Four steps of a stage and as many matrices of weights; of eight columns two matrices, and their scales at once. No code is
        // decoded.
        let eights = 1 + 16 + 2 * (1 + 8) + 3 * (1 + 4) + 1 + 16;
        assert!(lines(" OMMA.SF.16864.F32.E2M1.E2M1") >= 4 * eights, "{} {arch}", kernel.name);
        assert!(lines(" LDSM.16.M88.4") >= 2 * eights + 4 * functions, "{} {arch}", kernel.name);
        // Of MXFP4 half as many.
        assert!(lines(" LDS.128") + lines(" LDS.64") >= eights, "{} {arch}", kernel.name);
        assert!(lines(" UBLKCP") >= functions, "{} {arch}", kernel.name);
        assert!(lines(" HMMA.") == 0, "{} {arch}", kernel.name);
    }
    if [kernels::tcgen05_linear::KERNEL.name, kernels::tcgen05_swiglu::KERNEL.name].contains(&kernel.name) {
        // Four steps of a stage; scales of a panel, of eight columns and of a pair's 256, of NVFP4 four words, of MXFP4 two; a commit of a
        // stage and a last one, of pairs to both blocks.
        let words = |name: &str| if name.contains("_nvfp4") { 4 } else { 2 };
        let (few, many): (Vec<&str>, Vec<&str>) =
            kernel.functions.iter().partition(|name| name.ends_with("_8"));
        let copies = |names: &[&str], each: usize| names.iter().map(|name| each * words(name)).sum::<usize>();
        assert_eq!(lines(" UTCOMMA"), 4 * functions, "{} {arch}", kernel.name);
        assert_eq!(lines(" UTCOMMA.2CTA"), 4 * many.len(), "{} {arch}", kernel.name);
        assert_eq!(lines(" UTCCP.T.S.4"), copies(&few, 2), "{} {arch}", kernel.name);
        assert_eq!(lines(" UTCCP.T.S.2CTA.4"), copies(&many, 3), "{} {arch}", kernel.name);
        assert_eq!(lines(" UTCBAR"), 2 * functions, "{} {arch}", kernel.name);
        assert_eq!(lines(" UTCBAR.2CTA.MULTICAST"), 2 * many.len(), "{} {arch}", kernel.name);
        assert!(lines(" LDGSTS.E.BYPASS.128") >= functions, "{} {arch}", kernel.name);
    }
    if [kernels::tcgen05_bf16_linear::KERNEL.name, kernels::tcgen05_bf16_swiglu::KERNEL.name]
        .contains(&kernel.name)
    {
        // Eight steps; commits of a stage of rows, of one of weights and of a chunk; each of two tiles in one store, of two units; rows by
        // copies to both blocks of a cluster.
        assert_eq!(lines(" UTCHMMA"), 8 * functions, "{} {arch}", kernel.name);
        assert_eq!(lines(" UTCBAR"), 3 * functions, "{} {arch}", kernel.name);
        assert_eq!(lines(" STTM.16dp128bit.x16"), 4 * functions, "{} {arch}", kernel.name);
        assert_eq!(lines(" UBLKCP.S.G.MULTICAST"), functions, "{} {arch}", kernel.name);
        // Words of weights, eight of a tile and unit in bf16 and two in four bits, ahead of the loop and in it.
        assert!(lines(" LDG.E.128") >= 2 * 4 * (8 + 2 * (functions - 1)), "{} {arch}", kernel.name);
        assert!(lines(" USETMAXREG") >= 3 * functions && lines(" HMMA.") == 0, "{} {arch}", kernel.name);
    }
    if kernel.name == kernels::tcgen05_mla_decode::KERNEL.name {
        // Scores: 16 steps of codes and 4 of rope keys. Values, behind a tile and behind the last one of a split: two steps of four panels, of
        // which the second term's finds the panel at hand. Commits: scores, and two of values.
        assert_eq!(lines(" UTCQMMA"), (16 + 2 * 16) * functions, "{arch}");
        assert_eq!(
            (lines(".A_KEEP, gdesc"), lines(".A_REUSE, gdesc")),
            (16 * functions, 16 * functions),
            "{arch}"
        );
        assert_eq!(lines(" UTCHMMA"), 4 * functions, "{arch}");
        assert_eq!(lines(" UTCBAR"), 5 * functions, "{arch}");
        // Two loads of scores, of both halves of a warp each.
        assert_eq!(lines(" LDTM.16dp32bit_t0_t15.x32"), 2 * functions, "{arch}");
        assert!(lines(" F2FP.F16.E4M3.UNPACK_B") <= 8 * 4 * functions, "{arch}");
    }
    if kernel.name == kernels::tcgen05_mla_prefill::KERNEL.name {
        // Scores: 12 steps; values: two parts of four. Commits: of five units, of scores and of sums. Scores come at once; an exponential of each.
        assert_eq!((lines(" UTCHMMA gdesc"), lines(" UTCHMMA tmem"), lines(" UTCBAR")), (12, 8, 7), "{arch}");
        assert_eq!(lines(" LDTM.x128"), 1, "{arch}");
        assert!((129..140).contains(&lines(" MUFU.EX2")), "{arch}");
        assert!(lines(" USETMAXREG") == 2 && lines(" HMMA.") == 0, "{arch}");
    }
    if kernel.name.starts_with("sampler") {
        // No loop of exchanges in place of an atomic sum.
        assert!(lines(" ATOMS.ADD") > 0 && lines(" ATOMS.CAST.SPIN") == 0, "{} {arch}", kernel.name);
    }
    if kernel.name == rms_norm::KERNEL.name {
        let moves = (lines(" LDG."), lines(" STG."));
        assert_eq!((lines(" LDG.E.128"), lines(" STG.E.128")), moves, "{arch}");
        assert!(moves.0 > 0 && moves.1 > 0, "{arch}");
    }
}

#[test]
fn parameters_have_the_size_of_the_twin_and_rows_move_by_16_bytes() {
    let Some(compilations) = emulated::compilations() else { return };
    for arch in Arch::ALL {
        let ptx = compilations.ptx(&Program::new(&rms_norm::KERNEL, arch).unwrap()).unwrap();
        for function in rms_norm::KERNEL.functions {
            let size = size_of::<rms_norm::Params>();
            let parameter = format!(".param .align 8 .b8 {function}_param_0[{size}]");
            assert!(ptx.contains(&parameter), "{arch}: {parameter} is not in\n{ptx}");
        }
        let body = ptx.split(".entry rms_norm").nth(1).unwrap();
        let count = |what: &str| body.lines().filter(|line| line.contains(what)).count();
        // Of each of four steps: hidden, gain and normed two times 16 bytes, and once normed in bf16.
        let loads = count("ld.global.v4") + count("ld.global.nc.v4");
        assert_eq!((loads, count("st.global.v4")), (4 * 4, 4 * 3), "{arch}");
        let narrow = body.lines().filter(|line| {
            ["ld.global", "st.global"].iter().any(|word| line.contains(word)) && !line.contains(".v4")
        });
        assert_eq!(narrow.collect::<Vec<_>>(), [] as [&str; 0], "{arch}");
    }
}

/// Machine code of a CUBIN, by nvdisasm; `None` where it is not installed.
fn machine_code(dir: &Path, cubin: &[u8]) -> Option<String> {
    let path = dir.join("kernel.cubin");
    fs::write(&path, cubin).unwrap();
    let output = Command::new("nvdisasm").arg(&path).output().ok()?;
    assert!(output.status.success(), "{}", text(&output));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_kernel_with_local_memory_or_an_error_is_refused() {
    let Some(nvrtc) = nvrtc(None) else { return };
    let stack = "extern \"C\" __global__ void f(float* a, int n) {
        float b[64];
        for (int i = 0; i < 64; ++i) b[i] = a[i];
        for (int i = 0; i < n; ++i) b[(i * 7) % 64] += a[i];
        a[0] = b[n % 64];
    }";
    let error = compile(&nvrtc, stack, "f").unwrap_err();
    assert!(matches!(&error, CompileError::LocalMemory { usage, .. } if usage.stack_bytes == 256), "{error}");
    let error = compile(&nvrtc, "#line 7 \"x.cuh\"\nint f() { return y; }", "f").unwrap_err();
    assert!(matches!(&error, CompileError::Refused { log, .. } if log.contains("x.cuh(7)")), "{error}");
    let other = "extern \"C\" __global__ void g() {}";
    assert!(matches!(compile(&nvrtc, other, "f"), Err(CompileError::MissingUsage { .. })));
    let mut program = Program::new(&rms_norm::KERNEL, Arch::Sm90a).unwrap();
    program.limits = Limits { registers: 16, local_memory: false };
    assert!(matches!(nvrtc.compile(&program), Err(CompileError::Registers { limit: 16, .. })));
    program.options.push("--no-such-option".into());
    assert!(matches!(nvrtc.compile(&program), Err(CompileError::Refused { .. })));
}

#[test]
fn headers_of_cuda_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let Some(nvrtc) = nvrtc(Some(dir.path())) else { return };
    let text = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_fp8.h>\n\
                extern \"C\" __global__ void f(float* a) { a[0] = __bfloat162float(__float2bfloat16(a[1])); }";
    match compile(&nvrtc, text, "f") {
        Ok(compiled) => assert!(compiled.ptx.contains("cvt.rn.bf16.f32")),
        Err(CompileError::NoHeaders { reason, .. }) if nvrtc.version() < (13, 5) => {
            println!("skipped: {reason}")
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn compiled_kernels_are_read_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program::new(&rms_norm::KERNEL, Arch::Sm90a).unwrap();
    let mut binaries = Vec::new();
    for origin in [Origin::Compiled, Origin::Disk] {
        let Some(nvrtc) = nvrtc(None) else { return };
        let identity = nvrtc.identity().unwrap();
        assert!(identity.starts_with("nvrtc ") && identity.len() > 64, "{identity}");
        let settings = CacheSettings { dir: Some(dir.path().to_owned()), max_bytes: 1 << 30, create: false };
        let cache = KernelCache::open(&settings, Ok(Arc::new(nvrtc)));
        let binary = cache.get(&program).unwrap();
        assert_eq!(binary.origin, origin);
        binaries.push(binary);
    }
    assert_eq!((&binaries[0].cubin, &binaries[0].functions), (&binaries[1].cubin, &binaries[1].functions));
}

fn perigee(dir: &Path, args: &[&str], library_path: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perigee"));
    command.args(args).current_dir(dir);
    if let Some(path) = library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    (String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr)).into_owned()
}

/// Of kernels that no architecture has whose tests look at all of them.
#[test]
fn kernels_of_few_chips_begin_as_all_others_do() {
    let Some(compilations) = emulated::compilations() else { return };
    let few = |kernel: &&&Kernel| {
        ![Arch::Sm80, Arch::Sm90a, Arch::Sm120a].iter().any(|arch| kernel.archs.contains(arch))
    };
    let mut seen = 0;
    for kernel in kernels::ALL.iter().filter(few) {
        let ptx = compilations.ptx(&Program::new(kernel, kernel.archs[0]).unwrap()).unwrap();
        for function in kernel.functions {
            check_beginning(function, kernel.archs[0], &ptx);
            seen += 1;
        }
    }
    assert!(seen > 0, "no kernel is of few chips: this test is of no use");
}

#[test]
fn a_build_for_sm_100a_fills_the_directory_and_then_finds_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    if nvrtc(None).is_none() {
        return;
    }
    let build =
        || perigee(dir.path(), &["kernels", "build", "--arch", "sm_100a", "--cache-dir", "cache"], None);
    let made = kernels::ALL.iter().filter(|kernel| kernel.archs.contains(&Arch::Sm100a));
    let jobs = made.clone().count();
    for (count, other) in [("compiled", "from the cache"), ("from the cache", "compiled")] {
        let output = build();
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains(&format!("{jobs} {count}")) && text.contains(&format!("0 {other}")), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("rms_norm sm_100a") && text.contains(&format!("[{jobs}/{jobs}]")), "{text}");
    }
    assert_eq!(fs::read_dir(dir.path().join("cache/sm_100a")).unwrap().count(), jobs);
    let settings = CacheSettings { dir: Some(dir.path().join("cache")), max_bytes: 1 << 30, create: false };
    let cache = KernelCache::open(&settings, Err(CompileError::NoLibrary { reason: "none".into() }));
    for kernel in made {
        let binary = cache.get(&Program::new(kernel, Arch::Sm100a).unwrap()).unwrap();
        assert!(binary.origin == Origin::Disk && binary.cubin.starts_with(b"\x7fELF"), "{}", kernel.name);
        check_machine_code(kernel, Arch::Sm100a, &binary.cubin, dir.path());
    }
    // A path that cannot be a folder: the command fails at once, and compiles nothing.
    fs::write(dir.path().join("file"), "").unwrap();
    let output = perigee(dir.path(), &["kernels", "build", "--arch", "sm_100a", "--cache-dir", "file"], None);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("cannot be stored") && !text.contains("compiled in"), "{text}");
}

#[test]
fn without_nvrtc_a_build_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["kernels", "build", "--set", "kernels.nvrtc_library=/no/such/libnvrtc.so.13"];
    let output = perigee(dir.path(), &args, None);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("pip install nvidia-cuda-nvrtc"), "{}", text(&output));
    assert!(!dir.path().join("jit-cache").exists());
    let list = perigee(dir.path(), &["kernels", "list"], None);
    assert!(list.status.success() && text(&list).contains("linear_nvfp4"), "{}", text(&list));
}

/// A libcuda.so.1 of these C functions in a folder of its own; `None` without a C compiler.
fn driver(dir: &Path, name: &str, functions: &str) -> Option<std::path::PathBuf> {
    let folder = dir.join(name);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("cuda.c"), functions).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "libcuda.so.1", "cuda.c"])
        .current_dir(&folder)
        .status();
    built.is_ok_and(|status| status.success()).then_some(folder)
}

#[test]
fn drivers_with_faults_are_errors_with_a_remedy_and_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let version = |number: u32| format!("int cuDriverGetVersion(int* v) {{ *v = {number}; return 0; }}\n");
    let init = |code: u32| format!("int cuInit(unsigned f) {{ return {code}; }}\n");
    let count = |n: u32| format!("int cuDeviceGetCount(int* n) {{ *n = {n}; return 0; }}\n");
    let device = |minor: u32| {
        format!(
            "#include <string.h>\n#include <stddef.h>\n\
             int cuDeviceGet(int* d, int o) {{ *d = o; return 0; }}\n\
             int cuDeviceGetName(char* s, int n, int d) {{ memset(s, 'x', n); return 0; }}\n\
             int cuDeviceTotalMem_v2(size_t* b, int d) {{ *b = 1 << 30; return 0; }}\n\
             int cuDeviceGetAttribute(int* v, int a, int d) {{ *v = a == 75 ? 12 : a == 76 ? {minor} : -1; return 0; }}\n"
        )
    };
    let cases = [
        ("empty", "int nothing;".into(), "has no cuDriverGetVersion"),
        ("old", version(12080), "knows CUDA 12.8"),
        ("no_init", version(13000), "has no cuInit"),
        ("stub", version(13000) + &init(34), "stub library"),
        ("new_code", version(14000) + &init(98_765), "code 98765"),
        ("no_devices", version(13000) + &init(0) + &count(0), "no device"),
        ("no_name", version(13000) + &init(0) + &count(1), "has no cuDeviceGet"),
        ("unknown_chip", version(13000) + &init(0) + &count(1) + &device(1), "compute capability 12.1"),
        ("good", version(13000) + &init(0) + &count(2) + &device(0), "nvidia-cuda-nvrtc"),
    ];
    for (name, functions, expected) in cases {
        let Some(folder) = driver(dir.path(), name, &functions) else {
            println!("skipped: no C compiler");
            return;
        };
        if name == "good" {
            // The stub of a toolkit beside it: its name has no version.
            fs::copy(dir.path().join("stub/libcuda.so.1"), folder.join("libcuda.so")).unwrap();
        }
        // A good driver gets as far as the compiler, which is not there.
        let args = [
            "kernels",
            "build",
            "--arch",
            "native",
            "--set",
            "kernels.nvrtc_library=/no/such/libnvrtc.so.13",
        ];
        let output = perigee(dir.path(), &args, Some(&folder));
        let text = text(&output);
        assert!(text.contains(expected) && !text.contains("panicked"), "{name}: {text}");
        assert_eq!(output.status.code(), Some(1), "{name}: {text}");
    }
}
