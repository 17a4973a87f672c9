use super::*;
use crate::vision::test_data::{Expected, Noise, golden, golden_json, released};

#[test]
fn sizes_under_released_limits() {
    let cases = golden_json("released_limits.json");
    let rows = cases["sizes"].as_array().unwrap();
    assert!(rows.len() > 200);
    for row in rows {
        let preprocessor = match row[0].as_str().unwrap() {
            "image" => released(16384),
            _ => released(4096),
        };
        let number = |i: usize| row[i].as_u64().unwrap() as usize;
        let grid = preprocessor.grid(number(1), number(2)).unwrap();
        let [width, height] = grid.padded();
        let found = [
            grid.resized[0],
            grid.resized[1],
            width - grid.resized[0],
            height - grid.resized[1],
            grid.tokens(),
        ];
        assert_eq!(found, [3, 4, 5, 6, 7].map(number), "{row}");
    }
}

#[test]
fn rounding_of_f64_is_kept() {
    assert_eq!(released(16384).grid(300, 200_000).unwrap().resized, [10, 7167]);
}

#[test]
fn a_lower_limit_lowers_and_a_higher_one_does_not() {
    let grid = |limit| released(16384).with_patch_limit(limit).grid(4000, 3000).unwrap();
    assert_eq!(grid(0), grid(1 << 20));
    assert_eq!(grid(4096), released(4096).grid(4000, 3000).unwrap());
    assert_eq!(grid(1).patches(), 4);
}

fn kimi_vl(in_token_limit: usize) -> Preprocessor {
    let json = serde_json::json!({"in_token_limit": in_token_limit, "patch_size": 14, "merge_kernel_size": [2, 2],
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "pad_input": true, "num_pooled_tokens": 1024});
    Preprocessor::parse(json.to_string().as_bytes(), "kimi_vl").unwrap()
}

#[test]
fn kimi_vl_refuses_long_sides() {
    let preprocessor = kimi_vl(4096);
    assert_eq!(preprocessor.grid(1024, 768).unwrap().resized, [1024, 768]);
    let grid = preprocessor.grid(2048, 2048).unwrap();
    assert_eq!((grid.resized, grid.rows, grid.cols), ([897, 897], 66, 66));
    assert_eq!(preprocessor.grid(1, 7167).unwrap().rows, 512);
    assert_eq!(preprocessor.grid(1, 7168), Err(GridError::SideTooLong { patches: 512, limit: 512 }));
}

#[test]
fn nothing_has_no_grid() {
    assert_eq!(released(16384).grid(0, 5), Err(GridError::NoPixels { width: 0, height: 5 }));
}

#[test]
fn no_picture_exceeds_the_bound() {
    let mut random = Noise(99);
    for preprocessor in
        [released(16384), released(4096), released(256), released(7), released(1), kimi_vl(4096)]
    {
        let bound = preprocessor.max_patches();
        let mut largest = 0;
        for case in 0..200_000u32 {
            // Sizes of every order of magnitude, in both directions.
            let mut side = || (random.next() >> (16 + random.next() % 15)) as usize + 1;
            let (width, height) = if case % 4 == 0 { (side(), 65_535) } else { (side(), side()) };
            let patches = preprocessor.grid(width, height).map_or(0, |grid| grid.patches());
            assert!(patches <= bound, "{width}x{height}: {patches} patches, bound {bound}");
            largest = largest.max(patches);
        }
        // Under tiny limits only pictures longer than a format can state come near.
        let tight = preprocessor.patch_limit < 256 || bound as f64 <= largest as f64 * 1.1;
        assert!(tight, "bound {bound}, largest found {largest}: {preprocessor:?}");
    }
    assert_eq!(released(16384).max_patches(), 17_856);
    assert_eq!(released(16384).grid(7083, 489).unwrap().patches(), 17_856);
}

#[test]
fn levels_are_those_of_the_reference() {
    let expected = Expected::read().f32("normalize_lut");
    let preprocessor = Preprocessor::parse(&golden("preprocessor_config.json"), "kimi_k25").unwrap();
    for channel in preprocessor.levels() {
        assert_eq!(channel.map(f32::to_bits)[..], expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    }
}

#[test]
fn settings_that_cannot_be_followed_are_named() {
    let good: serde_json::Value = serde_json::from_slice(&golden("preprocessor_config.json")).unwrap();
    for (field, value, text) in [
        ("patch_size", serde_json::json!(16), "patch_size in preprocessor_config.json is 16, it must be 14"),
        ("merge_kernel_size", 3.into(), "merge_kernel_size in preprocessor_config.json is 3, it must be 2"),
        ("merge_kernel_size", vec![2, 1].into(), "[2, 1], it must be [2, 2]"),
        (
            "fixed_output_tokens",
            64.into(),
            "fixed_output_tokens in preprocessor_config.json is 64, only null",
        ),
        ("in_patch_limit", 0.into(), "in_patch_limit in preprocessor_config.json is 0, it must be from 1"),
        ("patch_limit_on_one_side", 513.into(), "is 513, it must be even"),
        ("patch_limit_on_one_side", 1_000_000.into(), "it must be from 1 to 8192"),
        (
            "image_mean",
            vec![0.5, 0.5].into(),
            "image_mean in preprocessor_config.json is [0.5, 0.5], it must be three",
        ),
        ("image_std", vec![0.5, 0.0, 0.5].into(), "its numbers must be from 0.001"),
    ] {
        let mut json = good.clone();
        json["media_proc_cfg"][field] = value;
        let error = Preprocessor::parse(json.to_string().as_bytes(), "kimi_k25").unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let error = |json: &str, wrapper| Preprocessor::parse(json.as_bytes(), wrapper).unwrap_err().to_string();
    assert!(error("{}", "kimi_k25").contains("not what this model family has"));
    assert!(error("{", "kimi_vl").contains("not what this model family has"));
    assert!(error("{}", "llava").contains("\"llava\""));
    let cropped = r#"{"in_token_limit": 4096, "patch_size": 14, "merge_kernel_size": [2, 2],
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#;
    assert!(error(cropped, "kimi_vl").contains("pad_input"));
}
