//! What an exchange between two ranks costs where no link lies between them: two streams of one device.

use perigee_cuda::kernels::all_reduce::{self, Link, LinkState, MAX_RANKS, Operation, Rows, Variant, Wire};
use perigee_cuda::kernels::exchange::{self, Exchange, Layout};
use perigee_cuda::kernels::mla_decode::RowEntry;
use perigee_cuda::{Arch, Driver, Stream};
use perigee_ops::{AttentionExchange, MlaShape};

use crate::emulated::{TestDriver, on_gpu};

/// Microseconds of a sum with its norm, of 1, 8 and 16 rows in one shot and of 16 and 64 in two.
pub(super) fn run() -> Option<String> {
    let (_, _, seed) = sizes();
    sums(TestDriver::several(2, Arch::Sm90a, seed)?)
}

/// The same in memory of the host, where it takes the way of GPUs that do not reach each other.
pub(super) fn through_host() -> Option<String> {
    let (_, _, seed) = sizes();
    let drivers = TestDriver::several(2, Arch::Sm90a, seed)?;
    sums(drivers.into_iter().map(TestDriver::sharing_host_memory).collect())
}

/// Columns, rounds, and the emulator's seed.
fn sizes() -> (usize, u32, Option<u64>) {
    if on_gpu() { (7168, 500, None) } else { (512, 3, Some(2)) }
}

fn sums(drivers: Vec<TestDriver>) -> Option<String> {
    let (columns, rounds, _) = sizes();
    let mut streams: Vec<_> = drivers.into_iter().map(|driver| Stream::new(driver).unwrap()).collect();
    let layout = all_reduce::Layout::new(2, columns, 64);
    let mut areas = [0; MAX_RANKS];
    for (area, stream) in areas.iter_mut().zip(&mut streams) {
        *area = all_reduce::new_area(stream, layout.bytes(), 0).unwrap().address;
    }
    let ranks: Vec<(Link, Rows)> = streams
        .iter_mut()
        .enumerate()
        .map(|(rank, stream)| {
            let state = stream.store("state", &[LinkState::default()]).unwrap().address;
            let link = Link { areas, state, world: 2, rank: rank as u32, patience: 1000, padding: 0 };
            let ones = vec![1f32; 64 * columns];
            let mut rows = |values: &[f32]| stream.store("rows", values).unwrap().address;
            let [partial, gain] = [&ones[..], &ones[..columns]].map(&mut rows);
            let (hidden, normed) = (rows(&ones), rows(&ones));
            let rounded = stream.zeros("rows", 2 * 64 * columns).unwrap().address;
            (link, Rows { partial, hidden, adds: false, gain, normed, rounded, eps: 1e-5 })
        })
        .collect();
    let mut times = Vec::new();
    for (variant, num_rows, wire) in [
        (Variant::PushOneShot, 1, Wire::F32),
        (Variant::PushOneShot, 8, Wire::F32),
        (Variant::PushOneShot, 16, Wire::F32),
        (Variant::PushTwoShot, 16, Wire::F32),
        (Variant::PushTwoShot, 64, Wire::F32),
        (Variant::PushTwoShot, 64, Wire::Bf16),
        (Variant::PullOneShot, 1, Wire::F32),
        (Variant::PullOneShot, 16, Wire::F32),
        (Variant::PullTwoShot, 16, Wire::F32),
        (Variant::PullTwoShot, 64, Wire::F32),
    ] {
        // The other rank's sums wait on the device for those that are timed.
        for (rank, stream) in streams.iter_mut().enumerate().rev() {
            if rank == 0 {
                stream.driver().begin_timing().unwrap();
            }
            let (link, rows) = &ranks[rank];
            for _ in 0..rounds {
                all_reduce::launch(stream, link, &layout, (variant, wire), Operation::Links, num_rows, rows)
                    .unwrap();
            }
        }
        let micros = streams[0].driver().end_timing().unwrap().as_secs_f64() * 1e6 / f64::from(rounds);
        times.push(format!("{num_rows} {micros:.1}"));
    }
    for (stream, (link, rows)) in streams.iter_mut().zip(&ranks) {
        let sums: Vec<f32> = stream.read(rows.hidden, 64 * columns).unwrap();
        assert!(sums.iter().all(|sum| *sum == 2.0));
        assert_eq!(stream.read::<LinkState>(link.state, 1).unwrap()[0].failed, 0);
    }
    Some(format!(
        "us by rows, pushed 1 8 16 in one shot, 16 64 in two, 64 in bf16, pulled 1 16 in one, 16 64 in two: {}",
        times.join(", ")
    ))
}

