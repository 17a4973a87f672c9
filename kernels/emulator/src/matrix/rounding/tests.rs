use super::*;
use crate::matrix::decode::{ByteTable, E2M1_PAIRS, E4M3, E5M2, f16_to_f32};
use serde::Deserialize;

/// A tile of the published model: 16 rows of A, 8 columns of B, codes in hexadecimal.
#[derive(Deserialize)]
struct Tile {
    form: String,
    sm: u32,
    k: usize,
    /// Of D, A, B.
    types: [String; 3],
    a: String,
    b: String,
    c: String,
    d: String,
    #[serde(default)]
    block: usize,
    #[serde(default)]
    scale: String,
    #[serde(default)]
    scale_a: String,
    #[serde(default)]
    scale_b: String,
}

fn bits(element: &str) -> usize {
    match element {
        "f32" | "tf32" => 32,
        "f16" | "bf16" => 16,
        _ => 8,
    }
}

fn codes(text: &str, element: &str) -> Vec<u32> {
    let digits = bits(element) / 4;
    let code = |digits: &[u8]| u32::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    text.as_bytes().chunks(digits).map(code).collect()
}

fn values(text: &str, element: &str) -> Vec<f32> {
    let byte = |table: &ByteTable, code: u32| table.values[code as usize];
    let value = |code| match element {
        "f32" => f32::from_bits(code),
        "tf32" => f32::from_bits(code & !0x1fff),
        "bf16" => f32::from_bits(code << 16),
        "f16" => f16_to_f32(code),
        "e4m3" => byte(&E4M3, code),
        "e5m2" => byte(&E5M2, code),
        other => panic!("{other}"),
    };
    match element {
        "e2m1" => codes(text, element).into_iter().flat_map(|code| E2M1_PAIRS[code as usize]).collect(),
        _ => codes(text, element).into_iter().map(value).collect(),
    }
}

fn least(element: &str) -> i32 {
    match element {
        "f16" => -14,
        "e4m3" => E4M3.least_exponent,
        "e5m2" => E5M2.least_exponent,
        _ => MIN_EXPONENT,
    }
}

fn sums<const K: usize>(tile: &Tile) -> [Row<f32>; 16] {
    let [d, a_type, b_type] = &tile.types;
    let (a, b) = (values(&tile.a, a_type), values(&tile.b, b_type));
    let a: [[f32; K]; 16] = std::array::from_fn(|m| std::array::from_fn(|k| a[m * K + k]));
    let b: [Row<f32>; K] = std::array::from_fn(|k| std::array::from_fn(|n| b[n * K + k]));
    let c = values(&tile.c, d);
    let mut sums: [Row<f32>; 16] = std::array::from_fn(|m| std::array::from_fn(|n| c[8 * m + n]));
    let least = [least(a_type), least(b_type)];
    if !tile.scale.is_empty() {
        let format = ScaleFormat::parse(&tile.scale).unwrap();
        let per_row = K / tile.block;
        let [a_scales, b_scales] = [&tile.scale_a, &tile.scale_b].map(|text| codes(text, &tile.scale));
        let scales = |index: usize| -> ([u8; 16], [u8; 8]) {
            let a = std::array::from_fn(|m| a_scales[m * per_row + index] as u8);
            (a, std::array::from_fn(|n| b_scales[n * per_row + index] as u8))
        };
        if K == 64 {
            add_blocks(&a, &b, tile.block, format, scales, &mut sums);
        } else {
            let (a_codes, b_codes) = scales(0);
            FusedSum::of_tcgen05(K).add_scaled(&a, &b, least, format, [&a_codes, &b_codes], &mut sums);
        }
        return sums;
    }
    let fused = match tile.form.as_str() {
        "wgmma" => FusedSum::of_wgmma(K),
        _ => FusedSum::of_mma(tile.sm, K, bits(a_type)),
    };
    fused.add(&a, &b, least, if d == "f16" { FloatSum::F16 } else { FloatSum::F32 }, &mut sums);
    sums
}

#[test]
fn tiles_are_those_of_the_published_model() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/ptx/rounding.json");
    let tiles: Vec<Tile> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut compared, mut chained) = (0, 0);
    for (index, tile) in tiles.iter().enumerate() {
        let sums = match tile.k {
            4 => sums::<4>(tile),
            8 => sums::<8>(tile),
            16 => sums::<16>(tile),
            32 => sums::<32>(tile),
            _ => sums::<64>(tile),
        };
        let d = &tile.types[0];
        for (place, (&sum, expected)) in sums.as_flattened().iter().zip(values(&tile.d, d)).enumerate() {
            let equal = sum.to_bits() == expected.to_bits() || sum.is_nan() && expected.is_nan();
            let about = format!("tile {index}, {} sm_{} k {} {:?}", tile.form, tile.sm, tile.k, tile.types);
            assert!(equal, "{about}, row {}, column {}: {sum:e}, not {expected:e}", place / 8, place % 8);
            compared += 1;
        }
        chained += usize::from(d == "f32" && differs_from_a_chain(tile));
    }
    assert!(compared > 10_000, "{compared}");
    assert!(chained > 20, "{chained} tiles tell the model from a chain of fused multiply-adds");
}

/// Whether a chain of fused multiply-adds gives other bits than the model, so that the tile can tell them apart.
fn differs_from_a_chain(tile: &Tile) -> bool {
    if !tile.scale.is_empty() {
        return false;
    }
    let [_, a_type, b_type] = &tile.types;
    let (a, b, c) = (values(&tile.a, a_type), values(&tile.b, b_type), values(&tile.c, "f32"));
    let chain = |place: usize| {
        let (row, column) = (&a[place / 8 * tile.k..], &b[place % 8 * tile.k..]);
        (0..tile.k).fold(c[place], |sum, k| row[k].mul_add(column[k], sum))
    };
    let expected = values(&tile.d, "f32");
    (0..expected.len()).any(|place| chain(place).to_bits() != expected[place].to_bits())
}

/// Columns that f32 holds, and those that go another way, in one row.
#[test]
fn extreme_columns_do_not_change_their_neighbours() {
    let fused = FusedSum::of_mma(90, 16, 16);
    let mut b = [[1.25; 8]; 16];
    b[3] = [1.25, f32::INFINITY, 2f32.powi(120), 2f32.powi(-126), 0.0, f32::NAN, -1.25, 3.0];
    let mut a = [[0.75; 16]; 8];
    a[1][3] = 2f32.powi(100);
    let mut whole = [[0.5; 8]; 8];
    fused.add(&a, &b, [MIN_EXPONENT; 2], FloatSum::F32, &mut whole);
    for n in 0..8 {
        let column = b.map(|row| [row[n]; 8]);
        let mut alone = [[0.5; 8]; 8];
        fused.add(&a, &column, [MIN_EXPONENT; 2], FloatSum::F32, &mut alone);
        for m in 0..8 {
            assert_eq!(alone[m][0].to_bits(), whole[m][n].to_bits(), "row {m}, column {n}");
        }
    }
    assert_eq!(FusedSum::of_tcgen05(16), FusedSum::of_mma(120, 16, 16));
}
