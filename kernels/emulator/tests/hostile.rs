//! Damaged PTX: golden kernels with tokens deleted, doubled, swapped, renumbered or cut off. Whatever comes of
//! it, parse, lowering and launch end with a result or an error, in bounded time and memory.

mod kernel;

use kernel::Random;
use perigee_emulator::case::LaunchShape;
use perigee_emulator::machine::{Asynchrony, Machine, Options};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Texts to damage: the golden kernels of moderate size.
fn sources() -> Vec<(PathBuf, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/triton");
    let mut sources: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .filter(|(_, text)| text.len() < 60_000)
        .collect();
    sources.sort();
    sources
}

/// Splits a text so that the parts join to it again: words, numbers, blanks, single characters.
fn tokens(text: &str) -> Vec<String> {
    let class = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' => 0,
        ' ' | '\t' => 1,
        _ => 2,
    };
    let mut tokens: Vec<String> = Vec::new();
    let mut last = 2;
    for c in text.chars() {
        let class = class(c);
        match tokens.last_mut() {
            Some(token) if class == last && class != 2 => token.push(c),
            _ => tokens.push(c.to_string()),
        }
        last = class;
    }
    tokens
}

/// Numbers that tend to overflow something.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "7",
    "8",
    "15",
    "16",
    "31",
    "32",
    "33",
    "63",
    "64",
    "65",
    "127",
    "128",
    "255",
    "256",
    "1000",
    "1023",
    "1024",
    "4096",
    "65535",
    "65536",
    "1048575",
    "1048576",
    "16777216",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "0xffffffffffffff80",
    "0f7FC00000",
    "1e400",
];

/// Parts of opcodes and operands to put where others were.
const WORDS: &[&str] = &[
    "b8", "b16", "b32", "b64", "b128", "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16",
    "f16x2", "bf16x2", "f32", "f32x2", "f64", "pred", "tf32", "e4m3x2", "e2m1x2", "v2", "v4", "v8", "wide",
    "hi", "lo", "sat", "ftz", "rn", "rz", "global", "shared", "local", "param", "const", "sync", "async",
    "cc", "add", "sub", "mad", "mul", "fma", "mov", "cvt", "cvta", "ld", "st", "atom", "red", "shfl", "vote",
    "bar", "barrier", "cp", "mbarrier", "mma", "wgmma", "tcgen05", "ldmatrix", "stmatrix", "prmt", "bfe",
    "shl", "shr", "div", "rem", "min", "max", "setp", "selp", "bra", "ret", "exit", "tid", "_",
];

fn damage(random: &mut Random, tokens: &mut Vec<String>) {
    let at = random.below(tokens.len());
    let other = random.below(tokens.len());
    // A number or a word near a place, so that most damage is to what means something.
    let near = |tokens: &[String], wanted: fn(char) -> bool| {
        (at..tokens.len()).find(|&at| tokens[at].starts_with(wanted)).unwrap_or(at)
    };
    match random.below(10) {
        0 => {
            let at = near(tokens, |c| c != ' ');
            tokens.remove(at);
        }
        1 => {
            let token = tokens[at].clone();
            tokens.insert(at, token);
        }
        2 => {
            let at = near(tokens, char::is_alphanumeric);
            tokens.swap(at, other);
        }
        3..=5 => {
            let at = near(tokens, |c| c.is_ascii_digit());
            tokens[at] = NUMBERS[random.below(NUMBERS.len())].to_string();
        }
        6 | 7 => {
            let at = near(tokens, char::is_alphabetic);
            tokens[at] = WORDS[random.below(WORDS.len())].to_string();
        }
        8 => {
            // A line moves.
            let end = (at..tokens.len()).find(|&at| tokens[at] == "\n").unwrap_or(tokens.len());
            let line: Vec<String> = tokens.drain(at..end).collect();
            let to = random.below(tokens.len().max(1));
            tokens.splice(to..to, line);
        }
        _ => tokens.truncate(tokens.len().saturating_sub(random.below(200))),
    }
    if tokens.is_empty() {
        tokens.push(String::new());
    }
}

/// Loads a text and launches its kernels with small limits. The result says how far that went.
fn attempt(text: &str, seed: u64) -> &'static str {
    let asynchrony = [Asynchrony::Issue, Asynchrony::Late, Asynchrony::Random][seed as usize % 3];
    let options =
        Options { max_instructions: 20_000, asynchrony, uninitialized: seed & 1 == 0, ..Options::default() };
    let mut machine = Machine::new(1, options);
    let Ok(module) = machine.load(0, text) else { return "not parsed" };
    let buffer = machine.allocate(0, 1 << 16, 256);
    machine.write(buffer, &vec![1; 1 << 16]).unwrap();
    let mut reached = "no kernel";
    for name in text.split(".entry").skip(1).filter_map(|rest| rest.split('(').next()) {
        let Ok(kernel) = module.kernel(name.trim()) else {
            reached = "not lowered";
            continue;
        };
        // Pointers everywhere; a kernel that takes numbers sees wild ones.
        let parameters: Vec<u8> =
            buffer.to_le_bytes().repeat(64.max(kernel.parameter_bytes() as usize / 8 + 1));
        let block = [[128, 1, 1], [32, 1, 1], [256, 1, 1]][(seed / 3) as usize % 3];
        let shape = LaunchShape {
            grid: [2, 1, 1],
            block,
            cluster: if seed.is_multiple_of(5) { [2, 1, 1] } else { [1; 3] },
            dynamic_shared_bytes: 65_536,
        };
        reached = match machine.launch(&kernel, shape, &parameters) {
            Ok(_) => "ended",
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                "fault"
            }
        };
    }
    reached
}

