//! The published case, sizes and floors of data sheets, and networks that do not fit.

use super::*;

fn kimi(experts: usize) -> Blueprint {
    let config = serde_json::json!({
        "model_type": "kimi_k2", "vocab_size": 163840, "hidden_size": 7168, "num_hidden_layers": 61,
        "first_k_dense_replace": 1, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "num_attention_heads": 64,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "max_position_embeddings": 262144
    });
    Blueprint::parse(config.to_string().as_bytes()).unwrap()
}

fn request<'a>(blueprint: &'a Blueprint, devices: &str, routed_bits: f64) -> Request<'a> {
    let mut weights = plain_weights(blueprint);
    for use_ in weights.iter_mut().filter(|use_| use_.class == ModuleClass::RoutedExperts) {
        use_.bytes *= routed_bits / 16.0;
    }
    Request {
        blueprint,
        weights,
        draft: None,
        devices: DeviceSet::parse(devices).unwrap(),
        kv: FP8,
        max_model_len: 262_144,
        max_num_batched_tokens: 2048,
        max_num_seqs: 256,
        utilisation: 0.9,
    }
}

#[test]
fn parameters_are_those_of_the_release() {
    let total: f64 = class_parameters(&kimi(384)).iter().map(|(_, parameters, _)| parameters).sum();
    // Selection biases, 60 x 384, are counted by the sheet and are no matrices.
    assert_eq!(total + 60.0 * 384.0, 1_026_408_232_448.0);
}

/// Published for four devices of this kind: 811,000 tokens with KV sharded by sequence, of its engine and its reserves.
#[test]
fn the_published_system_has_more_room_than_published() {
    let blueprint = kimi(192);
    let published = Request {
        max_num_batched_tokens: 8192,
        max_num_seqs: 1,
        ..request(&blueprint, "4xrtx-pro-6000", 4.5)
    };
    let tokens = |request: &Request<'_>| {
        let estimate = Estimate::new(request);
        assert!(estimate.best().fits && estimate.remedies.is_empty());
        [Split::KvBySequence, Split::KvReplicated]
            .map(|split| estimate.layouts.iter().find(|layout| layout.split == split).unwrap().kv_tokens)
    };
    let [sharded, whole] = tokens(&Request { utilisation: 0.99, ..published.clone() });
    assert!(sharded.abs_diff(1_919_000) < 19_000 && whole.abs_diff(499_000) < 5_000, "{sharded} {whole}");
    // With the nine tenths that other engines take, and the least of what is called 96 GB.
    assert!(tokens(&published)[0].abs_diff(996_000) < 10_000, "{}", tokens(&published)[0]);
    let least = Request { devices: DeviceSet::parse("4x96GB").unwrap(), ..published };
    assert!(tokens(&least)[0].abs_diff(398_000) < 10_000, "{}", tokens(&least)[0]);
    let table = table(&Estimate::new(&least));
    assert_eq!(table.matches("full contexts at once").count(), 2);
}

#[test]
fn a_draft_model_takes_its_share() {
    // The draft of Kimi K2.6: 6.03 GB, of which 4.7 are a table and a head, and a cached row as wide as a layer's.
    let blueprint = kimi(192);
    let mut with = request(&blueprint, "4xrtx-pro-6000", 4.5);
    let without = Estimate::new(&with).best().kv_tokens as f64;
    with.draft = Some(DraftNeeds { bytes: 6.03e9, divided_bytes: 4.7e9, cached_bytes: 656 });
    let estimate = Estimate::new(&with);
    assert_eq!(estimate.kv_bytes_per_token, 62 * 656);
    let left = without - 4.0 * (1.33e9 + 4.7e9 / 4.0) / (61.0 * 656.0);
    assert!((estimate.best().kv_tokens as f64 / (left * 61.0 / 62.0) - 1.0).abs() < 1e-4);
    assert!(table(&estimate).contains("draft model"));
}

#[test]
fn floors_are_above_those_of_perfect_sharding() {
    // The data sheet's step for one sequence at 1k: perfect sharding and the shared expert in
    // NVFP4. This estimate reads the latent projections on every device, the shared expert in
    // BF16 (0.63 ms more), and W_UK and W_UV of all heads on every device (0.51 and 0.21 ms).
    let blueprint = kimi(192);
    let estimate = Estimate::new(&request(&blueprint, "4xrtx-pro-6000", 4.5));
    let (_, _, ms) = estimate.best().decode_floor[0];
    assert!(ms > 4.75 && ms < 4.75 + 0.63 + 0.51 + 1.2, "{ms}");
    let blueprint = kimi(384);
    let estimate = Estimate::new(&request(&blueprint, "8xh200", 4.5));
    let (_, _, ms) = estimate.best().decode_floor[0];
    assert!(ms > 0.83 && ms < 0.83 + 0.11 + 0.21 + 0.5, "{ms}");
    let (short, long) = estimate.prefill_ceiling.unwrap();
    assert!((short - 104_000.0).abs() < 3_000.0, "{short}");
    assert!(long < short / 2.0, "attention over a quarter of a million tokens costs more than the weights");
}

#[test]
fn what_does_not_fit_says_what_would() {
    let blueprint = kimi(384);
    let estimate = Estimate::new(&request(&blueprint, "4x96GB", 4.5));
    assert!(!estimate.best().fits);
    let remedies = estimate.remedies.join("\n");
    assert!(remedies.contains("prune to ") && remedies.contains("more devices: 8 of 96gb"), "{remedies}");
    // Each remedy is right: the number of experts it names fits, eight more do not.
    let keep: usize =
        remedies.split("--experts ").nth(1).unwrap().split(')').next().unwrap().parse().unwrap();
    for (experts, fits) in [(keep, true), (keep + 8, false)] {
        let blueprint = kimi(experts);
        assert_eq!(Estimate::new(&request(&blueprint, "4x96GB", 4.5)).best().fits, fits, "{experts}");
    }
    let bf16 = Estimate::new(&request(&blueprint, "8xh200", 16.0));
    assert!(bf16.remedies.iter().any(|remedy| remedy.contains("nvfp4")), "{:?}", bf16.remedies);
    let uneven = Estimate::new(&request(&blueprint, "7xb300", 4.5));
    assert!(uneven.layouts.iter().all(|layout| layout.obstacle.is_some()));
}
