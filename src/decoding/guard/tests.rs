//! The detector against its definition, a rewound guard against a fresh one, and rescues of a
//! scripted model.

use std::sync::Arc;

use super::*;

fn vocabulary() -> Arc<Vocabulary> {
    let words = ["\n", ".", " cat", " dog", "```", "|", ",", "get", " saliva", "  "];
    let mut bytes: Vec<Vec<u8>> = words.iter().map(|w| w.as_bytes().to_vec()).collect();
    bytes.extend((bytes.len()..1000).map(|id| format!(" w{id}").into_bytes()));
    Arc::new(Vocabulary::new(bytes.iter().map(Vec::as_slice)))
}

fn options() -> Options {
    Options { max_rescues: 2, ..Options::new(vocabulary()) }
}

fn prose(rng: &mut fastrand::Rng, len: usize) -> Vec<u32> {
    (0..len).map(|_| rng.u32(100..1000)).collect()
}

/// Feeds tokens up to the first verdict other than plain delivery; `tokens` must contain one.
fn until_verdict(guard: &mut Guard, tokens: impl IntoIterator<Item = u32>) -> Option<Verdict> {
    tokens.into_iter().find_map(|token| match guard.observe(token) {
        Verdict::Deliver { event: None, .. } => None,
        verdict => Some(verdict),
    })
}

#[test]
fn exact_loops_are_found_at_the_token_of_the_definition() {
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..400 {
        let alphabet = [3, 12, 900][round % 3];
        let period = match round % 4 {
            0 => rng.usize(1..9),
            1 => rng.usize(9..65),
            2 => rng.usize(65..257),
            _ => rng.usize(257..500),
        };
        let mut stream: Vec<u32> = (0..rng.usize(0..600)).map(|_| rng.u32(0..alphabet)).collect();
        let mut unit: Vec<u32> = (0..period).map(|_| rng.u32(0..alphabet)).collect();
        if round % 5 == 0 {
            // Two or three near copies: half of the period repeats too, with noise.
            unit = unit.repeat(rng.usize(2..4).min(1024 / period));
            (0..rng.usize(1..4)).for_each(|_| unit[rng.usize(0..period)] = rng.u32(0..alphabet));
        }
        let period = unit.len();
        stream.extend(unit.iter().cycle().take(rng.usize(0..period * 20 + 200)));
        stream.extend((0..rng.usize(0..200)).map(|_| rng.u32(0..alphabet)));
        let (mut periods, mut all) = (Periods::new(4096), AllPeriods::new(1024));
        for end in 1..=stream.len() {
            periods.push(&stream[..end]);
            all.push(&stream[..end]);
            let defined = (1..=1024).any(|p| all.run(p) >= exact_threshold(p));
            let found = periods.repeats().iter().any(|r| r.run >= exact_threshold(r.period));
            assert_eq!(found, defined, "round {round}, period {period}, alphabet {alphabet}, token {end}");
            for repeat in periods.repeats().iter().filter(|r| r.period <= 1024) {
                assert_eq!(repeat.run, all.run(repeat.period), "round {round}, token {end}");
            }
        }
    }
}

#[test]
fn periods_beyond_the_counters_are_found() {
    let mut rng = fastrand::Rng::with_seed(2);
    for period in [1500, 3000, 9000] {
        let unit = prose(&mut rng, period);
        let stream: Vec<u32> = unit.iter().cycle().take(period * 3 + 1).copied().collect();
        let mut periods = Periods::new(40_000);
        let found = (1..=stream.len()).find(|&end| {
            periods.push(&stream[..end]);
            periods.repeats().iter().any(|r| r.run >= exact_threshold(r.period))
        });
        assert_eq!(found, Some(period * 3), "period {period}: at exactly three copies");
    }
}

