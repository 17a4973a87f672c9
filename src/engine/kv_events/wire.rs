//! Batches in MessagePack, in the form that all consumers read.
//!
//! vLLM `vllm/distributed/kv_events.py`: a batch is `[time, events, rank]`, an event a map with its kind in
//! `type`. Dynamo wants exactly three elements, AIBrix an integer rank, vLLM's router unsigned hashes;
//! `medium` GPU is the fastest tier, whatever it is made of.

use std::io;

use rmp::encode::{
    write_array_len, write_f64, write_map_len, write_nil, write_str, write_u32, write_u64, write_uint,
};

use super::config::Shape;
use super::contents::Event;

const MEDIUM: &str = "GPU";

/// A batch. `time`: Unix seconds.
pub(super) fn batch(events: &[Event], time: f64, block_size: usize, shape: Shape) -> Vec<u8> {
    let tokens: usize = events.iter().map(num_tokens).sum();
    let mut out = Vec::with_capacity(64 + 256 * events.len() + 5 * tokens);
    write(&mut out, events, time, block_size, shape).expect("writing to memory does not fail");
    out
}

fn num_tokens(event: &Event) -> usize {
    match event {
        Event::Stored { tokens, .. } => tokens.len(),
        Event::Removed(_) | Event::Cleared => 0,
    }
}

fn write(out: &mut Vec<u8>, events: &[Event], time: f64, block_size: usize, shape: Shape) -> io::Result<()> {
    write_array_len(out, 3)?;
    write_f64(out, time)?;
    write_array_len(out, events.len() as u32)?;
    for event in events {
        let mut fields = Fields { out, shape };
        match event {
            Event::Stored { parent, hashes, tokens, salt } => {
                // Dynamo takes salted contents for others' only by a field of this name, which vLLM's places do not have.
                let by_name = salt.as_deref().filter(|_| shape == Shape::Map);
                fields.begin("BlockStored", 8 + u32::from(by_name.is_some()))?;
                fields.hashes(hashes)?;
                match parent {
                    None => write_nil(fields.name("parent_block_hash")?)?,
                    Some(parent) => write_u64(fields.name("parent_block_hash")?, *parent)?,
                }
                let out = fields.name("token_ids")?;
                write_array_len(out, tokens.len() as u32)?;
                tokens.iter().try_for_each(|token| write_u32(out, *token))?;
                write_uint(fields.name("block_size")?, block_size as u64)?;
                write_nil(fields.name("lora_id")?)?;
                fields.medium()?;
                write_nil(fields.name("lora_name")?)?;
                let out = fields.name("extra_keys")?;
                match salt {
                    None => write_nil(out)?,
                    Some(salt) => {
                        write_array_len(out, hashes.len() as u32)?;
                        for _ in hashes {
                            write_array_len(out, 1)?;
                            write_str(out, salt)?;
                        }
                    }
                }
                if let Some(salt) = by_name {
                    write_str(fields.name("cache_salt")?, salt)?;
                }
            }
            Event::Removed(hashes) => {
                fields.begin("BlockRemoved", 2)?;
                fields.hashes(hashes)?;
                fields.medium()?;
            }
            Event::Cleared => fields.begin("AllBlocksCleared", 0)?,
        }
    }
    write_uint(out, 0)?;
    Ok(())
}

/// Writes the fields of one event, by name or by place.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    shape: Shape,
}

impl Fields<'_> {
    fn begin(&mut self, kind: &str, fields: u32) -> io::Result<()> {
        match self.shape {
            Shape::Map => {
                write_map_len(self.out, fields + 1)?;
                write_str(self.out, "type")?;
            }
            Shape::Array => drop(write_array_len(self.out, fields + 1)?),
        }
        Ok(write_str(self.out, kind)?)
    }

    /// Writes a field's name where fields have one; its value comes next.
    fn name(&mut self, name: &str) -> io::Result<&mut Vec<u8>> {
        if self.shape == Shape::Map {
            write_str(self.out, name)?;
        }
        Ok(self.out)
    }

    fn hashes(&mut self, hashes: &[u64]) -> io::Result<()> {
        let out = self.name("block_hashes")?;
        write_array_len(out, hashes.len() as u32)?;
        Ok(hashes.iter().try_for_each(|hash| write_u64(out, *hash))?)
    }

    fn medium(&mut self) -> io::Result<()> {
        Ok(write_str(self.name("medium")?, MEDIUM)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_fields_of_vllm_by_name_or_by_place() {
        let stored = |salt: Option<&str>| Event::Stored {
            parent: Some(u64::MAX),
            hashes: vec![1 << 63, 2],
            tokens: vec![5, 6, 7, 8],
            salt: salt.map(Into::into),
        };
        let events = [Event::Cleared, stored(None), stored(Some("s")), Event::Removed(vec![2])];
        let read = |shape| {
            let bytes = batch(&events, 1.5, 2, shape);
            let rest = &mut bytes.as_slice();
            let value = rmpv::decode::read_value(rest).unwrap();
            assert!(rest.is_empty());
            value.to_string()
        };
        let hashes = "[9223372036854775808, 2]";
        let of_stored = |extra: &str| {
            format!(
                "{{\"type\": \"BlockStored\", \"block_hashes\": {hashes}, \"parent_block_hash\": {}, \"token_ids\": [5, 6, 7, 8], \
                 \"block_size\": 2, \"lora_id\": nil, \"medium\": \"GPU\", \"lora_name\": nil, \"extra_keys\": {extra}}}",
                u64::MAX
            )
        };
        assert_eq!(
            read(Shape::Map),
            format!(
                "[1.5, [{{\"type\": \"AllBlocksCleared\"}}, {}, {}, \
                 {{\"type\": \"BlockRemoved\", \"block_hashes\": [2], \"medium\": \"GPU\"}}], 0]",
                of_stored("nil"),
                of_stored("[[\"s\"], [\"s\"]], \"cache_salt\": \"s\"")
            )
        );
        let of_stored = |extra: &str| {
            format!("[\"BlockStored\", {hashes}, {}, [5, 6, 7, 8], 2, nil, \"GPU\", nil, {extra}]", u64::MAX)
        };
        assert_eq!(
            read(Shape::Array),
            format!(
                "[1.5, [[\"AllBlocksCleared\"], {}, {}, [\"BlockRemoved\", [2], \"GPU\"]], 0]",
                of_stored("nil"),
                of_stored("[[\"s\"], [\"s\"]]")
            )
        );
    }
}
