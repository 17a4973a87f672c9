//! Tests of batching: tokens per sequence and step, waiting, preemption.

use super::*;
use perigee_ops::AttentionForm;

#[test]
fn a_prompt_is_cut_into_chunks_of_the_budget_and_then_decodes() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 16, ..LIMITS });
    rig.add(1, &prompt(0, 40), 3, |_| ());
    let steps: Vec<_> = (0..5).map(|_| rig.step()).collect();
    assert_eq!(steps.concat(), [(1, 0, 16), (1, 16, 16), (1, 32, 8), (1, 40, 1), (1, 41, 1)]);
    assert!(rig.scheduler.is_empty());
}

#[test]
fn only_the_last_chunk_of_a_prompt_samples() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 16, ..LIMITS });
    rig.add(1, &prompt(0, 20), 3, |_| ());
    rig.schedule();
    assert_eq!((rig.batch.chunks[0].logits, rig.batch.chunks[0].samples), (LogitsNeed::None, false));
    rig.commit();
    rig.schedule();
    assert_eq!((rig.batch.chunks[0].logits, rig.batch.chunks[0].samples), (LogitsNeed::Last, true));
}

#[test]
fn decoding_sequences_come_first_and_prompts_take_what_the_budget_leaves() {
    let mut rig =
        Rig::new(Limits { max_num_seqs: 4, max_num_batched_tokens: 10, max_prefill_tokens: 9, ..LIMITS });
    rig.add(1, &prompt(0, 4), 20, |_| ());
    rig.add(2, &prompt(100, 5), 20, |_| ());
    assert_eq!(rig.step(), [(1, 0, 4), (2, 0, 5)]);
    rig.add(3, &prompt(200, 30), 20, |_| ());
    assert_eq!(rig.step(), [(1, 4, 1), (2, 5, 1), (3, 0, 8)]);
    assert_eq!(rig.step(), [(1, 5, 1), (2, 6, 1), (3, 8, 8)]);
}

#[test]
fn the_queue_goes_by_priority_then_arrival() {
    let mut rig = Rig::new(Limits { max_num_seqs: 1, ..LIMITS });
    for (id, priority, arrival) in [(1, 5, 0), (2, 0, 30), (3, 0, 20), (4, -1, 40), (5, 0, 20)] {
        rig.add(id, &prompt(0, 3), 1, |new| (new.priority, new.arrival_us) = (priority, arrival));
    }
    let order: Vec<u64> = rig.drain().iter().map(|finished| finished.seq.0).collect();
    assert_eq!(order, [4, 3, 5, 2, 1]);
}

#[test]
fn a_prompt_that_fits_the_next_step_whole_is_not_split_but_only_once() {
    let mut rig =
        Rig::new(Limits { max_num_seqs: 8, max_num_batched_tokens: 20, max_prefill_tokens: 20, ..LIMITS });
    rig.add(1, &prompt(0, 12), 1, |_| ());
    rig.add(2, &prompt(100, 12), 1, |_| ());
    rig.add(3, &prompt(200, 3), 1, |_| ());
    assert_eq!(rig.step(), [(1, 0, 12)]);
    assert_eq!(rig.step(), [(2, 0, 12), (3, 0, 3)]);

    // Less than half of the step is used, or the prompt would be split anyway: the prompt starts in
    // this step.
    rig.add(4, &prompt(300, 9), 1, |_| ());
    rig.add(5, &prompt(400, 12), 1, |_| ());
    assert_eq!(rig.step(), [(4, 0, 9), (5, 0, 11)]);
    rig.step();
    rig.add(6, &prompt(500, 12), 1, |_| ());
    rig.add(7, &prompt(600, 21), 1, |_| ());
    assert_eq!(rig.step(), [(6, 0, 12), (7, 0, 8)]);

    // A prompt held back a second time, by a better rank, starts in this step too.
    let mut rig = Rig::new(*rig.scheduler.limits());
    rig.add(8, &prompt(0, 12), 1, |_| ());
    rig.add(9, &prompt(100, 12), 1, |_| ());
    assert_eq!(rig.step(), [(8, 0, 12)]);
    rig.add(10, &prompt(200, 12), 1, |new| new.priority = -1);
    assert_eq!(rig.step(), [(10, 0, 12), (9, 0, 8)]);
}

