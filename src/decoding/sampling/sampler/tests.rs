use super::super::SamplingParams;
use super::*;

fn params() -> SamplingParams {
    SamplingParams::default()
}

/// As in the engine, `min_tokens` forbids the stop tokens.
fn draw_at(
    sampler: &mut Sampler,
    logits: &[f32],
    params: &SamplingParams,
    history: &History,
    position: u64,
) -> Result<u32, NoFiniteLogit> {
    let early = position < u64::from(params.min_tokens);
    let forbidden = if early { &params.stop_token_ids[..] } else { &[] };
    let survey = sampler.survey(logits);
    sampler.draw(logits, survey, &params.draw(history, position, forbidden))
}

fn sample(logits: &[f32], params: &SamplingParams) -> u32 {
    draw_at(&mut Sampler::default(), logits, params, &History::default(), 0).unwrap()
}

/// Probabilities by definition, every step over the whole row in f64.
fn exact(logits: &[f32], params: &SamplingParams, history: &History) -> Vec<f64> {
    let mut row: Vec<f64> =
        logits.iter().map(|&logit| if logit.is_nan() { f64::NEG_INFINITY } else { logit.into() }).collect();
    for &(token, bias) in &params.logit_bias {
        row[token as usize] += f64::from(bias);
    }
    if params.min_tokens > 0 {
        params.stop_token_ids.iter().for_each(|&token| row[token as usize] = f64::NEG_INFINITY);
    }
    for entry in history.entries() {
        let logit = &mut row[entry.token as usize];
        if entry.in_prompt || entry.in_reply > 0 {
            let penalty = f64::from(params.repetition_penalty);
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        *logit -= f64::from(params.frequency_penalty) * f64::from(entry.in_reply);
        *logit -= if entry.in_reply > 0 { f64::from(params.presence_penalty) } else { 0.0 };
    }
    let temperature = f64::from(params.temperature.max(0.01));
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = row.iter().map(|logit| ((logit - max) / temperature).exp()).collect();
    weights
        .iter_mut()
        .for_each(|weight| *weight = if *weight < f64::from(params.min_p) { 0.0 } else { *weight });
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let keep = if params.top_k == 0 { row.len() } else { params.top_k as usize };
    order.iter().skip(keep).for_each(|&id| weights[id] = 0.0);
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    for &id in &order {
        if sum >= f64::from(params.top_p) * total {
            weights[id] = 0.0;
        }
        sum += weights[id];
    }
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// Compares draws at 20,000 positions with the exact probabilities. A wrong distribution fails; the
/// correct one passes deterministically with these seeds.
fn check_draws(logits: &[f32], params: &SamplingParams, history: &History) {
    let expected = exact(logits, params, history);
    let mut counts = vec![0u32; logits.len()];
    let mut sampler = Sampler::default();
    const DRAWS: u32 = 20_000;
    // `min_tokens` forbids by position; the other positions only select the noise.
    for position in 0..DRAWS {
        let params = SamplingParams { seed: u64::from(position) << 20, ..params.clone() };
        counts[draw_at(&mut sampler, logits, &params, history, 0).unwrap() as usize] += 1;
    }
    let (mut chi, mut cells) = (0.0, 0.0);
    for (id, (&count, &probability)) in counts.iter().zip(&expected).enumerate() {
        let share = probability * f64::from(DRAWS);
        assert!(
            count == 0 || probability > 0.0,
            "token {id} cannot be drawn but was, {count} times: {params:?}"
        );
        if share > 5.0 {
            chi += (f64::from(count) - share).powi(2) / share;
            cells += 1.0;
        }
    }
    // Wilson and Hilferty: the chi-square value exceeded once in about 100,000.
    let freedom: f64 = f64::max(cells - 1.0, 1.0);
    let limit = freedom * (1.0 - 2.0 / (9.0 * freedom) + 4.3 * (2.0 / (9.0 * freedom)).sqrt()).powi(3);
    assert!(chi < limit, "chi-square {chi} of {limit} with {freedom} degrees: {params:?}");
}

fn row(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.f32() * 8.0 - 4.0).collect()
}

#[test]
fn draws_follow_the_exact_probabilities() {
    let none = History::default();
    for (seed, len) in [(1, 2), (2, 10), (3, 300)] {
        let logits = row(len, seed);
        for temperature in [0.005, 0.3, 1.0, 2.0] {
            check_draws(&logits, &SamplingParams { temperature, ..params() }, &none);
        }
    }
    let logits = row(100, 4);
    check_draws(&logits, &SamplingParams { top_k: 7, ..params() }, &none);
    check_draws(&logits, &SamplingParams { top_p: 0.7, ..params() }, &none);
    check_draws(&logits, &SamplingParams { min_p: 0.2, ..params() }, &none);
    check_draws(
        &logits,
        &SamplingParams { top_k: 20, top_p: 0.9, min_p: 0.05, temperature: 0.8, ..params() },
        &none,
    );
}

#[test]
fn penalties_bias_and_min_tokens() {
    let mut logits = row(60, 5);
    logits[7] = f32::NAN;
    logits[8] = f32::NEG_INFINITY;
    let mut history = History::new(&[1, 2, 3, 4]);
    [3, 3, 3, 9, 10].iter().for_each(|&token| history.add(token));
    check_draws(&logits, &SamplingParams { repetition_penalty: 1.7, ..params() }, &history);
    check_draws(&logits, &SamplingParams { presence_penalty: 1.5, ..params() }, &history);
    check_draws(&logits, &SamplingParams { frequency_penalty: 0.8, ..params() }, &history);
    check_draws(
        &logits,
        &SamplingParams { frequency_penalty: -1.5, presence_penalty: -0.5, ..params() },
        &history,
    );
    let none = History::default();
    check_draws(&logits, &SamplingParams { logit_bias: vec![(0, 5.0), (1, -100.0)], ..params() }, &none);
    let forbidden = SamplingParams { min_tokens: 3, stop_token_ids: vec![0, 5, 11], ..params() };
    check_draws(&logits, &forbidden, &none);
    // A bias does not override the ban of a token, and the ban ends with the position.
    let greedy = SamplingParams { logit_bias: vec![(5, 50.0)], temperature: 0.0, ..forbidden };
    assert_ne!(sample(&logits, &greedy), 5);
    let at = |position| draw_at(&mut Sampler::default(), &logits, &greedy, &none, position).unwrap();
    assert_ne!(at(2), 5);
    assert_eq!(at(3), 5);
    // Ids outside the row have no effect.
    let outside = SamplingParams { logit_bias: vec![(9999, 5.0)], temperature: 0.0, ..params() };
    assert_eq!(sample(&logits, &outside), sample(&logits, &SamplingParams { temperature: 0.0, ..params() }));
}

#[test]
fn a_forbidden_token_is_as_if_its_logit_were_minus_infinity() {
    let mut rng = fastrand::Rng::with_seed(10);
    for round in 0..2_000 {
        let logits = row(rng.usize(3..80), round);
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        let mut forbidden: Vec<u32> = (0..rng.usize(1..3)).map(|_| rng.u32(0..90)).collect();
        forbidden.extend((round % 4 == 0).then_some(best as u32));
        let mut without = logits.clone();
        for &id in &forbidden {
            without.get_mut(id as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
        }
        if without.iter().all(|logit| *logit == f32::NEG_INFINITY) {
            continue;
        }
        let plain = SamplingParams {
            temperature: [0.0, 0.7, 1.0][round as usize % 3],
            top_k: [0, 5][rng.usize(0..2)],
            top_p: [1.0, 0.8][rng.usize(0..2)],
            seed: round,
            ..params()
        };
        let logit_bias = forbidden.iter().map(|&id| (id, f32::NEG_INFINITY)).collect();
        let token = sample(&logits, &SamplingParams { logit_bias, ..plain.clone() });
        assert_eq!(token, sample(&without, &plain), "round {round}: {forbidden:?} forbidden of {logits:?}");
    }
}

#[test]
fn greedy_takes_the_first_of_the_best() {
    let greedy = SamplingParams { temperature: 0.0, top_k: 3, top_p: 0.2, ..params() };
    for (logits, expected) in [
        (vec![1.0], 0),
        (vec![1.0, 3.0, 3.0, 2.0], 1),
        (vec![f32::NAN, -5.0, f32::NEG_INFINITY], 1),
        (vec![0.0, f32::INFINITY, 3.0], 1),
        (vec![-0.0, 0.0], 0),
    ] {
        assert_eq!(sample(&logits, &greedy), expected, "{logits:?}");
    }
    let mut long = row(2_000, 6);
    long[1_234] = 9.0;
    long[1_777] = 9.0;
    assert_eq!(sample(&long, &greedy), 1_234);
}

#[test]
fn broken_rows() {
    for temperature in [0.0, 1.0] {
        let params = SamplingParams { temperature, logit_bias: vec![(0, 1.0)], ..params() };
        for params in [SamplingParams { logit_bias: Vec::new(), ..params.clone() }, params] {
            for logits in
                [vec![], vec![f32::NAN; 40], vec![f32::NEG_INFINITY; 3], vec![f32::INFINITY, f32::NAN]]
            {
                let result = draw_at(&mut Sampler::default(), &logits, &params, &History::default(), 0);
                assert_eq!(result, Err(NoFiniteLogit), "{logits:?}");
            }
            let got = sample(&[f32::NAN, 0.0, f32::NAN], &params);
            assert_eq!(got, 1);
            assert_eq!(sample(&[-3.0e38, f32::INFINITY, 3.0e38], &params), 1);
        }
    }
    // All ids are forbidden.
    let forbidden = SamplingParams { min_tokens: 1, stop_token_ids: vec![0, 1], ..params() };
    assert_eq!(sample(&[1.0, 2.0], &forbidden), 1);
}

#[test]
fn depends_on_seed_and_position_alone() {
    let logits = row(500, 7);
    let tokens = |sampler: &mut Sampler, seed, positions: &mut dyn Iterator<Item = u64>| -> Vec<u32> {
        let params = SamplingParams { seed, top_p: 0.9, ..params() };
        positions.map(|at| draw_at(sampler, &logits, &params, &History::default(), at).unwrap()).collect()
    };
    let mut sampler = Sampler::default();
    let forward = tokens(&mut sampler, 3, &mut (0..50));
    let mut backward = tokens(&mut sampler, 3, &mut (0..50).rev());
    backward.reverse();
    assert_eq!(forward, backward);
    assert_eq!(forward, tokens(&mut Sampler::default(), 3, &mut (0..50)));
    assert_ne!(forward, tokens(&mut sampler, 4, &mut (0..50)));
}

/// The bound that speculation depends on: a change of the distribution by total variation d changes
/// at most a share of 2d / (1 + d) of draws.
#[test]
fn close_distributions_draw_the_same_token() {
    let mut rng = fastrand::Rng::with_seed(11);
    for (seed, size) in [(1, 0.02), (2, 0.1), (3, 0.5)] {
        let target = row(400, seed);
        let draft: Vec<f32> = target.iter().map(|logit| logit + (rng.f32() - 0.5) * size).collect();
        let (p, q) =
            (exact(&target, &params(), &History::default()), exact(&draft, &params(), &History::default()));
        let distance: f64 = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
        const DRAWS: u64 = 4_000;
        let agreed = (0..DRAWS)
            .filter(|&seed| {
                let params = SamplingParams { seed, ..params() };
                sample(&target, &params) == sample(&draft, &params)
            })
            .count() as f64
            / DRAWS as f64;
        // Four standard deviations below the bound.
        let bound = (1.0 - distance) / (1.0 + distance);
        assert!(
            agreed >= bound - 4.0 * (0.25 / DRAWS as f64).sqrt(),
            "{agreed} of {bound} at distance {distance}"
        );
    }
}

/// Compares the shortcuts with the definition: argmax of logit over temperature plus Gumbel noise.
#[test]
fn equal_to_the_argmax_over_noisy_scores() {
    let mut rng = fastrand::Rng::with_seed(12);
    for round in 0..3_000 {
        let logits = row(rng.usize(1..700), round);
        let temperature = [0.1, 1.0, 2.0][rng.usize(0..3)];
        let noise = Noise::new(round, 3);
        let score = |id: usize| {
            let gumbel = -noise.time(id as u32).ln();
            f64::from(logits[id]) / f64::from(temperature) + gumbel
        };
        let mut scores: Vec<(f64, usize)> = (0..logits.len()).map(|id| (score(id), id)).collect();
        scores.sort_by(|a, b| b.0.total_cmp(&a.0));
        // Weights are rounded to f32: closer scores may draw either id.
        if scores.len() > 1 && scores[0].0 - scores[1].0 < 1e-5 {
            continue;
        }
        let draw = SamplingParams { temperature, seed: round, ..params() };
        let history = History::default();
        let mut sampler = Sampler::default();
        let survey = sampler.survey(&logits);
        let drawn = sampler.draw(&logits, survey, &draw.draw(&history, 3, &[])).unwrap();
        assert_eq!(drawn as usize, scores[0].1, "round {round}");
    }
}

/// Prints costs and asserts nothing. Run with `--run-ignored only --no-capture`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let mut sampler = Sampler::default();
    for vocab in [2_000, 163_840] {
        let logits = row(vocab, 9);
        let mut history = History::new(&(0..500).collect::<Vec<_>>());
        (0..200).for_each(|token| history.add(token));
        let cases = [
            ("greedy", SamplingParams { temperature: 0.0, ..params() }),
            ("plain", params()),
            (
                "plain, two forbidden",
                SamplingParams {
                    logit_bias: vec![(7, f32::NEG_INFINITY), (9, f32::NEG_INFINITY)],
                    ..params()
                },
            ),
            ("top_k 50", SamplingParams { top_k: 50, ..params() }),
            ("top_p 0.95", SamplingParams { top_p: 0.95, ..params() }),
            ("min_p 0.05", SamplingParams { min_p: 0.05, ..params() }),
            ("penalties", SamplingParams { presence_penalty: 0.5, ..params() }),
        ];
        for (name, params) in cases {
            let runs = if vocab > 10_000 { 200 } else { 5_000 };
            let mut times: Vec<u128> = (0..runs)
                .map(|position| {
                    let start = std::time::Instant::now();
                    std::hint::black_box(draw_at(&mut sampler, &logits, &params, &history, position))
                        .unwrap();
                    start.elapsed().as_nanos()
                })
                .collect();
            times.sort_unstable();
            println!("{vocab} ids, {name}: median {} ns, best {} ns", times[times.len() / 2], times[0]);
        }
    }
}
