//! What an exchange between two ranks costs where no link lies between them: two streams of one device.

use perigee_cuda::kernels::all_reduce::{self, Layout, Link, LinkState, MAX_RANKS, Operation, Rows, Shots};
use perigee_cuda::{Arch, Driver, Stream};

use crate::emulated::{TestDriver, on_gpu};

/// Microseconds of a sum with its norm, of 1, 8 and 16 rows in one shot and of 16 and 64 in two.
pub(super) fn run() -> Option<String> {
    let (columns, rounds, seed) = if on_gpu() { (7168, 500, None) } else { (512, 3, Some(2)) };
    let drivers = TestDriver::several(2, Arch::Sm90a, seed)?;
    let mut streams: Vec<_> = drivers.into_iter().map(|driver| Stream::new(driver).unwrap()).collect();
    let layout = Layout::new(2, columns, 64);
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
    for (shots, num_rows) in
        [(Shots::One, 1), (Shots::One, 8), (Shots::One, 16), (Shots::Two, 16), (Shots::Two, 64)]
    {
        // The other rank's sums wait on the device for those that are timed.
        for (rank, stream) in streams.iter_mut().enumerate().rev() {
            if rank == 0 {
                stream.driver().begin_timing().unwrap();
            }
            let (link, rows) = &ranks[rank];
            for _ in 0..rounds {
                all_reduce::launch(stream, link, &layout, shots, Operation::Links, num_rows, rows).unwrap();
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
    Some(format!("us by rows, one shot and two: {}", times.join(", ")))
}