#[test]
fn a_long_prompt_and_the_short_ones_that_keep_arriving_share_the_steps() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 16, ..LIMITS });
    rig.add(1, &prompt(0, 168), 1, |_| ());
    assert_eq!(rig.step(), [(1, 0, 16)]);
    for step in 0..19 {
        rig.add(2 + step, &prompt(1000 + 10 * step as u32, 8), 1, |_| ());
        assert_eq!(rig.step(), [(2 + step, 0, 8), (1, 16 + 8 * step as usize, 8)]);
    }
}

#[test]
fn short_prompts_pass_long_ones_that_wait_and_what_is_cached_is_no_length() {
    let mut rig = Rig::new(Limits {
        max_num_batched_tokens: 128,
        max_prefill_tokens: 80,
        max_model_len: 512,
        num_blocks: 256,
        ..LIMITS
    });
    rig.add(1, &prompt(0, 80), 1, |_| ());
    rig.step();
    rig.add(2, &prompt(1000, 400), 1, |_| ());
    rig.step();
    rig.add(3, &prompt(2000, 41), 1, |_| ());
    rig.add(4, &[prompt(0, 80), prompt(3000, 20)].concat(), 1, |_| ());
    rig.add(5, &prompt(4000, 25), 1, |_| ());
    rig.add(6, &prompt(5000, 20), 1, |_| ());
    assert_eq!(rig.step(), [(4, 80, 20), (6, 0, 20), (2, 80, 40)]);
    // The first of the rest is still the first when the step has room.
    assert_eq!(rig.step(), [(5, 0, 25), (2, 120, 55)]);
    assert_eq!(rig.drain().iter().map(|finished| finished.seq.0).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_chat_of_one_line_is_whole_but_begun_prompts_have_their_half_in_the_next_step() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 40, ..LIMITS });
    rig.add(1, &prompt(0, 200), 1, |_| ());
    rig.step();
    (2..5).for_each(|id| rig.add(id, &prompt(300 * id as u32, 30), 1, |_| ()));
    assert_eq!(rig.step(), [(2, 0, 30), (1, 40, 10)]);
    assert_eq!(rig.step(), [(1, 50, 40)]);
    assert_eq!(rig.step(), [(3, 0, 30), (1, 90, 10)]);
}

#[test]
fn short_prompts_pass_nobody_who_waits_for_blocks_and_no_better_priority() {
    let mut rig =
        Rig::new(Limits { num_blocks: 50, prefix_caching: false, max_prefill_tokens: 24, ..LIMITS });
    rig.add(1, &prompt(0, 120), 4, |_| ());
    rig.step();
    rig.add(2, &prompt(1000, 8), 1, |new| new.priority = 1);
    assert_eq!(rig.step(), [(1, 24, 24)], "of a worse priority than the begun prompt");
    rig.add(3, &prompt(2000, 80), 1, |_| ());
    rig.add(4, &prompt(3000, 8), 1, |_| ());
    assert_eq!(rig.step(), [(4, 0, 8), (1, 48, 16)], "the long one could not begin anyway");
    while rig.scheduler.tokens(SeqId(1)).len() == 120 {
        rig.step();
    }
    // Now it waits for blocks, and whoever comes waits behind it.
    rig.add(5, &prompt(4000, 8), 1, |_| ());
    assert_eq!(ids(rig.step()), [1]);
    rig.add(6, &prompt(5000, 48), 1, |new| new.priority = -1);
    assert_eq!(rig.drain().len(), 5);
}

#[test]
fn blocks_that_a_begun_prompt_still_needs_are_not_given_to_the_queue() {
    // A prompt whose delivered logits end at token 8 is cut there when it is computed again, which
    // leaves budget to other prompts while it holds 2 blocks of 8. Of 14, 6 are promised to it and
    // 1 is kept for it: 5 to spare.
    for (len, admitted) in [(20, true), (21, false)] {
        let mut rig = Rig::new(Limits { num_blocks: 14, prefix_caching: false, ..LIMITS });
        rig.add(1, &prompt(0, 32), 1, |new| new.prompt_logits = true);
        rig.scheduler.limits.max_prefill_tokens = 8;
        assert_eq!(rig.step(), [(1, 0, 8)]);
        rig.scheduler.limits.max_prefill_tokens = 64;
        rig.scheduler.preempt_last_for_test();
        rig.add(3, &prompt(100, len), 1, |_| ());
        assert_eq!(rig.step().iter().any(|chunk| chunk.0 == 3), admitted, "{len}");
    }
}

