//! The detector against its definition, the guard against never having gone there, and rescues of a scripted model.

use std::sync::Arc;

use super::*;

fn shapes() -> Arc<TokenShapes> {
    let words = ["\n", ".", " cat", " dog", "```", "|", ",", "get", " saliva", "  "];
    let mut bytes: Vec<Vec<u8>> = words.iter().map(|w| w.as_bytes().to_vec()).collect();
    bytes.extend((bytes.len()..1000).map(|id| format!(" w{id}").into_bytes()));
    Arc::new(TokenShapes::new(bytes.iter().map(Vec::as_slice)))
}

fn options() -> Options {
    Options { noisy: TierAction::Act, ..Options::new(shapes()) }
}

fn prose(rng: &mut fastrand::Rng, len: usize) -> Vec<u32> {
    (0..len).map(|_| rng.u32(100..1000)).collect()
}

/// Feeds until something other than plain delivery happens; the tokens must outlast that.
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
            let defined = (1..=1024).any(|p| all.run(p) >= hard_threshold(p));
            let found = periods.repeats().any(|(_, r)| r.run >= hard_threshold(r.period));
            assert_eq!(found, defined, "round {round}, period {period}, alphabet {alphabet}, token {end}");
            for (_, repeat) in periods.repeats().filter(|(_, r)| r.period <= 1024) {
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
            periods.repeats().any(|(_, r)| r.run >= hard_threshold(r.period))
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

/// Everything that can be seen of a guard.
fn seen(guard: &Guard) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut forbidden = Vec::new();
    guard.forbidden(&mut forbidden);
    (
        guard.phase(),
        guard.num_rescues(),
        guard.forced(),
        forbidden,
        guard.may_end(),
        guard.heated(0.5).to_bits(),
    )
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
        // Text that was sent stays sent, so only the held part may differ; feed what breaks any repetition off first.
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
        assert_eq!(event.copies, hard_threshold(event.period) / event.period + 1);
        assert_eq!((event.start as usize, event.end as usize), (120, keep + held));
        assert_eq!(event.unit, unit[..period.min(Event::MAX_UNIT)]);
        // The first copy, then one more or twelve tokens, then nothing.
        let sent = keep - 120;
        assert!(sent <= period + hold_start(event.period, 256) as usize, "period {period}: {sent} were sent");
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
    // "get" (7) joins what is before and behind it: "get" "get" is one word.
    let mut guard = Guard::new(options(), 4096);
    let verdict = until_verdict(&mut guard, [8, 7, 7, 7, 7].into_iter().cycle().take(500));
    let Some(Verdict::Rescue { keep, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!(keep % 5, 0, "cut before \" saliva\": {keep}");
}

#[test]
fn a_loop_that_is_one_endless_word_is_held() {
    // "get" (7) without a blank: nowhere is a word's end.
    let mut guard = Guard::new(options(), 4096);
    let verdict = until_verdict(&mut guard, [vec![2, 0, 3], vec![7; 200]].concat());
    let Some(Verdict::Rescue { keep, .. }) = verdict else { panic!("{verdict:?}") };
    assert!(keep < 3 + 16, "{keep} tokens were sent");
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
fn after_two_rescues_it_ends() {
    let mut guard = Guard::new(options(), 4096);
    for rescue in 0..2 {
        let word = 200 + rescue;
        let verdict = until_verdict(&mut guard, [word; 400]);
        let Some(Verdict::Rescue { keep, .. }) = verdict else { panic!("{verdict:?}") };
        guard.rewind(keep);
        assert!(!guard.may_end(), "only behind a sentence");
    }
    guard.observe(1);
    assert!(guard.may_end(), "behind a full stop, after the second rescue");
    let verdict = until_verdict(&mut guard, [300; 400]);
    assert!(matches!(verdict, Some(Verdict::Stop { .. })), "{verdict:?}");
}

#[test]
fn thinking_is_closed_in_words() {
    let close: Arc<[u32]> = [500, 501, 600].into();
    let markers = Markers { think: Some(599), think_end: Some(600), ..Markers::default() };
    let mut guard =
        Guard::new(Options { starts_thinking: true, close_thinking: close, markers, ..options() }, 4096);
    let mut rng = fastrand::Rng::with_seed(6);
    prose(&mut rng, 50).into_iter().filter(|t| *t < 590).for_each(|t| drop(guard.observe(t)));
    assert_eq!(guard.phase(), Phase::Thinking);
    let verdict = until_verdict(&mut guard, [2, 3].into_iter().cycle().take(900));
    let Some(Verdict::Rescue { keep, event }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((event.action, event.phase), (Action::ClosedThinking, Phase::Thinking));
    guard.rewind(keep);
    for expected in [500, 501, 600] {
        assert_eq!(guard.forced(), Some(expected));
        guard.observe(expected);
    }
    assert_eq!((guard.forced(), guard.phase()), (None, Phase::Prose));
}

#[test]
fn structure_has_more_room_and_is_not_taken_back() {
    let mut code = Guard::new(options(), 65_536);
    [4, 0].into_iter().for_each(|t| drop(code.observe(t)));
    assert_eq!(code.phase(), Phase::Code);
    let verdict = until_verdict(&mut code, [8; 4000]);
    let Some(Verdict::Stop { keep, event }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((keep, event.discarded, event.phase), (2 + 384, 1, Phase::Code));
    let mut json = Guard::new(Options { structured: true, ..options() }, 65_536);
    let verdict = until_verdict(&mut json, [8; 4000]);
    assert!(matches!(verdict, Some(Verdict::Stop { keep: 768, .. })), "{verdict:?}");
}

#[test]
fn a_block_is_a_loop_wherever_it_stands_three_times() {
    let mut rng = fastrand::Rng::with_seed(9);
    for (before, phase) in [(vec![], Phase::Prose), (vec![4, 0], Phase::Code)] {
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
fn words_with_noise_are_a_loop_in_a_fence_too_and_formulas_are_not() {
    let mut rng = fastrand::Rng::with_seed(10);
    let unit = prose(&mut rng, 40);
    let marks: Vec<u32> = unit.iter().enumerate().map(|(at, &w)| if at % 3 == 0 { 5 } else { w }).collect();
    let run = |unit: &[u32]| {
        let mut guard = Guard::new(options(), 65_536);
        [4, 0].into_iter().for_each(|token| drop(guard.observe(token)));
        let noisy = |at: usize| if at % 31 == 30 { 100 + at as u32 % 800 } else { unit[at % unit.len()] };
        until_verdict(&mut guard, (0..4000).map(noisy))
    };
    let verdict = run(&unit);
    assert!(
        matches!(verdict, Some(Verdict::Stop { event: Event { kind: Kind::NoisyLoop, .. }, .. })),
        "{verdict:?}"
    );
    assert!(!matches!(run(&marks), Some(Verdict::Stop { .. })));
}

#[test]
fn a_multiple_that_broke_off_is_no_run_of_its_unit() {
    // A unit that was found by noise tells nothing of a run at its multiple.
    let repeat = |run: u32| Repeat { period: 210, run, score: 500, start: 0 };
    let watched = super::watch::Watched::new(repeat(0), 42, Permit::NONE, 900, false, None);
    assert_eq!(
        (watched.run(&repeat(0)), watched.run(&repeat(100)), watched.run(&repeat(210))),
        (0, 100, 378)
    );
}

#[test]
fn endless_white_space_in_a_structure_is_forbidden_until_something_else_comes() {
    let mut guard = Guard::new(Options { structured: true, ..options() }, 4096);
    let forbidden = |guard: &Guard| {
        let mut list = Vec::new();
        guard.forbidden(&mut list);
        list
    };
    for _ in 0..63 {
        guard.observe(0);
    }
    assert!(forbidden(&guard).is_empty());
    let verdict = guard.observe(9);
    assert!(matches!(verdict, Verdict::Deliver { event: Some(Event { kind: Kind::Whitespace, .. }), .. }));
    assert_eq!(forbidden(&guard), [0, 9]);
    guard.observe(6);
    assert!(forbidden(&guard).is_empty());
}

#[test]
fn broken_numbers_have_a_name_of_their_own() {
    let suspect =
        |token: u32, options: Options| match until_verdict(&mut Guard::new(options, 4096), [token; 400]) {
            Some(Verdict::Stop { event, .. }) => (event.kind, event.end),
            other => panic!("{other:?}"),
        };
    assert_eq!(suspect(0, options()), (Kind::NumericSuspect, 97));
    assert_eq!(suspect(77, Options { padding: Some(77), ..options() }), (Kind::NumericSuspect, 33));
}

/// Permits what it is told to.
#[derive(Debug)]
struct Permits(Allowance);

impl Licence for Permits {
    fn permit(&self, unit: &[u32]) -> Permit {
        if unit == [8] {
            Permit { exact: self.0, varied: self.0, from_start: Allowance::None }
        } else {
            Permit::NONE
        }
    }
}

#[test]
fn what_was_asked_for_is_not_stopped_and_not_held() {
    let with = |allowance| Options { licence: Some(Arc::new(Permits(allowance))), ..options() };
    let ends_at = |options: Options, token: u32| {
        let mut guard = Guard::new(options, 1 << 20);
        (1..40_000usize)
            .find(|_| matches!(guard.observe(token), Verdict::Rescue { .. } | Verdict::Stop { .. }))
    };
    assert_eq!(ends_at(with(Allowance::None), 8), Some(97));
    assert_eq!(ends_at(with(Allowance::Copies(500)), 8), Some(501));
    assert_eq!(ends_at(with(Allowance::Times(8)), 8), Some(769));
    assert_eq!(ends_at(with(Allowance::Unlimited), 8), None);
    assert_eq!(ends_at(with(Allowance::Unlimited), 3), Some(97), "another word was not asked for");
    let mut guard = Guard::new(with(Allowance::Copies(500)), 4096);
    let mut events = Vec::new();
    for count in 1..=400 {
        let Verdict::Deliver { upto, event } = guard.observe(8) else { panic!() };
        assert_eq!(upto, count, "nothing is held");
        events.extend(event);
    }
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].action, events[0].end), (Action::Licensed, 97));
}

#[test]
fn a_reply_that_is_repetition_from_its_start_was_asked_for() {
    #[derive(Debug)]
    struct FromStart;
    impl Licence for FromStart {
        fn permit(&self, _: &[u32]) -> Permit {
            Permit { from_start: Allowance::Tokens(1000), ..Permit::NONE }
        }
    }
    let mut rng = fastrand::Rng::with_seed(11);
    let markers = Markers { think: Some(997), think_end: Some(998), ..Markers::default() };
    let with = Options { licence: Some(Arc::new(FromStart)), markers, ..options() };
    let ends_after = |before: &[u32], options: &Options| {
        let mut guard = Guard::new(options.clone(), 1 << 16);
        before.iter().for_each(|&token| drop(guard.observe(token)));
        let ends = (1..4000)
            .find(|_| matches!(guard.observe(8), Verdict::Rescue { .. } | Verdict::Stop { .. }))
            .expect("a loop");
        (ends, guard)
    };
    let words = |rng: &mut fastrand::Rng, len: usize| -> Vec<u32> {
        prose(rng, len).into_iter().map(|word| word.min(990)).collect()
    };
    let (ends, mut guard) = ends_after(&[], &with);
    assert_eq!(ends, 1001);
    guard.rewind(1000);
    let again = until_verdict(&mut guard, [9; 200]);
    assert!(matches!(again, Some(Verdict::Rescue { event: Event { end: ..1100, .. }, .. })), "{again:?}");
    assert_eq!(ends_after(&words(&mut rng, 30), &with).0, 1001, "behind an introduction");
    assert_eq!(ends_after(&words(&mut rng, 80), &with).0, 97, "behind an answer");
    let thought = [vec![997], words(&mut rng, 80), vec![998]].concat();
    assert_eq!(ends_after(&thought, &with).0, 1001, "behind a thought");
    assert_eq!(ends_after(&[997], &with).0, 97, "a thought");
    let sections = [words(&mut rng, 10), vec![9; 150], words(&mut rng, 10), vec![7; 150]].concat();
    assert!(ends_after(&sections, &with).0 > 600, "one after the other, a thousand in all");
}

#[test]
fn a_licence_has_a_bound_and_is_for_its_unit() {
    let with = |allowance| Options { licence: Some(Arc::new(Permits(allowance))), ..options() };
    let end = |allowance, stream: &[u32]| {
        let mut guard = Guard::new(with(allowance), 1 << 20);
        let ends =
            |token: &u32| matches!(guard.observe(*token), Verdict::Rescue { .. } | Verdict::Stop { .. });
        stream.iter().position(ends).map(|at| at + 1)
    };
    assert_eq!(end(Allowance::Tokens(2000), &[8; 9000]), Some(2001));
    assert_eq!(end(Allowance::Copies(20_000), &[8; 30_000]), Some(20_001));
    let then = |other: usize| [vec![8; 300], vec![3; other]].concat();
    assert_eq!(end(Allowance::Copies(500), &then(96)), None, "its own thresholds hold for what follows");
    assert_eq!(end(Allowance::Copies(500), &then(400)), Some(397), "and no licence");
}

#[test]
fn rows_are_judged_by_themselves_and_not_by_the_cells_in_them() {
    // Rows of forty equal cells: the cells are permitted, the row is another unit.
    #[derive(Debug)]
    struct Rows;
    impl Licence for Rows {
        fn permit(&self, unit: &[u32]) -> Permit {
            let copies = if unit.len() == 1 { 5000 } else { 30 };
            Permit { exact: Allowance::Copies(copies), ..Permit::NONE }
        }
    }
    let row = [vec![8; 40], vec![0]].concat();
    let mut guard = Guard::new(Options { licence: Some(Arc::new(Rows)), ..options() }, 1 << 16);
    let stream = row.iter().cycle().take(41 * 100);
    let end = stream
        .copied()
        .position(|t| matches!(guard.observe(t), Verdict::Rescue { .. } | Verdict::Stop { .. }));
    assert_eq!(end, Some(41 * 31 - 1), "thirty copies behind the first");
}

#[test]
fn a_licensed_word_is_not_stopped_by_its_multiples() {
    let licence = Some(Arc::new(Permits(Allowance::Copies(3000))) as Arc<dyn Licence>);
    let mut guard = Guard::new(Options { licence, ..options() }, 1 << 20);
    let stopped =
        (1..=3000usize).find(|_| matches!(guard.observe(8), Verdict::Rescue { .. } | Verdict::Stop { .. }));
    assert_eq!(stopped, None);
}

#[test]
fn counters_are_loops_with_noise() {
    let mut rng = fastrand::Rng::with_seed(7);
    let run = |noisy: TierAction, rng: &mut fastrand::Rng| {
        let line = prose(rng, 9);
        let mut guard = Guard::new(Options { noisy, ..options() }, 1 << 16);
        let stream = (0..200).flat_map(|n| line.iter().copied().chain([100 + n]).collect::<Vec<_>>());
        until_verdict(&mut guard, stream.collect::<Vec<_>>())
    };
    let verdict = run(TierAction::Act, &mut rng);
    let Some(Verdict::Rescue { event, .. }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((event.kind, event.period), (Kind::NoisyLoop, 10));
    let verdict = run(TierAction::Warn, &mut rng);
    assert!(matches!(
        verdict,
        Some(Verdict::Deliver { event: Some(Event { action: Action::Warned, .. }), .. })
    ));
    assert!(!matches!(run(TierAction::Off, &mut rng), Some(Verdict::Rescue { .. })));
}

#[test]
fn soup_is_noticed_and_acted_on_only_when_the_model_is_sure() {
    let soup: Vec<u32> = {
        let mut rng = fastrand::Rng::with_seed(8);
        (0..4000).map(|_| 100 + rng.u32(0..3)).collect()
    };
    let run = |novelty: TierAction, probability: f32| {
        let mut guard = Guard::new(Options { novelty, ..options() }, 1 << 16);
        soup.iter().find_map(|&token| {
            if guard.wants_probability() {
                guard.note_probability(probability);
            }
            match guard.observe(token) {
                Verdict::Deliver { event: None, .. } => None,
                verdict => Some(verdict),
            }
        })
    };
    for (novelty, probability) in [(TierAction::Warn, 1.0), (TierAction::Act, 0.9)] {
        let verdict = run(novelty, probability);
        assert!(
            matches!(
                verdict,
                Some(Verdict::Deliver { event: Some(Event { kind: Kind::LowNovelty, .. }), .. })
            ),
            "{verdict:?}"
        );
    }
    let verdict = run(TierAction::Act, 0.99);
    assert!(
        matches!(verdict, Some(Verdict::Rescue { event: Event { kind: Kind::LowNovelty, .. }, .. })),
        "{verdict:?}"
    );
    assert_eq!(run(TierAction::Off, 1.0), None);
}

#[test]
fn a_rule_of_the_request_ends_the_reply() {
    let pattern = Some(PatternRule { min_size: 2, max_size: 4, min_count: 3 });
    let mut guard = Guard::new(Options { pattern, mode: Mode::Warn, ..options() }, 4096);
    let verdict = until_verdict(&mut guard, [5, 2, 3, 2, 3, 2, 3, 2, 3]);
    let Some(Verdict::Stop { keep, event }) = verdict else { panic!("{verdict:?}") };
    assert_eq!((keep, event.kind, event.period, event.copies), (7, Kind::Pattern, 2, 3));
}

/// A model with a rut: it falls into `unit` after `good` tokens, and out of it only where a token is forbidden.
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
            assert!(run <= period + hold_start(period, 256), "{unit:?}: period {period} ran {run} tokens");
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
