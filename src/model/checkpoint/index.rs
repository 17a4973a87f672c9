//! `model.safetensors.index.json`: which shard holds which tensor.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

/// Name of the index in a checkpoint's folder.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";
/// Name of the weights of a checkpoint without an index.
pub(super) const SINGLE_FILE: &str = "model.safetensors";

/// A name of the index: borrowed from its JSON where it has no escapes, as in all released files.
pub(super) type Name<'a> = Cow<'a, str>;

/// Tensor names by shard. Shards are sorted, tensors in the order of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Index<'a> {
    pub(super) shards: BTreeMap<Name<'a>, Vec<Name<'a>>>,
}

/// Parses the index. `metadata` is not read: it may be absent, and its `total_size` is often wrong.
pub(super) fn parse(json: &[u8]) -> Result<Index<'_>, String> {
    #[derive(Deserialize)]
    struct RawIndex<'a> {
        #[serde(borrow)]
        weight_map: WeightMap<'a>,
    }
    let raw: RawIndex<'_> = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    if raw.weight_map.0.is_empty() {
        return Err("weight_map is empty".into());
    }
    Ok(Index { shards: raw.weight_map.0.into_iter().collect() })
}

/// Shards with their tensors. A tensor named twice is an error: its shard would be ambiguous.
struct WeightMap<'a>(Vec<(Name<'a>, Vec<Name<'a>>)>);

struct OneName<'a>(Name<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for OneName<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = OneName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<OneName<'de>, E> {
                Ok(OneName(Cow::Borrowed(name)))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<OneName<'de>, E> {
                Ok(OneName(Cow::Owned(name.into())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for WeightMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor;
        impl<'de> Visitor<'de> for MapVisitor {
            type Value = WeightMap<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor name to shard file name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap<'de>, A::Error> {
                let mut shards: Vec<(Name<'de>, Vec<Name<'de>>)> = Vec::new();
                let mut shard_ids: HashMap<Name<'de>, usize> = HashMap::new();
                let mut seen: HashMap<Name<'de>, usize, ahash::RandomState> = HashMap::default();
                let mut id = 0;
                while let Some((OneName(tensor), OneName(shard))) = map.next_entry()? {
                    // Most tensors lie in the same shard as the tensor before.
                    if shards.get(id).is_none_or(|(name, _)| *name != shard) {
                        id = *shard_ids.entry(shard.clone()).or_insert(shards.len());
                        if id == shards.len() {
                            shards.push((shard.clone(), Vec::new()));
                        }
                    }
                    if let Some(first) = seen.insert(tensor.clone(), id) {
                        let first = &shards[first].0;
                        return Err(de::Error::custom(format_args!(
                            "weight_map names tensor {tensor} twice, in {first} and in {shard}"
                        )));
                    }
                    shards[id].1.push(tensor);
                }
                Ok(WeightMap(shards))
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