#[test]
fn positions_of_a_long_prompt_are_expanded_and_its_reply_is_absorbed_also_when_computed_again() {
    let mut rig = Rig::new(Limits { expand_min_prompt_tokens: 6, prefix_caching: false, ..LIMITS });
    rig.add(1, &prompt(0, 6), 8, |_| ());
    rig.step();
    rig.step();
    rig.scheduler.preempt_last_for_test();
    assert_eq!(rig.schedule(), [(1, 0, 8)]);
    let forms: Vec<AttentionForm> = (0..8).map(|position| rig.batch.chunks[0].form(position)).collect();
    assert!(forms[..6].iter().all(|form| *form == AttentionForm::Expanded));
    assert!(forms[6..].iter().all(|form| *form == AttentionForm::Absorbed));
}

#[test]
fn the_last_in_rank_is_preempted_and_resumes_with_its_tokens() {
    let run = |num_blocks: usize| {
        let mut rig = Rig::new(Limits { num_blocks, ..LIMITS });
        for id in 1..=3 {
            rig.add(id, &prompt(100 * id as u32, 6), 20, |_| ());
        }
        let (mut replies, mut preempted) = (std::collections::BTreeMap::new(), vec![]);
        while !rig.scheduler.is_empty() {
            rig.schedule();
            preempted.extend(rig.batch.preempted.iter().map(|seq| seq.0));
            let before: Vec<(SeqId, Vec<u32>)> =
                rig.scheduler.live().map(|seq| (seq, rig.scheduler.tokens(seq).to_vec())).collect();
            rig.commit();
            replies.extend(before);
        }
        (replies, preempted)
    };
    let (plenty, none) = run(64);
    let (scarce, preempted) = run(14);
    assert_eq!(plenty, scarce);
    assert!(none.is_empty());
    assert_eq!(preempted, [3]);
}

#[test]
fn admission_leaves_a_block_for_every_running_sequence() {
    let mut rig = Rig::new(Limits { num_blocks: 10, prefix_caching: false, ..LIMITS });
    rig.add(1, &prompt(0, 16), 20, |_| ());
    rig.step();
    rig.add(2, &prompt(100, 20), 1, |_| ());
    assert_eq!(rig.step(), [(1, 16, 1)], "5 blocks needed, 5 available, none would be left");
    rig.scheduler.abort(SeqId(2));
    rig.add(3, &prompt(100, 16), 1, |_| ());
    assert_eq!(rig.step(), [(1, 17, 1), (3, 0, 16)]);
}

#[test]
fn a_begun_prompt_goes_on_in_every_step_at_the_cost_of_later_ranks() {
    // The sequence of the last rank decodes into the blocks promised to the prompt; the block sizes
    // vary which sequence lacks a block.
    for (num_blocks, max_prefill_tokens) in [(12, 2), (11, 2), (12, 3), (11, 3), (12, 1)] {
        let limits = Limits { num_blocks, max_prefill_tokens, prefix_caching: false, ..LIMITS };
        let mut rig = Rig::new(limits);
        rig.add(2, &prompt(100, 4), 36, |new| new.priority = 1);
        while rig.scheduler.tokens(SeqId(2)).len() == 4 {
            rig.step();
        }
        rig.add(1, &prompt(0, 32), 2, |_| ());
        let mut preempted = vec![];
        while rig.scheduler.contains(SeqId(1)) {
            let chunks = rig.schedule();
            assert!(chunks.iter().any(|chunk| chunk.0 == 1), "{limits:?}: {chunks:?}");
            preempted.extend(rig.batch.preempted.clone());
            rig.commit();
        }
        assert_eq!(preempted, [SeqId(2)], "{limits:?}");
        assert_eq!(rig.drain().len(), 1);
    }
}

