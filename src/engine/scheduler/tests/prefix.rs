//! Tests of prefix reuse: blocks that are shared, and blocks that must not be.

use super::*;

#[test]
fn a_prefix_hit_leaves_at_least_one_token_to_compute() {
    // (second prompt's length, cached): blocks of 4; the last known token is never covered.
    for (len, cached) in [(16, 12), (17, 16), (15, 12), (5, 4), (4, 0)] {
        let mut rig = Rig::new(LIMITS);
        rig.add(1, &prompt(0, 20), 1, |_| ());
        rig.drain();
        rig.add(2, &prompt(0, len), 1, |_| ());
        assert_eq!(rig.schedule(), [(2, cached, len as usize - cached)]);
        assert_eq!(rig.batch.admitted, [Admission { seq: SeqId(2), cached_tokens: cached, waited_us: 0 }]);
        assert_eq!(rig.scheduler.cached_tokens(SeqId(2)), Some(cached));
        let stats = rig.scheduler.stats();
        assert_eq!((stats.prefix_query_tokens, stats.prefix_hit_tokens), (20 + len as u64, cached as u64));
    }
}

#[test]
fn running_sequences_share_the_blocks_of_their_prefix() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 12), 20, |_| ());
    rig.step();
    rig.add(2, &prompt(0, 14), 20, |_| ());
    rig.step();
    let (first, second) = (rig.scheduler.block_table(SeqId(1)), rig.scheduler.block_table(SeqId(2)));
    assert_eq!(first[..3], second[..3]);
    assert_ne!(first[3], second[3]);
    assert_eq!(rig.scheduler.stats().used_blocks, 5);
}

#[test]
fn a_prompt_waits_for_the_same_prompt_that_is_just_being_computed() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 20), 9, |_| ());
    rig.add(2, &prompt(0, 20), 9, |_| ());
    rig.add(3, &prompt(0, 18), 9, |_| ());
    assert_eq!(rig.step(), [(1, 0, 20)]);
    assert_eq!(rig.step(), [(1, 20, 1), (2, 16, 4), (3, 16, 2)]);

    // Not for less than half of the lacking blocks, not for another salt.
    let mut rig = Rig::new(LIMITS);
    let mut half: Vec<u32> = prompt(0, 8);
    half.extend(prompt(500, 17));
    rig.add(1, &prompt(0, 16), 9, |_| ());
    rig.add(2, &half, 9, |_| ());
    rig.add(3, &prompt(0, 16), 9, |new| new.cache_salt = Some("a".into()));
    assert_eq!(rig.step(), [(1, 0, 16), (2, 0, 25), (3, 0, 16)]);
}

#[test]
fn a_blocked_head_is_admitted_when_its_prefix_appears_or_blocks_are_given_back() {
    // The running hold 6 of 15 blocks and one more is kept for each: 7 to spare, 10 needed, 6 once 4 of them exist.
    let run = |head: Vec<u32>| {
        let mut rig = Rig::new(Limits { num_blocks: 15, ..LIMITS });
        rig.add(0, &prompt(600, 3), 9, |_| ());
        rig.add(1, &[prompt(0, 16), vec![7]].concat(), 9, |_| ());
        rig.add(2, &head, 1, |_| ());
        rig.add(3, &prompt(700, 3), 1, |_| ());
        assert_eq!(rig.step(), [(0, 0, 3), (1, 0, 17)], "and nobody overtakes the head");
        rig
    };
    assert_eq!(run(prompt(0, 40)).step(), [(0, 3, 1), (1, 17, 1), (2, 16, 24)]);

    let mut rig = run(prompt(300, 40));
    assert_eq!(rig.step(), [(0, 3, 1), (1, 17, 1)]);
    rig.scheduler.abort(SeqId(1));
    assert_eq!(rig.step(), [(0, 4, 1), (2, 0, 40), (3, 0, 3)]);

    let mut rig = run(prompt(300, 40));
    rig.add(4, &prompt(800, 3), 1, |new| new.priority = -1);
    assert_eq!(rig.step(), [(0, 3, 1), (1, 17, 1), (4, 0, 3)], "a better rank is the new head");
}

#[test]
fn a_prefix_outlives_its_continuations() {
    let mut rig = Rig::new(Limits { num_blocks: 4, ..LIMITS });
    rig.add(1, &prompt(0, 16), 1, |_| ());
    rig.drain();
    assert_eq!(rig.scheduler.stats().cached_blocks, 4);
    rig.add(2, &prompt(100, 8), 1, |_| ());
    rig.drain();
    rig.add(3, &prompt(0, 16), 1, |_| ());
    rig.schedule();
    assert_eq!(rig.batch.admitted[0].cached_tokens, 8);
}

