use super::*;
use crate::matrix::golden::{self, Random, modifiers};
use serde_json::Value;

/// `[lane, unit]` of every value a lane receives.
fn sources(entry: &Value) -> Vec<Vec<[usize; 2]>> {
    serde_json::from_value(entry["source"].clone()).expect("a source table")
}

#[test]
fn every_unit_arrives_from_its_source() {
    let fragments = golden::fragments();
    let entries = fragments["ldmatrix"].as_object().expect("an object");
    assert_eq!(entries.len(), 14);
    let mut random = Random(1);
    for (name, entry) in entries {
        let spec = LdMatrixSpec::parse(&modifiers(name)).expect(name);
        let table = sources(entry);
        let unit_bits = entry["unit_bits"].as_u64().expect("a number") as usize;
        let element_bits =
            entry.get("source_element_bits").map_or(unit_bits, |bits| bits.as_u64().unwrap() as usize);
        let per_register = 32 / unit_bits;
        let highest_lane = table.iter().flatten().map(|[lane, _]| *lane).max().expect("an entry");
        assert_eq!(spec.num_rows(), highest_lane + 1, "{name}");
        assert_eq!(spec.num_registers() * per_register, table[0].len(), "{name}");

        let rows: Vec<[u8; 16]> = (0..spec.num_rows())
            .map(|_| (random.next() as u128 | (random.next() as u128) << 64).to_le_bytes())
            .collect();
        let mut out = vec![[0; 32]; spec.num_registers()];
        spec.distribute(&rows, &mut out);
        for (lane, values) in table.iter().enumerate() {
            for (v, &[source_lane, unit]) in values.iter().enumerate() {
                let row = u128::from_le_bytes(rows[source_lane]);
                let expected = (row >> (element_bits * unit)) as u32 & ((1u64 << element_bits) - 1) as u32;
                let register = out[v / per_register][lane];
                let got = register >> (unit_bits * (v % per_register)) & ((1u64 << unit_bits) - 1) as u32;
                assert_eq!(got, expected, "{name} lane {lane} value {v}");
            }
        }
    }
}

#[test]
fn wide_transposed_rows_unpack_first() {
    let parse = |text| LdMatrixSpec::parse(&modifiers(text)).expect(text);
    let narrow = parse("ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8x16.b6x16_p32");
    let plain = parse("ldmatrix.sync.aligned.m16n16.x2.trans.shared::cta.b8");
    let values: Vec<[u8; 16]> =
        (0..32).map(|r| std::array::from_fn(|i| (7 * r + 5 * i) as u8 & 0x3f)).collect();
    let packed: Vec<[u8; 16]> = values
        .iter()
        .map(|row| row.iter().rev().fold(0u128, |bits, &value| bits << 6 | value as u128).to_le_bytes())
        .collect();
    let (mut got, mut expected) = ([[0; 32]; 4], [[0; 32]; 4]);
    narrow.distribute(&packed, &mut got);
    plain.distribute(&values, &mut expected);
    assert_eq!(got, expected);
}

#[test]
fn movmatrix_equals_a_transposed_load() {
    let load = |text: &str, rows: &[[u8; 16]]| {
        let mut out = [[0; 32]];
        LdMatrixSpec::parse(&modifiers(text)).expect(text).distribute(rows, &mut out);
        out[0]
    };
    let rows: Vec<[u8; 16]> = (0..8).map(|r| std::array::from_fn(|i| 16 * r as u8 + i as u8)).collect();
    let plain = load("ldmatrix.sync.aligned.m8n8.x1.shared.b16", &rows);
    assert_eq!(movmatrix(&plain), load("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", &rows));
    assert_eq!(movmatrix(&movmatrix(&plain)), plain);
}

#[test]
fn unknown_forms_are_errors() {
    for text in [
        "ldmatrix.sync.aligned.m8n8.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b8",
        "ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8",
        "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16",
    ] {
        assert!(LdMatrixSpec::parse(&modifiers(text)).is_err(), "{text}");
    }
}