fn of(client: u32) -> impl FnOnce(&mut NewSequence) {
    move |new| new.share = Some(Share { client, weight: 1.0 })
}

fn ids(plan: Vec<(u64, usize, usize)>) -> Vec<u64> {
    plan.into_iter().map(|(id, ..)| id).collect()
}

#[test]
fn a_client_with_nothing_running_takes_a_place_of_the_one_with_most() {
    let mut rig = Rig::new(Limits { max_num_seqs: 4, ..LIMITS });
    (1..=5).for_each(|id| rig.add(id, &prompt(100 * id as u32, 6), 20, of(1)));
    assert_eq!(ids(rig.step()), [1, 2, 3, 4]);
    rig.add(6, &prompt(600, 6), 20, of(2));
    rig.add(7, &prompt(700, 6), 20, of(2));
    assert_eq!(ids(rig.schedule()), [1, 2, 3, 6]);
    assert_eq!(rig.batch.preempted, [SeqId(4)]);
    rig.commit();
    // Its second one waits its turn.
    assert_eq!(ids(rig.step()), [1, 2, 3, 6]);
    rig.add(8, &prompt(800, 6), 20, of(3));
    assert_eq!(ids(rig.step()), [1, 2, 6, 8]);
    rig.add(9, &prompt(900, 6), 20, of(4));
    assert_eq!(ids(rig.step()), [1, 6, 8, 9]);
    // Nobody runs several.
    rig.add(10, &prompt(1000, 6), 20, of(5));
    assert_eq!(ids(rig.step()), [1, 6, 8, 9]);
    assert_eq!(rig.drain().len(), 10);
}

#[test]
fn a_client_with_nothing_running_takes_the_blocks_of_the_one_with_most() {
    let mut rig = Rig::new(Limits { num_blocks: 12, ..LIMITS });
    (1..=2).for_each(|id| rig.add(id, &prompt(100 * id as u32, 18), 4, of(1)));
    assert_eq!(ids(rig.step()), [1, 2]);
    rig.add(3, &prompt(300, 6), 4, of(1));
    assert_eq!(ids(rig.step()), [1, 2], "no block to spare");
    rig.add(4, &prompt(400, 6), 4, of(2));
    assert_eq!(ids(rig.schedule()), [1, 4]);
    assert_eq!(rig.batch.preempted, [SeqId(2)]);
    rig.commit();
    assert_eq!(rig.drain().len(), 4);

    // What would not be enough is not taken.
    let mut rig = Rig::new(Limits { num_blocks: 12, ..LIMITS });
    (1..=2).for_each(|id| rig.add(id, &prompt(100 * id as u32, 18), 4, of(1)));
    rig.step();
    rig.add(4, &prompt(400, 40), 4, of(2));
    assert_eq!(ids(rig.step()), [1, 2]);
    assert_eq!(rig.drain().len(), 3);
}

#[test]
fn blocks_that_run_out_are_those_of_the_client_that_runs_most() {
    let mut rig = Rig::new(Limits { num_blocks: 12, prefix_caching: false, ..LIMITS });
    (1..=2).for_each(|id| rig.add(id, &prompt(100 * id as u32, 8), 30, of(1)));
    rig.step();
    rig.add(3, &prompt(300, 8), 30, of(2));
    let mut preempted = vec![];
    while preempted.is_empty() {
        assert!(ids(rig.schedule()).contains(&3));
        preempted.extend(rig.batch.preempted.clone());
        rig.commit();
    }
    assert_eq!(preempted, [SeqId(2)], "and not the only one of a client, who came last");
    assert_eq!(rig.drain().len(), 3);
}

#[test]
fn who_waits_for_a_prefix_keeps_no_other_client_waiting() {
    let mut rig = Rig::new(Limits {
        max_prefill_tokens: 64,
        max_num_batched_tokens: 128,
        max_model_len: 512,
        num_blocks: 256,
        ..LIMITS
    });
    rig.add(1, &prompt(0, 200), 1, of(1));
    rig.step();
    rig.add(2, &[prompt(0, 199), prompt(900, 9)].concat(), 1, of(2));
    rig.add(3, &prompt(300, 40), 1, of(3));
    assert_eq!(rig.step(), [(3, 0, 32), (1, 64, 32)]);
    assert_eq!(rig.drain().len(), 3);
}

