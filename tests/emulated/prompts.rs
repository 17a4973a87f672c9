//! Attention of prompts on the tensor memory of B200 and B300 by itself, over keys and values that are given: against products in f64, the bits
//! of a row in different company, and faults that are planted.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytemuck::Zeroable;
use perigee_cuda::kernels::{mla_prefill, tcgen05_mla_prefill};
use perigee_cuda::{Arch, Program, Stream};
use perigee_ops::MlaShape;
use perigee_ops::tolerance::difference;

use super::attention::KIMI;
use super::{TestDriver, on_gpu};

const NOPE: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;
const WIDTH: usize = NOPE + ROPE;
/// Content of a result before attention.
const UNTOUCHED: f32 = -7.25;
/// Largest difference allowed from attention in f64 with queries, keys and values in bf16: probabilities are rounded to bf16 (up to 2^-9 each).
const ALLOWED: f32 = 4e-3;

/// A sequence whose queries, keys and values depend on head and position alone. Scores grow with the position of the key: what exponentials are
/// taken against changes behind the first tile.
#[derive(Debug, Clone, Copy)]
struct Prompt {
    num_heads: usize,
    /// Position of a key that is not finite.
    fault: Option<usize>,
}

fn random(seed: usize, count: usize, size: f32) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    (0..count).map(|_| (rng.f32() * 2.0 - 1.0) * size).collect()
}

fn rounded(values: Vec<f32>) -> Vec<half::bf16> {
    values.into_iter().map(half::bf16::from_f32).collect()
}

impl Prompt {
    fn query(head: usize, position: usize) -> Vec<f32> {
        random(1_000_000 + 1000 * position + head, WIDTH, 4.0)
    }

    /// Key before the rope key, and value.
    fn key_value(head: usize, position: usize) -> Vec<half::bf16> {
        let growth = 1.0 + position as f32 / 64.0;
        let mut key = random(2_000_000 + 1000 * position + head, NOPE, growth);
        key.extend(random(3_000_000 + 1000 * position + head, VALUE, 1.0));
        rounded(key)
    }

    fn rope_key(position: usize) -> Vec<half::bf16> {
        rounded(random(4_000_000 + position, ROPE, 1.0))
    }

    fn rotation(position: usize) -> Vec<f32> {
        let angle = |i: usize| position as f32 * 0.3f32.powi(i as i32);
        (0..ROPE / 2).map(|i| angle(i).cos()).chain((0..ROPE / 2).map(|i| angle(i).sin())).collect()
    }

    fn shape(&self) -> MlaShape {
        MlaShape { num_heads: self.num_heads, scale: 0.07, ..KIMI }
    }