fn guarded(text: &str, seed: u64, place: &str) -> &'static str {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| attempt(text, seed)));
    let time = start.elapsed();
    if let Ok(folder) = std::env::var("PERIGEE_HOSTILE_OUT")
        && (result.is_err() || time > Duration::from_secs(2))
    {
        std::fs::write(format!("{folder}/{}.ptx", place.replace([' ', '/'], "_")), text).unwrap();
    }
    match result {
        Ok(reached) => {
            assert!(time < Duration::from_secs(5), "{place}: {time:?}");
            reached
        }
        Err(_) => {
            panic!("{place}: a panic instead of an error")
        }
    }
}

/// Rounds of the test; `PERIGEE_HOSTILE_ROUNDS` asks for more.
fn rounds() -> u64 {
    std::env::var("PERIGEE_HOSTILE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1200)
}

#[test]
fn damaged_golden_kernels() {
    let sources = sources();
    let mut reached = std::collections::BTreeMap::new();
    for round in 0..rounds() {
        let mut random = Random(round);
        let (path, text) = &sources[random.below(sources.len())];
        let mut tokens = tokens(text);
        for _ in 0..=random.below(3) {
            damage(&mut random, &mut tokens);
        }
        let place = format!("round {round} {}", path.file_stem().unwrap().to_string_lossy());
        *reached.entry(guarded(&tokens.concat(), round, &place)).or_insert(0) += 1;
    }
    println!("{reached:?}");
    // Damage that never gets past the parser tests nothing else.
    for stage in ["not parsed", "not lowered", "fault"] {
        assert!(reached.get(stage).is_some_and(|&count| count > rounds() / 50), "{stage}: {reached:?}");
    }
}

#[test]
fn bodies_that_ask_for_too_much() {
    let check = |head: &str, body: &str| {
        let text = kernel::module(head, 2, body);
        guarded(&text, 1, body);
        guarded(&text, 0, body);
    };
    for size in NUMBERS {
        for space in [".shared", ".local", ".global", ".const"] {
            check(
                &format!("{} .align 8 .b8 x[{size}];", space.replace(".local", ".global")),
                "mov.u64 %rd1, x;",
            );
            check("", &format!("{space} .align 8 .b8 x[{size}]; {space} .b64 y[{size}][{size}];"));
            check("", &format!("{space} .align {size} .b8 x[64], y[64];"));
        }
        check(
            "",
            &format!(".reg .b32 %x<{size}>; .reg .b128 %y<{size}>; .reg .b64 %z<{size}>; mov.u32 %x0, 1;"),
        );
        for access in [
            "ld.global.u32 %r1, [%rd1",
            "ld.param.u32 %r1, [p0",
            "ld.local.u32 %r1, [%r2",
            "ld.u64 %rd2, [%rd1",
        ] {
            check("", &format!("ld.param.u64 %rd1, [p0]; mov.u32 %r2, -4; {access}+{size}];"));
            check("", &format!("mov.u64 %rd1, {size}; mov.u32 %r2, {size}; {access}-4];"));
            check("", &format!("mov.u64 %rd1, -8; mov.u32 %r2, {size}; {access}+{size}];"));
        }
        check(
            "",
            &format!("ld.param.u64 %rd1, [%rd1+{size}]; st.local.v4.b32 [%rd1+{size}], {{%r1,%r2,%r3,%r4}};"),
        );
        check("", &format!("mov.u64 %rd1, {size}; ld.param.u64 %rd2, [%rd1]; ld.local.u32 %r1, [%rd1];"));
        check("", &format!("mov.u64 %rd1, {size}; ld.local.u32 %r1, [%rd1];"));
        check(
            "",
            &format!(
                "bar.sync {size}, {size}; barrier.cluster.arrive; shfl.sync.idx.b32 %r1, %r1, {size}, {size}, {size};"
            ),
        );
        check("", &format!("cp.async.wait_group {size}; cp.async.bulk.wait_group {size};"));
        check(
            ".shared .align 16 .b8 s[64];",
            &format!(
                "mov.u32 %r3, {size}; cp.async.ca.shared.global [s], [%rd1], {size}, %r3; cp.async.ca.shared.global [s], [%rd1], 4, %r3;"
            ),
        );
        check(
            ".shared .align 16 .b8 s[64];",
            &format!(
                "mbarrier.init.shared.b64 [s], {size}; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], {size};
                 mov.u32 %r3, {size}; ld.param.u64 %rd1, [p0];
                 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s+16], [%rd1], %r3, [s];"
            ),
        );
        check(
            ".shared .align 128 .b8 s[4096];",
            &format!(
                "mov.u32 %r3, {size}; ld.param.u64 %rd1, [p0]; cp.async.bulk.global.shared::cta.bulk_group [%rd1], [s], %r3;
                 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
            ),
        );
        check(
            ".shared .align 128 .b8 s[4096];",
            &format!(
                "ld.param.u64 %rd1, [p0]; tensormap.replace.tile.box_dim.global.b1024.b32 [%rd1], {size}, {size};
                 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [s], {size};"
            ),
        );
        check(
            ".shared .align 16 .b8 s[64];",
            &format!(
                "mov.u32 %r3, {size}; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], %r3; ld.shared.u32 %r4, [s];
                 mov.u32 %r4, {size}; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r5}}, [%r4];"
            ),
        );
        check(
            "",
            &format!("mapa.shared::cluster.u32 %r1, {size}, {size}; ld.shared::cluster.u32 %r2, [%r1];"),
        );
        check("", &format!("mov.u32 %r1, {size}; T: .branchtargets A, B; A: brx.idx %r1, T; B: ret;"));
    }
    for vector in [
        "{}",
        "{%r1}",
        "{%r1,%r2,%r3}",
        "{%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8,%r9}",
        "{%rd1,%rd2,%rd3,%rd4}",
        "{%v1,%v2}",
        "{_,_}",
    ] {
        for ty in ["b16", "b32", "b64", "b128", "pred", "f32x2"] {
            for code in [
                format!("mov.{ty} %r1, {vector};"),
                format!("mov.{ty} %rd1, {vector};"),
                format!("mov.{ty} %v1, {vector};"),
                format!("mov.{ty} {vector}, %r1;"),
                format!("mov.{ty} {vector}, %rd1;"),
                format!("mov.{ty} {vector}, %v1;"),
                format!("mov.{ty} {vector}, {vector};"),
                format!("ld.global.v4.{ty} {vector}, [%rd1];"),
                format!("st.local.v4.{ty} [%rd1], {vector};"),
                format!(
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.{ty} [%r1], {vector}, [%r2];"
                ),
                format!("atom.global.v4.add.{ty} {vector}, [%rd1], {vector};"),
                format!("red.global.v4.add.{ty} [%rd1], {vector};"),
                format!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {vector}, [%r1];"),
                format!(
                    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {vector}, {vector}, {vector}, {vector};"
                ),
                format!(
                    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {vector}, {vector}, %rd1, 1, 1, 1, 0;"
                ),
                format!("tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector}, [%r1];"),
                format!("prmt.b32 {vector}, {vector}, {vector}, {vector};"),
                format!("cvt.{ty}.{ty} {vector}, {vector};"),
            ] {
                check("", &code);
            }
        }
    }
}

