//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

/// Name of the index in a checkpoint's folder.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";
/// Name of the weights where there is one file only.
pub(super) const SINGLE_FILE: &str = "model.safetensors";

/// Tensor names by shard, both sorted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) shards: BTreeMap<String, Vec<String>>,
}

/// Parses the index. `metadata` may be absent, its `total_size` is often wrong and therefore not read.
pub(super) fn parse(json: &[u8]) -> Result<Index, String> {
    #[derive(Deserialize)]
    struct RawIndex {
        weight_map: WeightMap,
    }
    let raw: RawIndex = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    if raw.weight_map.0.is_empty() {
        return Err("weight_map is empty".into());
    }
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in raw.weight_map.0 {
        shards.entry(shard).or_default().push(tensor);
    }
    Ok(Index { shards })
}

/// Tensor to shard; a tensor named twice is an error, as only one of the two shards could be meant.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor;
        impl<'de> Visitor<'de> for MapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor name to shard file name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut weights = BTreeMap::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    match weights.entry(tensor) {
                        Entry::Vacant(entry) => {
                            entry.insert(shard);
                        }
                        Entry::Occupied(first) => {
                            let (tensor, first) = (first.key(), first.get());
                            return Err(de::Error::custom(format_args!(
                                "weight_map names tensor {tensor} twice, in {first} and in {shard}"
                            )));
                        }
                    }
                }
                Ok(WeightMap(weights))
            }
        }
        deserializer.deserialize_map(MapVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_grouped_by_shard() {
        let index = parse(br#"{"weight_map":{"b":"2.st","a":"1.st","c":"1.st"}}"#).unwrap();
        assert_eq!(index.shards["1.st"], ["a", "c"]);
        assert_eq!(index.shards["2.st"], ["b"]);
    }

    #[test]
    fn bad_indexes_say_why() {
        for (json, expected) in [
            (r#"{"weight_map":{}}"#, "weight_map is empty"),
            (r#"{}"#, "missing field `weight_map`"),
            (r#"{"weight_map":{"a":1}}"#, "expected a string"),
            (r#"{"weight_map":{"a":"x","a":"y"}}"#, "names tensor a twice"),
            ("", "EOF"),
        ] {
            let error = parse(json.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
