//! `perigee-nano`: the embedded model, a complete checkpoint folder compiled into the binary. Its card is
//! `docs/perigee-nano.md`.

/// Name it is served under.
pub const NAME: &str = "perigee-nano";

/// Files of its draft model.
pub static DRAFT_FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("draft/config.json")),
    ("model.safetensors", include_bytes!("draft/model.safetensors")),
];

/// The folder's files: name and bytes.
pub static FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("model/config.json")),
    ("generation_config.json", include_bytes!("model/generation_config.json")),
    ("tokenizer_config.json", include_bytes!("model/tokenizer_config.json")),
    ("tiktoken.model", include_bytes!("model/tiktoken.model")),
    ("chat_template.jinja", include_bytes!("model/chat_template.jinja")),
    ("preprocessor_config.json", include_bytes!("model/preprocessor_config.json")),
    ("model.safetensors", include_bytes!("model/model.safetensors")),
];