#[test]
fn a_client_with_nothing_running_has_half_of_the_prompt_tokens() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 16, ..LIMITS });
    rig.add(1, &prompt(0, 60), 1, of(1));
    assert_eq!(rig.step(), [(1, 0, 16)]);
    rig.add(2, &prompt(100, 6), 1, of(2));
    assert_eq!(rig.step(), [(2, 0, 6), (1, 16, 10)]);
    // Of a long prompt it goes on with as much as the others.
    rig.add(3, &prompt(200, 40), 1, of(3));
    rig.add(4, &prompt(300, 40), 1, of(3));
    assert_eq!(rig.step(), [(3, 0, 8), (1, 26, 8)]);
    assert_eq!(rig.step(), [(1, 34, 8), (3, 8, 8)]);
    assert_eq!(rig.step(), [(1, 42, 8), (3, 16, 8)]);
    assert_eq!(rig.drain().len(), 3);
}

#[test]
fn a_short_chat_is_not_cut_in_two() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 32, max_model_len: 256, ..LIMITS });
    rig.add(1, &prompt(0, 120), 1, of(1));
    rig.step();
    rig.add(2, &prompt(300, 20), 1, of(2));
    assert_eq!(rig.step(), [(2, 0, 20), (1, 32, 12)]);
    rig.add(3, &prompt(600, 33), 1, of(3));
    assert_eq!(rig.step(), [(3, 0, 16), (1, 44, 16)], "longer than a short chat");
    rig.add(4, &prompt(900, 31), 1, of(4));
    assert_eq!(rig.step(), [(4, 0, 31), (1, 60, 1)], "who was there before goes on");
}

#[test]
fn a_newcomers_short_chat_has_a_step_for_itself_and_never_three_in_a_row() {
    let target = std::time::Duration::from_millis(5);
    let limits = Limits {
        target_step: target,
        max_model_len: 512,
        num_blocks: 256,
        max_num_batched_tokens: 256,
        ..LIMITS
    };
    let mut rig = Rig::new(limits);
    rig.add(1, &prompt(0, 4), 90, of(1));
    rig.step();
    rig.add(2, &prompt(100, 400), 1, of(1));
    assert_eq!(rig.step(), [(1, 4, 1), (2, 0, 64)]);
    rig.add(3, &prompt(600, 20), 4, of(2));
    assert_eq!(rig.step(), [(1, 5, 1), (3, 0, 20)], "the long prompt pauses");
    rig.add(4, &prompt(700, 20), 4, of(3));
    assert_eq!(rig.step(), [(1, 6, 1), (3, 20, 1), (4, 0, 20)], "once more");
    rig.add(7, &prompt(750, 20), 4, of(5));
    assert_eq!(rig.step()[3..], [(7, 0, 20), (2, 64, 44)], "and goes on");
    rig.add(5, &prompt(800, 40), 4, of(4));
    assert_eq!(rig.step()[4..], [(5, 0, 32), (2, 108, 32)], "a prompt that is cut does not pause others");
    // Nor one of a client that runs something.
    rig.add(6, &prompt(900, 20), 4, of(1));
    assert!(rig.step().iter().any(|(id, ..)| *id == 2));
    rig.drain();
}

#[test]
fn drafts_have_what_the_time_of_a_step_leaves_beside_prompts() {
    let target = std::time::Duration::from_millis(10);
    let mut rig = Rig::new(Limits { target_step: target, ..LIMITS });
    rig.add(1, &prompt(0, 4), 60, |_| ());
    rig.step();
    assert_eq!(rig.scheduler.most_drafted_tokens(), 64);
    rig.add(2, &prompt(100, 50), 1, |_| ());
    assert_eq!(rig.scheduler.most_drafted_tokens(), 14);
    rig.scheduler.abort(SeqId(2));
    rig.scheduler.set_draft(SeqId(1), &[7; 20]);
    assert_eq!(rig.schedule(), [(1, 4, 1)]);
    assert_eq!(rig.scheduler.paced_tokens(), 20);
    rig.commit();
    rig.scheduler.note_pace(20, target * 2);
    assert_eq!(rig.scheduler.most_drafted_tokens(), 10);
    assert_eq!(Rig::new(LIMITS).scheduler.most_drafted_tokens(), usize::MAX, "without a target");
}

