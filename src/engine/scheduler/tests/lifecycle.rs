//! Tests of a sequence's life: add, end, failure, rewind.

use super::*;

#[test]
fn max_tokens_is_cut_to_the_length_of_the_model_and_to_the_blocks() {
    for (limits, reply_len) in [
        (Limits { max_model_len: 30, ..LIMITS }, 20),
        (Limits { num_blocks: 4, ..LIMITS }, 7),
        (Limits { num_blocks: 4, max_model_len: 10, ..LIMITS }, 0),
    ] {
        let mut rig = Rig::new(limits);
        rig.add(1, &prompt(0, 10), u32::MAX, |_| ());
        assert_eq!(rig.scheduler.tokens_left(SeqId(1)), reply_len);
        assert_eq!(rig.drain(), [Finished { seq: SeqId(1), reason: FinishReason::Length, reply_len }]);
    }
}

#[test]
fn what_can_never_run_is_refused() {
    let mut scheduler = Scheduler::new(Limits { num_blocks: 4, ..LIMITS }).unwrap();
    let mut add = |id: u64, len: u32| {
        scheduler.add(NewSequence {
            id: SeqId(id),
            prompt: prompt(0, len).into(),
            max_tokens: 1,
            priority: 0,
            share: None,
            arrival_us: 0,
            deadline_us: None,
            cache_salt: None,
            prompt_logits: false,
            media: Default::default(),
        })
    };
    assert_eq!(add(1, 0), Err(AddError::EmptyPrompt(SeqId(1))));
    assert_eq!(add(1, 17), Err(AddError::TooLong { prompt_tokens: 17, limit: 16 }));
    assert_eq!(add(1, 16), Ok(()));
    assert_eq!(add(1, 5), Err(AddError::Duplicate(SeqId(1))));
}

#[test]
fn an_expired_sequence_is_gone_whether_it_runs_or_waits() {
    let mut rig = Rig::new(Limits { max_num_seqs: 1, ..LIMITS });
    rig.add(1, &prompt(0, 10), 20, |new| new.deadline_us = Some(100));
    rig.add(2, &prompt(0, 10), 20, |new| new.deadline_us = Some(200));
    rig.add(3, &prompt(0, 10), 20, |_| ());
    rig.step();
    assert_eq!(rig.scheduler.expire(99), []);
    assert_eq!(
        rig.scheduler.expire(200),
        [(1, 1), (2, 0)].map(|(id, reply_len)| Finished {
            seq: SeqId(id),
            reason: FinishReason::Deadline,
            reply_len
        })
    );
    assert!(!rig.scheduler.contains(SeqId(1)));
    assert_eq!(rig.schedule(), [(3, 8, 2)]);
}

#[test]
fn abort_frees_within_the_call_and_the_planned_chunk_is_ignored() {
    let mut rig = Rig::new(Limits { prefix_caching: false, ..LIMITS });
    rig.add(1, &prompt(0, 10), 20, |_| ());
    rig.add(2, &prompt(0, 10), 20, |_| ());
    rig.schedule();
    assert_eq!(rig.scheduler.stats().used_blocks, 6);
    assert_eq!(rig.scheduler.abort(SeqId(1)).unwrap().reason, FinishReason::Aborted);
    assert_eq!(rig.scheduler.stats().used_blocks, 3);
    assert_eq!(rig.scheduler.abort(SeqId(1)), None);
    assert_eq!(rig.commit(), []);
    assert_eq!(rig.scheduler.tokens(SeqId(2)).len(), 11);
}

#[test]
fn the_engines_reason_goes_before_length_and_ends_after_its_token() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 4), 3, |_| ());
    rig.schedule();
    let stop = |tokens, finish| Sampled { seq: SeqId(1), tokens, finish };
    let mut on_limit =
        rig.scheduler.commit(&mut rig.batch, [stop(&[8, 9, 2], Some(FinishReason::StopToken(2)))]);
    let expected = Finished { seq: SeqId(1), reason: FinishReason::StopToken(2), reply_len: 3 };
    assert_eq!(on_limit.pop(), Some(expected));

    rig.add(1, &prompt(0, 4), 2, |_| ());
    rig.schedule();
    let beyond = rig.scheduler.commit(&mut rig.batch, [stop(&[8, 9, 2], Some(FinishReason::StopToken(2)))]);
    assert_eq!(beyond, [Finished { seq: SeqId(1), reason: FinishReason::Length, reply_len: 2 }]);
}