#[test]
fn a_rule_of_the_request_is_met_where_its_copies_are_equal() {
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..300 {
        let rule =
            PatternRule { min_size: rng.u32(1..4), max_size: rng.u32(4..12), min_count: rng.u32(2..5) };
        let stream: Vec<u32> = (0..200).map(|_| rng.u32(0..2)).collect();
        let mut runs = AllPeriods::new(rule.max_size);
        for end in 1..=stream.len() {
            runs.push(&stream[..end]);
            let equal = |p: u32| {
                let (p, count) = (p as usize, rule.min_count as usize);
                end >= p * count
                    && (1..count).all(|c| stream[end - p * (c + 1)..end - p * c] == stream[end - p..end])
            };
            let expected = (rule.min_size..=rule.max_size).find(|&p| equal(p));
            assert_eq!(runs.meets(&rule), expected, "{rule:?} {:?}", &stream[..end]);
        }
    }
}

/// All observable state of a guard.
fn seen(guard: &Guard) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut forbidden = Vec::new();
    guard.forbidden(&mut forbidden);
    (guard.phase(), guard.num_rescues(), guard.forced(), forbidden, guard.may_end())
}

#[test]
fn rewound_then_continued_equals_never_having_gone_there() {
    let mut rng = fastrand::Rng::with_seed(4);
    for round in 0..300 {
        let piece = |rng: &mut fastrand::Rng| -> Vec<u32> {
            let unit: Vec<u32> = (0..rng.usize(1..30)).map(|_| rng.u32(0..40)).collect();
            let mut piece: Vec<u32> = (0..rng.usize(0..200)).map(|_| rng.u32(0..1000)).collect();
            piece.extend(unit.iter().cycle().take(rng.usize(0..60)));
            piece
        };
        let (kept, lost, new) = (piece(&mut rng), piece(&mut rng), piece(&mut rng));
        let mut options = options();
        options.mode = [Mode::Warn, Mode::Rescue][round % 2];
        options.pattern =
            (round % 5 == 0).then_some(PatternRule { min_size: 1, max_size: 9, min_count: 900 });
        let mut rewound = Guard::new(options.clone(), 4096);
        let mut straight = Guard::new(options, 4096);
        for &token in &kept {
            assert_eq!(rewound.observe(token), straight.observe(token));
        }
        lost.iter().for_each(|&token| drop(rewound.observe(token)));
        rewound.rewind(kept.len());
        // Sent text stays sent, so only the held part may differ; first feed tokens that break any
        // repetition off.
        for token in [999, 998, 997, 996, 995, 994] {
            rewound.observe(token);
            straight.observe(token);
        }
        assert_eq!(seen(&rewound), seen(&straight), "round {round}");
        for &token in &new {
            assert_eq!(rewound.observe(token), straight.observe(token), "round {round}");
            assert_eq!(seen(&rewound), seen(&straight), "round {round}");
        }
        assert_eq!(rewound.num_held(), straight.num_held());
    }
}

#[test]
fn a_loop_is_held_back_and_taken_back() {
    let mut rng = fastrand::Rng::with_seed(5);
    for unit in
        [vec![8], vec![2, 3], vec![2, 3, 300, 301, 302, 303, 304], prose(&mut rng, 50), prose(&mut rng, 300)]
    {
        let mut guard = Guard::new(options(), 8192);
        let before = prose(&mut rng, 120);
        for (at, &token) in before.iter().enumerate() {
            assert_eq!(guard.observe(token), Verdict::Deliver { upto: at + 1, event: None });
        }
        let verdict = until_verdict(&mut guard, unit.iter().cycle().take(5000).copied());
        let Some(Verdict::Rescue { keep, event }) = verdict else { panic!("{verdict:?}") };
        let (period, held) = (unit.len(), event.discarded as usize);
        assert_eq!((event.kind, event.period as usize), (Kind::Loop, period));
        assert_eq!(event.copies, exact_threshold(event.period) / event.period + 1);
        assert_eq!((event.start as usize, event.end as usize), (120, keep + held));
        assert_eq!(event.unit, unit[..period.min(Event::MAX_UNIT)]);
        // The first copy, then one more or twelve tokens, then nothing.
        let sent = keep - 120;
        assert!(
            sent <= period + hold_start(event.period, exact_threshold(event.period), 256) as usize,
            "period {period}: {sent} were sent"
        );
        guard.rewind(keep);
        assert_eq!((guard.num_rescues(), guard.num_held()), (1, 0));
        let mut forbidden = Vec::new();
        guard.forbidden(&mut forbidden);
        assert_eq!(forbidden, [unit[sent % period]], "the loop cannot go on");
    }
}