#[test]
fn begun_prompts_share_a_step_by_the_weights_of_their_clients() {
    let mut rig = Rig::new(Limits { max_prefill_tokens: 60, ..LIMITS });
    for (id, client, weight) in [(1, 1, 1.0), (2, 2, 3.0), (3, 3, 1.0)] {
        rig.add(id, &prompt(100 * id as u32, 70), 1, |new| new.share = Some(Share { client, weight }));
    }
    rig.scheduler.limits.max_prefill_tokens = 9;
    let mut begun = 0;
    while begun < 3 {
        begun = ids(rig.step()).len();
    }
    rig.scheduler.limits.max_prefill_tokens = 25;
    assert_eq!(rig.schedule().iter().map(|chunk| chunk.2).collect::<Vec<_>>(), [5, 15, 5]);
    rig.commit();
    // What one does not need is the others'.
    rig.add(4, &prompt(900, 4), 1, of(4));
    rig.step();
    rig.scheduler.limits.max_prefill_tokens = 60;
    assert_eq!(rig.schedule().iter().map(|chunk| chunk.2).sum::<usize>(), 60);
    assert_eq!(rig.drain().len(), 3);
}

#[test]
fn prompts_are_cut_to_the_time_of_a_step() {
    let target = std::time::Duration::from_millis(10);
    let limits =
        Limits { max_num_batched_tokens: 128, max_prefill_tokens: 100, target_step: target, ..LIMITS };
    let mut rig = Rig::new(limits);
    rig.add(1, &prompt(0, 4), 60, |_| ());
    rig.step();
    rig.add(2, &prompt(100, 190), 1, |_| ());
    assert_eq!(rig.step(), [(1, 4, 1), (2, 0, 100)]);
    assert_eq!(rig.scheduler.paced_tokens(), 100);
    rig.scheduler.note_pace(100, target * 2);
    assert_eq!(rig.step(), [(1, 5, 1), (2, 100, 50)], "half");
    rig.scheduler.note_pace(50, target / 2);
    assert_eq!(rig.step(), [(1, 6, 1), (2, 150, 40)], "the rest, of 63");
    // No reply waits, but a request may come.
    rig.scheduler.abort(SeqId(1));
    rig.scheduler.note_pace(40, target * 100);
    rig.add(3, &prompt(300, 100), 1, |_| ());
    assert_eq!(rig.step(), [(3, 0, 32)], "no less than a short chat, though half of 40 were less");
    assert_eq!(rig.scheduler.paced_tokens(), 32);
    rig.scheduler.note_pace(32, target * 100);
    assert_eq!(rig.step(), [(3, 32, 16)], "the least");
    // A client's short chat is whole, whatever is left for the prompts of others.
    rig.scheduler.abort(SeqId(3));
    rig.add(4, &prompt(500, 100), 1, of(1));
    assert_eq!(rig.step(), [(4, 0, 32)]);
    rig.add(5, &prompt(700, 30), 4, of(2));
    rig.add(6, &prompt(800, 30), 4, of(3));
    assert_eq!(rig.step(), [(5, 0, 30)]);
    rig.add(7, &prompt(900, 30), 4, of(4));
    assert_eq!(rig.step(), [(5, 30, 1), (6, 0, 30)]);
    assert_eq!(rig.step(), [(5, 31, 1), (6, 30, 1), (7, 0, 30), (4, 32, 8)], "and these have their half");
}

#[test]
fn without_clients_nobody_makes_way() {
    let mut rig = Rig::new(Limits { max_num_seqs: 2, ..LIMITS });
    (1..=3).for_each(|id| rig.add(id, &prompt(100 * id as u32, 6), 20, |_| ()));
    rig.step();
    rig.step();
    assert_eq!(rig.scheduler.stats().preemptions, 0);
}
