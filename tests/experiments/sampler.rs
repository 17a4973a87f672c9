//! A row of the sampler: cut over a cluster, by one block with eight loads on their way at once, and by one with one.

use bytemuck::Zeroable;
use perigee_cuda::Program;
use perigee_cuda::kernels::sampler::{self, DrawParams, Outcome, Row};
use perigee_cuda::kernels::sampler_cluster;

use super::{device, edited, micros, on_gpu};

/// Loops that wait for each of their loads.
pub(super) fn program() -> Program {
    edited(
        &sampler::KERNEL,
        &[
            ("template <u32 COUNT = 8, typename With>", "template <u32 COUNT = 1, typename With>"),
            ("FIRST_LOADS = 8;", "FIRST_LOADS = 1;"),
            ("constexpr u32 COUNT = 8;", "constexpr u32 COUNT = 1;"),
        ],
    )
}

pub(super) fn run() -> Option<String> {
    let (vocab, rows) = if on_gpu() { (163_840, [1, 64]) } else { (4100, [1, 2]) };
    let (mut found, mut tokens) = (Vec::new(), Vec::new());
    for (name, programs, is_cut) in [
        ("a cluster a row", Vec::new(), true),
        ("a block a row", Vec::new(), false),
        ("one load at a time", vec![program()], false),
    ] {
        let mut stream = device(&programs)?;
        let mut times = Vec::new();
        for rows in rows {
            let mut rng = fastrand::Rng::with_seed(81);
            let logits: Vec<f32> = (0..rows * vocab).map(|_| 8.0 * (rng.f32() + rng.f32() - 1.0)).collect();
            let logits = stream.store("logits", &logits).unwrap().address;
            for (temperature, top_p) in [(0.0, 1.0), (1.0, 1.0), (1.0, 0.95)] {
                let row = |row: usize| Row {
                    seed: 82,
                    position: row as u64,
                    row: row as u32,
                    slot: row as u32,
                    temperature,
                    top_p,
                    repetition: 1.0,
                    ..Row::zeroed()
                };
                let list: Vec<Row> = (0..rows).map(row).collect();
                let mut zeros = |bytes: usize| stream.zeros("experiment", bytes).unwrap().address;
                let (work, counts) = (zeros(4 * rows * vocab), zeros(4 * rows * vocab));
                let (outcomes, top) = (zeros(size_of::<Outcome>() * rows), zeros(8));
                let params = DrawParams {
                    logits,
                    work,
                    counts,
                    rows: stream.store("rows", &list).unwrap().address,
                    lists: stream.store("lists", &[0u32]).unwrap().address,
                    outcomes,
                    top,
                    vocab: vocab as u32,
                    first: 0,
                    ids: vocab as u32,
                    stride: vocab as u32,
                };
                let cut = is_cut && sampler_cluster::takes(vocab, stream.arch());
                let time = micros(&mut stream, 4, |stream, _| match cut {
                    true => sampler_cluster::draw(stream, rows, &params).unwrap(),
                    false => sampler::draw(stream, rows, &params).unwrap(),
                });
                times.push(format!("{time:.1}"));
                let drawn: Vec<Outcome> = stream.read(outcomes, rows).unwrap();
                tokens.push(drawn.iter().map(|outcome| outcome.token).collect::<Vec<_>>());
            }
        }
        found.push(format!("{name} {} us", times.join(" / ")));
    }
    let (cut, others) = tokens.split_at(tokens.len() / 3);
    assert!(others.chunks(cut.len()).all(|other| other == cut), "the same tokens");
    Some(format!("{vocab} ids, {rows:?} rows, each greedy / drawn / with top-p: {}", found.join("; ")))
}