#[test]
fn several_tokens_of_one_commit_are_computed_in_one_decode_chunk() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 4), 10, |_| ());
    rig.schedule();
    rig.scheduler.commit(&mut rig.batch, [Sampled { seq: SeqId(1), tokens: &[7, 8, 9], finish: None }]);
    assert_eq!(rig.schedule(), [(1, 4, 3)]);
    assert_eq!(rig.batch.chunks[0].logits, LogitsNeed::Last);
    rig.commit();
    assert_eq!(rig.scheduler.tokens(SeqId(1)), [0, 1, 2, 3, 7, 8, 9, 1007]);
    assert_eq!(rig.scheduler.tokens_left(SeqId(1)), 6);
}

#[test]
fn a_chunk_without_a_token_computes_its_last_row_again() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 8), 10, |_| ());
    assert_eq!(rig.schedule(), [(1, 0, 8)]);
    rig.scheduler.commit(&mut rig.batch, []);
    rig.scheduler.check_invariants().unwrap();
    assert_eq!(rig.step(), [(1, 7, 1)]);
    assert_eq!(rig.step(), [(1, 8, 1)]);
}

#[test]
fn a_failed_step_can_be_planned_again() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 8), 10, |_| ());
    assert_eq!(rig.schedule(), rig.schedule());
    rig.commit();
    assert_eq!(rig.schedule(), [(1, 8, 1)]);
    assert_eq!(rig.schedule(), [(1, 8, 1)]);
}

#[test]
fn without_a_reply_the_prompt_is_computed_and_nothing_is_sampled() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 8), 0, |new| new.prompt_logits = true);
    rig.schedule();
    assert_eq!((rig.batch.chunks[0].logits, rig.batch.chunks[0].samples), (LogitsNeed::All, false));
    assert_eq!(rig.commit(), [Finished { seq: SeqId(1), reason: FinishReason::Length, reply_len: 0 }]);
    assert_eq!(rig.scheduler.stats().cached_blocks, 2);
}

#[test]
fn rewound_then_continued_equals_never_having_gone_there() {
    let mut straight = Rig::new(LIMITS);
    straight.add(1, &prompt(0, 10), 12, |_| ());
    for _ in 0..12 {
        straight.schedule();
        if straight.scheduler.tokens(SeqId(1)).len() == 21 {
            break;
        }
        straight.commit();
    }
    let expected = straight.scheduler.tokens(SeqId(1)).to_vec();
    for from in 11..=21 {
        for to in 10..=from {
            let mut rig = Rig::new(LIMITS);
            rig.add(1, &prompt(0, 10), 12, |_| ());
            while rig.scheduler.tokens(SeqId(1)).len() < from {
                rig.step();
            }
            rig.scheduler.rewind(SeqId(1), to).unwrap();
            rig.scheduler.check_invariants().unwrap();
            assert_eq!(rig.scheduler.tokens(SeqId(1)), &expected[..to]);
            while rig.scheduler.tokens(SeqId(1)).len() < 21 {
                rig.step();
            }
            assert_eq!(rig.scheduler.tokens(SeqId(1)), expected);
        }
    }
}

#[test]
fn a_rewind_into_a_named_block_lets_go_of_it_and_a_private_one_is_written_in_place() {
    for (prefix_caching, next, same_block) in [(true, (1, 8, 3), false), (false, (1, 10, 1), true)] {
        let mut rig = Rig::new(Limits { prefix_caching, ..LIMITS });
        rig.add(1, &prompt(0, 8), 20, |_| ());
        for _ in 0..6 {
            rig.step();
        }
        let before = rig.scheduler.block_table(SeqId(1)).to_vec();
        rig.scheduler.rewind(SeqId(1), 11).unwrap();
        assert_eq!(rig.schedule(), [next]);
        let after = rig.scheduler.block_table(SeqId(1));
        assert_eq!(before[..2], after[..2]);
        assert_eq!(before[2] == after[2], same_block);
    }
}

#[test]
fn a_rewind_outside_the_reply_is_refused() {
    let mut rig = Rig::new(LIMITS);
    rig.add(1, &prompt(0, 8), 20, |_| ());
    rig.step();
    assert_eq!(rig.scheduler.rewind(SeqId(2), 8), Err(RewindError::Unknown(SeqId(2))));
    for to in [7, 10] {
        let error = RewindError::OutOfRange { to, prompt_len: 8, known: 9 };
        assert_eq!(rig.scheduler.rewind(SeqId(1), to), Err(error));
    }
    assert_eq!(
        rig.scheduler.finish_at(SeqId(1), 0).map(|f| (f.reason, f.reply_len)),
        Some((FinishReason::Stopped, 0))
    );
}