    /// Results of the rows at these positions, a row with the bits of all heads, by slabs of so many keys. Rows in front and behind stay as they
    /// are, and nothing behind the keys is read.
    fn device(&self, stream: &mut Stream<TestDriver>, rows: Range<usize>, slab: usize) -> Vec<Vec<u32>> {
        let shape = self.shape();
        let (heads, row_values) = (self.num_heads, self.num_heads * VALUE);
        let mut query = vec![0.0; heads * WIDTH];
        let mut rotations = vec![0.0; ROPE];
        for position in rows.clone() {
            query.extend((0..heads).flat_map(|head| Self::query(head, position)));
            rotations.extend(Self::rotation(position));
        }
        let mut store = |values: &[f32]| stream.store("prompt", values).unwrap().address;
        let (query, rotations) = (store(&query), store(&rotations));
        let values = (rows.len() + 2) * row_values;
        let attended = store(&vec![UNTOUCHED; values]);
        let rounded = vec![half::bf16::from_f32(UNTOUCHED); values];
        let rounded = stream.store("prompt", &rounded).unwrap().address;
        let statistics = stream.allocate("statistics", 8 * (rows.len() + 2) * heads).unwrap().address;
        for first_key in (0..rows.end).step_by(slab) {
            let keys = first_key..(first_key + slab).min(rows.end);
            let keys_values: Vec<half::bf16> = keys
                .clone()
                .flat_map(|key| (0..heads).flat_map(move |head| Self::key_value(head, key)))
                .collect();
            let rope_keys: Vec<half::bf16> = keys.clone().flat_map(Self::rope_key).collect();
            let faults: Vec<f32> =
                keys.clone().map(|key| if self.fault == Some(key) { f32::NAN } else { 0.0 }).collect();
            let skipped = first_key.saturating_sub(rows.start);
            let params = mla_prefill::Params {
                query,
                rotations,
                rope_keys: stream.store("slab", &rope_keys).unwrap().address,
                keys_values: stream.store("slab", &keys_values).unwrap().address,
                faults: stream.store("slab", &faults).unwrap().address,
                statistics,
                attended,
                rounded,
                num_heads: heads as i32,
                nope: NOPE as i32,
                rope: ROPE as i32,
                value: VALUE as i32,
                scale: shape.scale,
                first_key: first_key as i32,
                num_keys: keys.len() as i32,
                first_row: (1 + skipped) as i32,
                num_rows: (rows.len() - skipped) as i32,
                first_position: (rows.start + skipped) as i32,
                ..mla_prefill::Params::zeroed()
            };
            let launch = tcgen05_mla_prefill::launch(&shape, rows.len() - skipped);
            stream.launch("tcgen05_mla_prefill", launch, &params).unwrap();
        }
        let attended: Vec<f32> = stream.read(attended, values).unwrap();
        let rounded: Vec<u16> = stream.read(rounded, values).unwrap();
        for (x, rounded) in attended.iter().zip(rounded.into_iter().map(half::bf16::from_bits)) {
            assert!(half::bf16::from_f32(*x) == rounded || x.is_nan() && rounded.is_nan(), "{x} {rounded}");
        }
        let edges = [&attended[..row_values], &attended[values - row_values..]];
        assert!(edges.into_iter().flatten().all(|x| *x == UNTOUCHED));
        let rows = attended[row_values..values - row_values].chunks_exact(row_values);
        rows.map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
    }

    fn reference(&self, rows: Range<usize>) -> Vec<Vec<f32>> {
        let keys: Vec<Vec<Vec<f64>>> = (0..self.num_heads)
            .map(|head| {
                let row = |key| Self::key_value(head, key).into_iter().chain(Self::rope_key(key));
                (0..rows.end).map(|key| row(key).map(|x| x.to_f64()).collect()).collect()
            })
            .collect();
        rows.map(|position| {
            let rotation = Self::rotation(position);
            let of_head = |head: usize| -> Vec<f32> {
                let mut query = Self::query(head, position);
                for pair in 0..ROPE / 2 {
                    let (cosine, sine) = (rotation[pair], rotation[ROPE / 2 + pair]);
                    let two = &mut query[NOPE + 2 * pair..][..2];
                    (two[0], two[1]) = (two[0] * cosine - two[1] * sine, two[1] * cosine + two[0] * sine);
                }
                let query: Vec<f64> = rounded(query).into_iter().map(|x| x.to_f64()).collect();
                let seen = &keys[head][..=position];
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|row| dot(&query[..NOPE], &row[..NOPE]) + dot(&query[NOPE..], &row[NOPE + VALUE..]))
                    .collect();
                let largest = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                let weight = |score: &f64| ((score - largest) * f64::from(self.shape().scale)).exp();
                let weights: Vec<f64> = scores.iter().map(weight).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0; VALUE];
                for (weight, row) in weights.iter().zip(seen) {
                    sums.iter_mut().zip(&row[NOPE..]).for_each(|(sum, x)| *sum += weight * x);
                }
                sums.into_iter().map(|sum| (sum / total) as f32).collect()
            };
            (0..self.num_heads).flat_map(of_head).collect()
        })
        .collect()
    }

    /// Fails unless rows that see a fault are NaN, and the others what `expected` has.
    fn check(&self, got: &[Vec<u32>], expected: &[Vec<f32>], first: usize) {
        assert_eq!(got.len(), expected.len());
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            let got: Vec<f32> = got.iter().copied().map(f32::from_bits).collect();
            if self.fault.is_some_and(|fault| fault <= first + i) {
                assert!(got.iter().all(|x| x.is_nan()), "row {i} sees a fault");
            } else {
                let off = difference(&got, expected);
                assert!(off < ALLOWED, "{self:?}, row {i}: off by {off}");
            }
        }
    }
}