#[test]
fn modules_that_are_not_modules() {
    for text in [
        "",
        "\0",
        "é",
        ".entry",
        ".entry k(",
        ".entry k(.param",
        ".entry k(.param .u64 x[",
        ".entry k(.param .align 0 .b8 x[0])",
        ".entry k(.param .align 9223372036854775808 .b8 x[3], .param .align 9223372036854775808 .b8 y[3]) { ret; }",
        ".entry k(.param .b8 x[18446744073709551615], .param .b64 y[18446744073709551615]) { ret; }",
        ".entry k(.param .b8 x[18446744073709551615], .param .b8 y) { ret; }",
        ".entry k() .maxntid 4294967295, 4294967295, 4294967295 { ret; }",
        ".entry k() .reqntid 0 { ret; }",
        ".entry k() .reqnctapercluster 0, 0, 0 { ret; }",
        ".global .align 9223372036854775808 .b8 a[1], b[1];",
        ".global .b8 a[549755813888];",
        ".global .b8 a[] = {1, {2, {3, -4}}};",
        ".const .b128 a = 1;",
        ".entry k() { bra k; }",
        ".entry k() { L: bra L; }",
        ".entry k() { { { } }",
        ".func f() { ret; } .entry k() { call f; }",
    ] {
        guarded(text, 1, text);
    }
    let deep = format!(".entry k() {{ mov.u32 {}%r1{}; }}", "{".repeat(10_000), "}".repeat(10_000));
    guarded(&deep, 1, "deep vectors");
    let scopes = format!(".entry k() {} ret; {}", "{".repeat(10_000), "}".repeat(10_000));
    guarded(&scopes, 1, "deep scopes");
    let init = format!(".global .b8 a[1] = {}1{};", "{".repeat(100_000), "}".repeat(100_000));
    guarded(&init, 1, "deep initialisers");
}
