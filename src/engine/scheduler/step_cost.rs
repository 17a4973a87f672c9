//! Measures the cost of a decode step of the scheduler; prints figures and asserts nothing.
//!
//! `cargo test --release -p perigee-engine --lib scheduler::step_cost -- --ignored --nocapture`

use std::time::Instant;

use super::*;

#[test]
#[ignore = "prints a measurement"]
fn step_cost() {
    for (num_seqs, block_size) in [(1, 16), (64, 16), (64, 64), (256, 16), (256, 64)] {
        let limits = Limits {
            max_num_seqs: num_seqs,
            max_num_batched_tokens: 8192,
            max_prefill_tokens: 8192,
            target_step: std::time::Duration::ZERO,
            max_model_len: 1 << 17,
            block_size,
            num_blocks: (1 << 20) / block_size,
            prefix_caching: true,
            expand_min_prompt_tokens: 256,
        };
        let mut scheduler = Scheduler::new(limits).unwrap();
        for id in 0..num_seqs as u64 {
            let prompt: Vec<u32> = (0..200).map(|token| token + id as u32 * 1000).collect();
            let new = NewSequence {
                id: SeqId(id),
                prompt: prompt.into(),
                max_tokens: 3000,
                priority: 0,
                share: None,
                arrival_us: id,
                deadline_us: Some(u64::MAX),
                cache_salt: None,
                prompt_logits: false,
                media: Default::default(),
            };
            scheduler.add(new).unwrap();
        }
        let mut batch = Batch::default();
        let mut sampled: Vec<(SeqId, u32)> = vec![];
        let mut nanos = vec![];
        for step in 0..2000 {
            let start = Instant::now();
            assert!(scheduler.expire(step).is_empty());
            scheduler.schedule(step, &mut batch);
            let planned = start.elapsed();
            sampled.clear();
            sampled.extend(batch.chunks.iter().filter(|c| c.samples).map(|c| (c.seq, c.start as u32)));
            let start = Instant::now();
            let tokens = sampled.iter().map(|(seq, token)| Sampled {
                seq: *seq,
                tokens: std::slice::from_ref(token),
                finish: None,
            });
            assert!(scheduler.commit(&mut batch, tokens).is_empty());
            if batch.chunks.len() == num_seqs && batch.num_tokens() == num_seqs {
                nanos.push((planned + start.elapsed()).as_nanos() as u64);
            }
        }
        nanos.sort_unstable();
        let mean = nanos.iter().sum::<u64>() as f64 / nanos.len() as f64 / 1000.0;
        let at = |share: f64| nanos[(nanos.len() as f64 * share) as usize] as f64 / 1000.0;
        println!(
            "{num_seqs} sequences, blocks of {block_size}: schedule + commit mean {mean:.1} us, p50 {:.1} us, p99 {:.1} us, {} steps",
            at(0.5),
            at(0.99),
            nanos.len()
        );
    }
}