/// Microseconds of both exchanges of attention of a layer of Kimi K2, by rows of a pass, of heads and of latents.
pub(super) fn attention() -> Option<String> {
    let heads = attention_as(AttentionExchange::Heads)?;
    Some(format!("{heads}; {}", attention_as(AttentionExchange::Latents)?))
}

fn attention_as(form: AttentionExchange) -> Option<String> {
    let (_, rounds, seed) = sizes();
    let num_heads = if on_gpu() { 64 } else { 4 };
    let shape = MlaShape {
        num_heads,
        qk_nope_head_dim: 128,
        qk_rope_head_dim: 64,
        v_head_dim: 128,
        kv_lora_rank: 512,
        scale: 1.0,
    };
    const ROWS: usize = 64;
    let drivers = TestDriver::several(2, Arch::Sm90a, seed)?;
    let mut streams: Vec<_> = drivers.into_iter().map(|driver| Stream::new(driver).unwrap()).collect();
    let layout = Layout::new(2, &shape, ROWS, form);
    let mut areas = [0; MAX_RANKS];
    for (area, stream) in areas.iter_mut().zip(&mut streams) {
        *area = all_reduce::new_area(stream, layout.bytes(), layout.meeting_bytes()).unwrap().address;
    }
    let mut ranks = Vec::new();
    for (rank, stream) in streams.iter_mut().enumerate() {
        let state = stream.store("state", &[LinkState::default()]).unwrap().address;
        let link = Link { areas, state, world: 2, rank: rank as u32, patience: 1000, padding: 0 };
        let meetings = stream.zeros("meetings", 4).unwrap().address;
        let exchange = Exchange { link, layout, places: 0, meeting_places: layout.bytes() as u64, meetings };
        let mut zeros = |values: usize| stream.zeros("rows", 4 * values).unwrap().address;
        let (own, all) = (ROWS * num_heads / 2, ROWS * num_heads);
        let [query, value] = match form {
            AttentionExchange::Heads => [192, 128],
            AttentionExchange::Latents => [576, 512],
        };
        let memory =
            [zeros(own * query), zeros(all * query), zeros(all * value), zeros(all * 2), zeros(own * value)];
        ranks.push((exchange, memory));
    }
    let mut times = Vec::new();
    for num_rows in if on_gpu() { [1, 8, 64] } else { [1, 2, 3] } {
        let mut list = vec![num_rows as u32, 0];
        for row in 0..num_rows as u32 {
            list.extend_from_slice(bytemuck::cast_slice(&[RowEntry {
                row,
                first_item: 0,
                num_keys: 1,
                table: 0,
                group: 1,
            }]));
        }
        let passes: Vec<u64> =
            streams.iter_mut().map(|stream| stream.store("pass", &list).unwrap().address).collect();
        for (rank, stream) in streams.iter_mut().enumerate().rev() {
            if rank == 0 {
                stream.driver().begin_timing().unwrap();
            }
            let (exchange, [query, queries, values, statistics, attended]) = &ranks[rank];
            let pass = passes[rank];
            for _ in 0..rounds {
                let rows = |from: u64, to: u64| exchange::Rows {
                    pass,
                    from,
                    statistics: *statistics,
                    to,
                    rounded: 0,
                };
                exchange.queries(stream, &rows(*query, *queries)).unwrap();
                exchange.attended(stream, &rows(*values, *attended)).unwrap();
            }
        }
        let micros = streams[0].driver().end_timing().unwrap().as_secs_f64() * 1e6 / f64::from(rounds);
        times.push(format!("{num_rows} {micros:.1}"));
    }
    for (stream, (exchange, _)) in streams.iter_mut().zip(&ranks) {
        assert_eq!(stream.read::<LinkState>(exchange.link.state, 1).unwrap()[0].failed, 0);
    }
    Some(format!("us of both by rows, {form:?}: {}", times.join(", ")))
}