#[test]
fn salt_separates_users_of_the_prefix_cache() {
    let mut rig = Rig::new(LIMITS);
    let salts = [None, Some("a"), Some("b"), Some("")];
    for (id, salt) in salts.iter().chain(&salts).enumerate() {
        rig.add(id as u64, &prompt(0, 20), 1, |new| new.cache_salt = salt.map(str::to_owned));
        rig.schedule();
        assert_eq!(rig.batch.admitted[0].cached_tokens, if id < salts.len() { 0 } else { 16 }, "{salt:?}");
        rig.commit();
    }
}

#[test]
fn a_long_prompt_and_a_short_one_do_not_share_although_their_tokens_are_equal() {
    let mut rig = Rig::new(Limits { expand_min_prompt_tokens: 20, ..LIMITS });
    rig.add(1, &prompt(0, 20), 1, |_| ());
    rig.drain();
    for (id, len, cached) in [(2, 19, 0), (3, 21, 20), (4, 18, 16)] {
        rig.add(id, &prompt(0, len), 1, |_| ());
        rig.schedule();
        assert_eq!(rig.batch.admitted[0].cached_tokens, cached);
        rig.commit();
    }
}

#[test]
fn reply_blocks_are_found_again_after_a_short_prompt_and_not_after_a_long_one() {
    for (expand_min_prompt_tokens, cached) in [(1000, 12), (6, 4)] {
        let mut rig = Rig::new(Limits { expand_min_prompt_tokens, ..LIMITS });
        rig.add(1, &prompt(0, 6), 8, |_| ());
        for _ in 0..7 {
            rig.step();
        }
        let mut next_turn = rig.scheduler.tokens(SeqId(1)).to_vec();
        rig.drain();
        assert_eq!(next_turn.len(), 13);
        next_turn.extend([7, 7, 7]);
        rig.add(2, &next_turn, 1, |_| ());
        rig.schedule();
        assert_eq!(rig.batch.admitted[0].cached_tokens, cached);
    }
}

#[test]
fn a_preempted_sequence_finds_its_named_blocks_again() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 10), 20, |_| ());
    for _ in 0..4 {
        rig.step();
    }
    rig.scheduler.preempt_last_for_test();
    assert_eq!(rig.scheduler.stats().queued_tokens, 14);
    assert_eq!(rig.schedule(), [(1, 12, 2)]);
    assert!(rig.batch.admitted.is_empty(), "it was admitted before");
}

#[test]
fn blocks_of_a_failed_sequence_are_not_named() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 8), 10, |_| ());
    rig.schedule();
    let failed = Sampled { seq: SeqId(1), tokens: &[], finish: Some(FinishReason::Error) };
    assert_eq!(rig.scheduler.commit(&mut rig.batch, [failed]).len(), 1);
    assert_eq!(rig.scheduler.stats().cached_blocks, 0);
}

#[test]
fn prompt_logits_are_delivered_once_per_position_and_take_no_hits() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 6, ..LIMITS });
    rig.add(1, &prompt(0, 16), 1, |_| ());
    rig.drain();
    rig.add(2, &prompt(0, 16), 40, |new| new.prompt_logits = true);
    let mut rows = vec![];
    for step in 0..8 {
        rig.schedule();
        if step == 0 {
            assert_eq!(rig.batch.admitted[0].cached_tokens, 0);
        }
        let chunk = &rig.batch.chunks[0];
        if chunk.logits == LogitsNeed::All {
            rows.extend(chunk.start..chunk.end());
        }
        rig.commit();
        if step == 1 || step == 4 {
            rig.scheduler.preempt_last_for_test();
        }
    }
    assert_eq!(rows, (0..16).collect::<Vec<_>>());
}

#[test]
fn different_pictures_in_equal_prompts_never_share_a_block() {
    let mut rng = fastrand::Rng::with_seed(9);
    for _ in 0..10_000 {
        let len = rng.usize(2..40);
        let start = rng.usize(0..len);
        let span =
            MediaSpan { start, len: rng.usize(1..=len - start), hash: std::array::from_fn(|_| rng.u8(..)) };
        let mut other = span;
        // One bit of the content apart.
        other.hash[rng.usize(..32)] ^= 1 << rng.u32(..8);
        let mut rig = Rig::new(LIMITS);
        let mut cached = [span, other, span].into_iter().enumerate().map(|(id, span)| {
            rig.add(id as u64, &vec![7; len], 1, |new| new.media = [span].into());
            assert_eq!(rig.schedule(), [], "held until its picture is at hand");
            rig.scheduler.release(SeqId(id as u64), 0);
            rig.drain();
            rig.scheduler.stats().prefix_hit_tokens as usize
        });
        let (_, first, second) = (cached.next(), cached.next().unwrap(), cached.next().unwrap());
        assert_eq!(first, (start / 4 * 4).min((len - 1) / 4 * 4), "{span:?} in {len}");
        assert_eq!(second - first, (len - 1) / 4 * 4, "{span:?} in {len}");
    }
}