#[test]
fn repetition_that_breaks_off_is_delivered() {
    let mut guard = Guard::new(options(), 4096);
    let mut delivered = Vec::new();
    for token in [8; 40].into_iter().chain([100, 101, 102]) {
        let Verdict::Deliver { upto, event: None } = guard.observe(token) else { panic!() };
        delivered.push(upto);
    }
    assert_eq!(delivered[10..16], [11, 12, 12, 12, 12, 12], "held from twelve repeats on");
    assert_eq!(delivered[39..], [12, 41, 42, 43], "and sent when it ends");
}

#[test]
fn words_are_not_cut_by_a_hold() {
    // "get" (7) joins its neighbours: "get" "get" is one word.
    let mut guard = Guard::new(options(), 4096);
    let verdict = until_verdict(&mut guard, [8, 7, 7, 7, 7].into_iter().cycle().take(500));
    let Some(Verdict::Rescue { keep, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(keep % 5, 0, "cut before \" saliva\": {keep}");
}

#[test]
fn a_loop_that_is_one_endless_word_is_held() {
    // "get" (7) without a blank: no position ends a word.
    let mut guard = Guard::new(options(), 4096);
    let verdict = until_verdict(&mut guard, [vec![2, 0, 3], vec![7; 200]].concat());
    let Some(Verdict::Rescue { keep, .. }) = verdict else { panic!("{verdict:?}") };
    assert!(keep < 3 + 16, "{keep} tokens were sent");
}

#[test]
fn what_was_delivered_of_a_noisy_loop_does_not_end_the_reply_after_its_rescue() {
    // The hold runs out, so the loop is delivered and found later.
    let mut rng = fastrand::Rng::with_seed(12);
    let line = prose(&mut rng, 9);
    let stream: Vec<u32> = (0..200).flat_map(|n| [&line[..], &[100 + n]].concat()).collect();
    let mut guard = Guard::new(Options { hold_tokens: 0, ..options() }, 1 << 16);
    let Some(Verdict::Rescue { keep, event }) = until_verdict(&mut guard, stream) else { panic!() };
    assert_eq!((event.kind, event.discarded), (Kind::NoisyLoop, 1));
    guard.rewind(keep);
    assert_eq!(until_verdict(&mut guard, prose(&mut rng, 500)), None);
}

#[test]
fn modes() {
    let run = |mode: Mode| {
        let mut guard = Guard::new(Options { mode, ..options() }, 4096);
        until_verdict(&mut guard, [8; 4000])
    };
    assert!(matches!(
        run(Mode::Warn),
        Some(Verdict::Deliver { upto: 97, event: Some(Event { action: Action::Warned, .. }) })
    ));
    assert!(matches!(run(Mode::Stop), Some(Verdict::Stop { keep: 12, event: Event { discarded: 85, .. } })));
    assert!(matches!(run(Mode::Rescue), Some(Verdict::Rescue { keep: 12, .. })));
    let mut warned = Guard::new(Options { mode: Mode::Warn, ..options() }, 4096);
    until_verdict(&mut warned, [8; 200]);
    assert_eq!(until_verdict(&mut warned, [8; 3000]), None, "said once");
    let nothing_held = Options { hold_tokens: 0, ..options() };
    let verdict = until_verdict(&mut Guard::new(nothing_held, 4096), [8; 4000]);
    assert!(matches!(verdict, Some(Verdict::Rescue { keep: 96, .. })), "{verdict:?}");
}

#[test]
fn after_its_rescues_it_ends() {
    let mut guard = Guard::new(Options::new(vocabulary()), 4096);
    let verdict = until_verdict(&mut guard, [200; 400]);
    let Some(Verdict::Rescue { keep, .. }) = verdict else { panic!("{verdict:?}") };
    guard.rewind(keep);
    let verdict = until_verdict(&mut guard, [300; 400]);
    assert!(matches!(verdict, Some(Verdict::Stop { .. })), "one is the default: {verdict:?}");
}

#[test]
fn thinking_is_closed_in_words() {
    let close: Arc<[u32]> = [500, 501, 600].into();
    let markers = Markers { think: Some(599), think_end: Some(600), ..Markers::default() };
    let mut guard =
        Guard::new(Options { starts_thinking: true, close_thinking: close, markers, ..options() }, 4096);
    let mut rng = fastrand::Rng::with_seed(6);
    prose(&mut rng, 50).into_iter().filter(|t| *t < 590).for_each(|t| drop(guard.observe(t)));
    let verdict = until_verdict(&mut guard, [2, 3].into_iter().cycle().take(900));
    let Some(Verdict::Rescue { keep, event }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((event.action, event.phase), (Action::ClosedThinking, Phase::Text));
    guard.rewind(keep);
    for expected in [500, 501, 600] {
        assert_eq!(guard.forced(), Some(expected));
        guard.observe(expected);
    }
    assert_eq!(guard.forced(), None);
}

#[test]
fn structured_text_has_more_room_and_is_not_taken_back() {
    let mut fenced = Guard::new(options(), 65_536);
    [4, 0].into_iter().for_each(|t| drop(fenced.observe(t)));
    assert_eq!(fenced.phase(), Phase::Structured);
    let verdict = until_verdict(&mut fenced, [8; 4000]);
    let Some(Verdict::Stop { keep, event }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((keep, event.discarded, event.phase), (2 + 384, 1, Phase::Structured));
    let mut constrained = Guard::new(Options { structured: true, ..options() }, 65_536);
    let verdict = until_verdict(&mut constrained, [8; 4000]);
    assert!(matches!(verdict, Some(Verdict::Stop { keep: 384, .. })), "{verdict:?}");
}

#[test]
fn a_unit_of_code_has_more_room_without_a_fence() {
    let mut guard = Guard::new(options(), 65_536);
    let verdict = until_verdict(&mut guard, [6, 5, 8].into_iter().cycle().take(4000));
    let Some(Verdict::Rescue { event, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(event.end, 3 + 4 * 96, "a pipe in three tokens");
}

#[test]
fn counters_are_loops_with_noise_in_text_and_not_in_structured_text() {
    let mut rng = fastrand::Rng::with_seed(7);
    let line = prose(&mut rng, 9);
    let stream: Vec<u32> = (0..200).flat_map(|n| [&line[..], &[100 + n]].concat()).collect();
    let verdict = until_verdict(&mut Guard::new(options(), 1 << 16), stream.clone());
    let Some(Verdict::Rescue { event, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((event.kind, event.period), (Kind::NoisyLoop, 10));
    let warned = Options { mode: Mode::Warn, ..options() };
    let verdict = until_verdict(&mut Guard::new(warned, 1 << 16), stream.clone());
    let is_warning = |event: &Event| (event.kind, event.action) == (Kind::NoisyLoop, Action::Warned);
    assert!(
        matches!(&verdict, Some(Verdict::Deliver { event: Some(event), .. }) if is_warning(event)),
        "{verdict:?}"
    );
    let structured = Options { structured: true, ..options() };
    assert_eq!(until_verdict(&mut Guard::new(structured, 1 << 16), stream), None);
}

#[test]
fn a_list_in_structured_text_is_no_loop_when_that_text_ends() {
    let mut rng = fastrand::Rng::with_seed(13);
    let line = prose(&mut rng, 9);
    let list: Vec<u32> = (0..100).flat_map(|n| [&line[..], &[100 + n]].concat()).collect();
    let markers = Markers { tools: Some(1001), tools_end: Some(1002), ..Markers::default() };
    for (opens, closes) in [(&[4, 0][..], &[0, 4, 0][..]), (&[1001], &[1002])] {
        let stream = [opens, &list, closes, &prose(&mut rng, 200)].concat();
        for mode in [Mode::Warn, Mode::Stop, Mode::Rescue] {
            let mut guard = Guard::new(Options { mode, markers, ..options() }, 1 << 16);
            assert_eq!(until_verdict(&mut guard, stream.clone()), None, "{mode:?}, closed by {closes:?}");
        }
    }
}

#[test]
fn a_loop_of_text_with_a_fence_in_it_is_reported_once() {
    let mut rng = fastrand::Rng::with_seed(14);
    let unit = [&prose(&mut rng, 40)[..], &[0, 4, 0], &prose(&mut rng, 10), &[0, 4, 0]].concat();
    let mut guard = Guard::new(Options { mode: Mode::Warn, ..options() }, 1 << 16);
    let reported = |&token: &u32| matches!(guard.observe(token), Verdict::Deliver { event: Some(_), .. });
    assert_eq!(unit.repeat(60).iter().copied().filter(reported).count(), 1);
}

#[test]
fn a_block_is_a_loop_wherever_it_stands_three_times() {
    let mut rng = fastrand::Rng::with_seed(9);
    for (before, phase) in [(vec![], Phase::Text), (vec![4, 0], Phase::Structured)] {
        let mut guard = Guard::new(options(), 65_536);
        before.iter().for_each(|&token| drop(guard.observe(token)));
        let block = prose(&mut rng, 600);
        let verdict = until_verdict(&mut guard, block.iter().cycle().take(6000).copied());
        let Some(Verdict::Stop { event, .. } | Verdict::Rescue { event, .. }) = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!((event.phase, event.copies, event.end), (phase, 3, before.len() as u32 + 1800));
    }
}

#[test]
fn broken_numbers_have_a_name_of_their_own() {
    let suspect =
        |token: u32, options: Options| match until_verdict(&mut Guard::new(options, 4096), [token; 400]) {
            Some(Verdict::Stop { event, .. }) => (event.kind, event.end),
            other => panic!("{other:?}"),
        };
    assert_eq!(suspect(0, options()), (Kind::NumericSuspect, 97));
    assert_eq!(suspect(77, Options { padding: Some(77), ..options() }), (Kind::NumericSuspect, 97));
}

#[test]
fn a_rule_of_the_request_ends_the_reply() {
    let pattern = Some(PatternRule { min_size: 2, max_size: 4, min_count: 3 });
    let mut guard = Guard::new(Options { pattern, mode: Mode::Warn, ..options() }, 4096);
    let verdict = until_verdict(&mut guard, [5, 2, 3, 2, 3, 2, 3, 2, 3]);
    let Some(Verdict::Stop { keep, event }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((keep, event.kind, event.period, event.copies), (7, Kind::Pattern, 2, 3));
}

/// A scripted model: after `good` tokens it repeats `unit`, and leaves the loop only where a token
/// is forbidden.
fn scripted(unit: &[u32], good: usize, reply: &[u32], forbidden: &[u32]) -> u32 {
    if reply.len() < good {
        return 100 + reply.len() as u32;
    }
    let next = unit[(reply.len() - good) % unit.len()];
    let free = |token: &u32| !forbidden.contains(token);
    [next, 700 + (reply.len() as u32 * 7) % 290].into_iter().find(free).unwrap_or(999)
}

#[test]
fn a_scripted_model_is_led_out_of_its_rut() {
    for unit in [vec![8], vec![2, 3], vec![2, 3, 400, 401, 402, 403]] {
        let mut guard = Guard::new(options(), 2000);
        let (mut reply, mut delivered, mut rescues): (Vec<u32>, Vec<u32>, _) = (vec![], vec![], 0);
        while reply.len() < 2000 {
            let mut forbidden = Vec::new();
            guard.forbidden(&mut forbidden);
            let token = scripted(&unit, 60, &reply, &forbidden);
            reply.push(token);
            match guard.observe(token) {
                Verdict::Deliver { upto, .. } => delivered.extend(&reply[delivered.len()..upto]),
                Verdict::Rescue { keep, .. } => {
                    assert_eq!(keep, delivered.len(), "only what was not delivered is taken back");
                    reply.truncate(keep);
                    guard.rewind(keep);
                    rescues += 1;
                }
                Verdict::Stop { keep, .. } => {
                    assert_eq!(keep, delivered.len());
                    break;
                }
            }
        }
        assert!(rescues > 0, "{unit:?}");
        let longest = (1..=64).map(|p| longest_run(&delivered, p) as u32).enumerate();
        for (before, run) in longest {
            let period = before as u32 + 1;
            assert!(
                run <= period + hold_start(period, exact_threshold(period), 256),
                "{unit:?}: period {period} ran {run} tokens"
            );
        }
    }
}

fn longest_run(tokens: &[u32], period: usize) -> usize {
    let (mut longest, mut run) = (0, 0);
    for at in period..tokens.len() {
        run = if tokens[at] == tokens[at - period] { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

const ROLES: [u32; 5] = [990, 991, 992, 993, 994];

/// A conversation whose last message is `request`.
fn conversation(request: &[u32]) -> Options {
    let [user, assistant, system, middle, end] = ROLES.map(Some);
    let roles = Roles { user, assistant, system, instructions: vec![], middle, end };
    let prompt = [&[990, 993][..], request, &[994, 991, 993]].concat();
    let vocabulary = vocabulary();
    let licence = Licence::new(vocabulary.clone(), roles, prompt.into());
    let markers = Markers { think: Some(997), think_end: Some(998), ..Markers::default() };
    Options { licence: Some(Arc::new(licence)), markers, ..Options::new(vocabulary) }
}

/// Number of tokens of `stream` after which the guard acts.
fn acts_after(options: Options, stream: &[u32]) -> Option<usize> {
    let mut guard = Guard::new(options, 1 << 16);
    let acts = |token: &u32| matches!(guard.observe(*token), Verdict::Rescue { .. } | Verdict::Stop { .. });
    stream.iter().position(acts).map(|at| at + 1)
}

/// `before`, then one word repeated.
fn then(before: &[u32], word: u32) -> Vec<u32> {
    [before, &[word; 9000]].concat()
}

#[test]
fn a_reply_that_is_repetition_from_its_start_was_asked_for() {
    let mut rng = fastrand::Rng::with_seed(11);
    let words: Vec<u32> = prose(&mut rng, 80).into_iter().map(|word| word.min(980)).collect();
    let options = conversation(&[2, 3]);
    assert_eq!(acts_after(options.clone(), &then(&[], 8)), Some(4097));
    assert_eq!(
        acts_after(options.clone(), &then(&words[..30], 8)),
        Some(30 + 4097),
        "behind an introduction"
    );
    assert_eq!(acts_after(options.clone(), &then(&words, 8)), Some(80 + 97), "behind an answer");
    let thought = [&[997][..], &words, &[998]].concat();
    assert_eq!(acts_after(options.clone(), &then(&thought, 8)), Some(82 + 4097), "behind a thought");
    assert_eq!(acts_after(options.clone(), &then(&[997], 8)), Some(98), "in a thought");
    let structured = Options { structured: true, ..options.clone() };
    assert_eq!(acts_after(structured, &then(&[], 8)), Some(385));
    let mut rescued = Guard::new(options, 1 << 16);
    let verdict = until_verdict(&mut rescued, then(&[997], 8));
    let Some(Verdict::Rescue { keep, .. }) = verdict else { panic!("{verdict:?}") };
    rescued.rewind(keep);
    rescued.observe(998);
    let verdict = until_verdict(&mut rescued, [9; 4000]);
    let Some(Verdict::Stop { event, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(event.end as usize, keep + 1 + 97, "behind a rescue");
}

#[test]
fn what_a_request_names_may_repeat_longer_and_as_often_as_it_says() {
    let words: Vec<u32> = (100..180).collect();
    let after = |request: &[u32], word: u32| acts_after(conversation(request), &then(&words, word));
    assert_eq!(after(&[8], 8), Some(80 + 1 + 8 * 96));
    assert_eq!(
        after(&[8, 900], 8),
        Some(80 + 1126),
        "\" saliva w900\": nine hundred copies and a quarter more"
    );
    assert_eq!(after(&[8, 900], 13), Some(80 + 97), "another word was not asked for");
    let unit: Vec<u32> = (100..120).collect();
    let from_start = |request: &[u32]| acts_after(conversation(request), &unit.repeat(2000));
    assert_eq!((from_start(&[8]), from_start(&[8, 900])), (Some(20 + 4096), Some(20 * 1126)));
}

#[test]
fn what_a_request_repeats_may_be_repeated_and_what_the_model_wrote_may_not() {
    let words: Vec<u32> = (100..180).collect();
    let lines: Vec<u32> = (300..305).collect();
    let options = conversation(&lines.repeat(40));
    let reply = [&words[..], &(400..405).collect::<Vec<u32>>().repeat(2000)].concat();
    assert_eq!(acts_after(options.clone(), &reply), Some(80 + 5 + 8 * 96));
    let Some(licence) = &options.licence else { panic!() };
    assert_eq!(licence.permit(&[400, 401], false), Permit { times: 8, copies: 50, tokens: 0 });
    let own =
        [&[990, 993, 8, 994, 991, 993][..], &lines.repeat(40), &[994, 990, 993, 9, 994, 991, 993]].concat();
    let [user, assistant, system, middle, end] = ROLES.map(Some);
    let roles = Roles { user, assistant, system, instructions: vec![], middle, end };
    assert_eq!(Licence::new(vocabulary(), roles, own.into()).permit(&lines, false), Permit::NONE);
}

#[test]
fn a_permitted_repetition_may_end_between_copies_when_it_was_long_enough() {
    let mut guard = Guard::new(conversation(&[8]), 1 << 16);
    let unit: Vec<u32> = (100..120).collect();
    let mut ends = Vec::new();
    for (at, &token) in unit.repeat(205).iter().enumerate() {
        assert!(matches!(guard.observe(token), Verdict::Deliver { event: None, .. }), "token {at}");
        if guard.may_end() {
            ends.push(at + 1);
        }
    }
    // Four fifths of 4,096 behind the first copy, then behind each.
    assert_eq!((ends[0], ends[1], ends.len()), (3300, 3320, 41));
    let warning = Options { mode: Mode::Warn, ..conversation(&[8]) };
    for (options, copies) in [(options(), 20), (warning, 205)] {
        let mut guard = Guard::new(options, 1 << 16);
        let ends = unit.repeat(copies).into_iter().any(|token| {
            guard.observe(token);
            guard.may_end()
        });
        assert!(!ends, "neither where nothing is permitted nor where nothing is done");
    }
}

#[test]
fn a_licence_is_for_its_unit() {
    let words: Vec<u32> = (100..180).collect();
    let after = |other: usize| {
        let stream = [&words[..], &[8; 300], &vec![3; other]].concat();
        acts_after(conversation(&[8, 900]), &stream)
    };
    assert_eq!(after(96), None, "its own thresholds hold for what follows");
    assert_eq!(after(400), Some(80 + 397), "and no licence");
}

#[test]
fn rows_are_judged_by_themselves_and_not_by_the_cells_in_them() {
    // The request names the cell and a number: the row of forty cells is another unit.
    let row = [vec![8; 40], vec![0, 3]].concat();
    let words: Vec<u32> = (100..180).collect();
    let stream = [words, row.repeat(200)].concat();
    let end = acts_after(conversation(&[8, 900]), &stream);
    assert_eq!(end, Some(80 + 42 + exact_threshold(42) as usize));
}
