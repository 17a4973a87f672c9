use super::*;
use crate::matrix::golden::{self, Random, modifiers};

#[test]
fn every_unit_reaches_its_row() {
    let fragments = golden::fragments();
    let entries = fragments["stmatrix"].as_object().expect("an object");
    assert_eq!(entries.len(), 9);
    let mut random = Random(2);
    for (name, entry) in entries {
        let spec = StMatrixSpec::parse(&modifiers(name)).expect(name);
        let table: Vec<Vec<[usize; 2]>> =
            serde_json::from_value(entry["source"].clone()).expect("a source table");
        let unit_bits = entry["unit_bits"].as_u64().expect("a number") as usize;
        let per_register = 32 / unit_bits;
        assert_eq!(spec.num_matrices() * per_register, table[0].len(), "{name}");

        let registers: Vec<Lanes> =
            (0..spec.num_matrices()).map(|_| std::array::from_fn(|_| random.next() as u32)).collect();
        let mut rows = vec![[0; 16]; spec.num_rows()];
        spec.collect(&registers, &mut rows);
        let mut expected = vec![0u128; spec.num_rows()];
        for (lane, values) in table.iter().enumerate() {
            for (v, &[row, unit]) in values.iter().enumerate() {
                let value = registers[v / per_register][lane] >> (unit_bits * (v % per_register));
                let value = value as u128 & ((1 << unit_bits) - 1);
                expected[row] |= value << (unit_bits * unit);
            }
        }
        let got: Vec<u128> = rows.iter().map(|row| u128::from_le_bytes(*row)).collect();
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn qualifiers_come_in_any_order() {
    let parse = |text| StMatrixSpec::parse(&modifiers(text));
    assert_eq!(
        parse("stmatrix.sync.aligned.x4.m8n8.trans.shared::cta.b16"),
        parse("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16")
    );
    assert!(parse("stmatrix.sync.aligned.m16n8.x1.shared.b8").is_err());
    assert!(parse("stmatrix.sync.aligned.m8n8.x1.shared.b8").is_err());
}