fn stream(arch: Arch, seed: Option<u64>) -> Option<Stream<TestDriver>> {
    let mut driver = TestDriver::new(arch, seed)?;
    driver.set_options(|options| options.races = true);
    Some(Stream::new(driver).unwrap())
}

/// One half of a block and both, more rows than a block has, edges of tiles and of slabs, in any order of warps.
#[test]
fn prompts_are_attended_as_in_f64() {
    for (arch, num_heads, rows, slab, fault, seed) in [
        (Arch::Sm100a, 2, 0..1, 128, None, None),
        (Arch::Sm103a, 2, 126..131, 128, None, Some(1)),
        (Arch::Sm103a, 1, 100..230, 256, Some(200), Some(2)),
        (Arch::Sm100a, 1, 0..258, 256, Some(256), Some(3)),
    ] {
        let Some(mut stream) = stream(arch, seed) else { return };
        let prompt = Prompt { num_heads, fault };
        let got = prompt.device(&mut stream, rows.clone(), slab);
        prompt.check(&got, &prompt.reference(rows.clone()), rows.start);
    }
}

/// A row has the same bits in every chunk, with slabs of any number of keys, beside other heads and in every order.
#[test]
fn bits_of_rows_of_prompts_do_not_depend_on_company() {
    let Some(mut plain) = stream(Arch::Sm100a, None) else { return };
    let alone = Prompt { num_heads: 1, fault: None };
    let whole = alone.device(&mut plain, 0..270, 384);
    for (seed, num_heads, slab, ends) in [(5, 1, 128, &[5, 270][..]), (6, 2, 256, &[140, 269, 270])] {
        let mut start = 0;
        for &end in ends {
            let mut stream = stream(Arch::Sm103a, Some(seed)).unwrap();
            let got = Prompt { num_heads, ..alone }.device(&mut stream, start..end, slab);
            for (i, row) in got.iter().enumerate() {
                assert!(row[..VALUE] == whole[start + i], "row {}, slabs of {slab}", start + i);
            }
            start = end;
        }
    }
}

