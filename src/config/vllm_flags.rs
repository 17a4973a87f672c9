//! Flags of `vllm serve` that each set one key here. Their values are those of the key.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use super::sources::FlagValue;

/// Flag, setting, and the setting's value where the flag has none.
const FLAGS: [(&str, &str, Option<&str>); 15] = [
    ("served-model-name", "model.served_name", None),
    ("chat-template", "model.chat_template", None),
    ("api-key", "server.api_keys", None),
    ("root-path", "server.root_path", None),
    ("uds", "server.unix_socket", None),
    ("tensor-parallel-size", "device.ranks", None),
    ("decode-context-parallel-size", "parallel.context", None),
    ("enable-expert-parallel", "parallel.expert", Some("0")),
    ("gpu-memory-utilization", "device.memory_utilization", None),
    ("max-model-len", "scheduler.max_model_len", None),
    ("max-num-seqs", "scheduler.max_num_seqs", None),
    ("max-num-batched-tokens", "scheduler.max_num_batched_tokens", None),
    ("block-size", "kv_cache.block_size", None),
    ("kv-cache-dtype", "kv_cache.dtype", None),
    ("kv-cache-memory-bytes", "kv_cache.memory_bytes", None),
];

/// The flags that were given, as settings.
#[derive(Debug, Clone, Default)]
pub struct VllmFlags(pub(super) Vec<FlagValue>);

impl Args for VllmFlags {
    fn augment_args(command: Command) -> Command {
        let arg = |(flag, key, value): (&'static str, &'static str, Option<&str>)| {
            let arg = Arg::new(flag).long(flag).help(key).help_heading("Flags of vLLM, and what they set");
            match value {
                Some(_) => arg.action(ArgAction::SetTrue),
                None => arg.action(ArgAction::Set).value_name("VALUE").allow_hyphen_values(true),
            }
        };
        command.args(FLAGS.map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for VllmFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = FLAGS.iter().filter_map(|(flag, key, implied)| {
            let value = match implied {
                Some(value) => matches.get_flag(flag).then(|| (*value).to_owned()),
                None => matches.get_one::<String>(flag).cloned(),
            };
            Some(FlagValue { key: (*key).into(), value: value?, flag: format!("--{flag}") })
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::keys;

    #[test]
    fn every_flag_sets_a_key_that_there_is() {
        for (flag, key, _) in FLAGS {
            let (section, key) = key.split_once('.').unwrap();
            assert!(keys().has(section, key), "--{flag}: {section}.{key}");
        }
    }
}