/// A wait that is missing, a product, a mask, a factor or a place that is another one. The emulator has neither fences between proxies nor
/// lanes of a warp that run apart: what lacks there is not found.
#[test]
fn planted_faults_of_attention_of_prompts_are_found() {
    // A GPU has no compiler beside it, and a strong memory.
    if on_gpu() {
        return;
    }
    let plants = [
        ("keys are read before they are there", "    wait(&shared.filled[turn.stage], turn.parity);\n", ""),
        ("units come to where others are read", "wait(&shared.emptied[turn.stage], turn.parity ^ 1);", ""),
        (
            "the first half gives keys back",
            "SCORES, panel + step > 0);\n                    }\n                    if (is_last) {",
            "SCORES, panel + step > 0);\n                    }\n                    if (half == 0) {",
        ),
        ("the first half gives values back", "if (is_last) {", "if (half == 0) {"),
        (
            "units of the last tile are read before they are there",
            "half == 0 || tile >= first_tiles",
            "half == 0",
        ),
        ("queries are read before they are there", "wait(&shared.asked[half], 0);", ""),
        ("queries are those of the first half", "shared.queries[half][panel]", "shared.queries[0][panel]"),
        ("scores are read before they are there", "wait(&shared.scored[half], tile & 1);", ""),
        ("probabilities are read too early", "wait(&shared.weighed[half][part], (tile - 1) & 1);", ""),
        (
            "both parts of probabilities are one",
            "&shared.weighed[half][part], (",
            "&shared.weighed[half][0], (",
        ),
        ("sums are read before they are there", "wait(&shared.summed[half], 0);", ""),
        (
            "a row sees the next key",
            "row + 1 - params.first_key);\n#pragma",
            "row + 2 - params.first_key);\n#pragma",
        ),
        ("rows see all keys", "i < visible ? score : -infinity", "score"),
        ("faults are lost", "(faulty[i / WARP] >> i % WARP & 1) != 0", "false"),
        ("sums keep their factor", "scale_sums(sums, shrink);", ""),
        ("totals keep their factor", "__fmaf_rn(total, shrink,", "__fmaf_rn(total, 1.0f,"),
        ("sums of earlier slabs are lost", "has_sums || tile > 1", "tile > 1"),
        ("totals of earlier slabs are lost", "[2 * at], total = params.statistics[2 * at + 1]", "[2 * at]"),
        (
            "the values of the other half of a tile",
            "turn(tile - 1, KEY_PANELS + part)",
            "turn(tile - 1, KEY_PANELS)",
        ),
        (
            "the second panel of values is the first",
            "static_cast<u64>(panels >> 4) << 16",
            "static_cast<u64>(panels >> 14) << 16",
        ),
        ("both halves have one place of sums", "sums = memory + half * VALUE,", "sums = memory,"),
    ];
    // A slab of three tiles, so that all units come to where others were, and one of which the halves have one tile and two.
    let (rows, slab) = (378..518, 384);
    let prompt = Prompt { num_heads: 1, fault: Some(516) };
    let expected = prompt.reference(rows.clone());
    let text = |program: &Program, right: &str, wrong: &str| {
        assert!(program.text.contains(right), "{right}");
        program.text.replacen(right, wrong, 1)
    };
    for (name, right, wrong) in plants {
        let found = [Some(3), None, Some(4), Some(5)].into_iter().any(|seed| {
            let Some(mut stream) = stream(Arch::Sm100a, seed) else { return true };
            let mut program = Program::new(&tcgen05_mla_prefill::KERNEL, Arch::Sm100a).unwrap();
            program.text = text(&program, right, wrong);
            program.limits.registers = 255;
            stream.load_program(&program).unwrap();
            let run = AssertUnwindSafe(|| {
                let got = prompt.device(&mut stream, rows.clone(), slab);
                prompt.check(&got, &expected, rows.start);
            });
            catch_unwind(run).is_err()
        });
        assert!(found, "{name}: not found");
    }
}

/// What decides the speed and can be counted: a tile of 128 keys and 256 rows has 2,560 clocks of products, in which four schedulers issue what
/// this counts, of which a third is not there in machine code.
#[test]
fn attention_of_prompts_issues_little_beside_the_tensor_cores() {
    let Some(mut stream) = stream(Arch::Sm100a, None) else { return };
    if !stream.driver().set_options(|options| (options.profile, options.races) = (true, false)) {
        return;
    }
    let mut count = |first: usize| {
        Prompt { num_heads: 1, fault: None }.device(&mut stream, first..first + 256, 4096);
        let report = stream.driver().report().unwrap();
        let shared = report.instructions().filter(|count| !count.opcode.contains("global"));
        let conflicts: u64 = shared.filter_map(|count| count.traffic.map(|t| t.excess_wavefronts())).sum();
        assert_eq!(conflicts, 0);
        report.warp_instructions()
    };
    // Two tiles more, all of whose keys all rows see.
    let per_tile = (count(384) - count(128)) as f64 / 2.0;
    println!("{per_tile:.0} PTX instructions of warps for a tile of 128 keys and 256 rows");
    assert!(per_tile < 8700.0, "{per_tile}");
}
