//! What a module is, by its name.

/// Kind of a module of a released checkpoint. Reports group by it, recipes choose by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleClass {
    /// `mlp.experts.N.{gate,up,down}_proj`.
    RoutedExperts,
    /// `mlp.shared_experts.{gate,up,down}_proj`.
    SharedExperts,
    /// `mlp.{gate,up,down}_proj` of dense layers.
    DenseMlp,
    /// `self_attn.*`, its norms not counted.
    Attention,
    /// `mlp.gate`, weight and selection bias.
    Router,
    /// `embed_tokens`.
    Embedding,
    /// `lm_head`.
    Head,
    /// Normalisation weights.
    Norm,
    /// Vision tower and projector.
    Vision,
    /// Anything else.
    Other,
}

impl ModuleClass {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            ModuleClass::RoutedExperts => "routed experts",
            ModuleClass::SharedExperts => "shared experts",
            ModuleClass::DenseMlp => "dense mlp",
            ModuleClass::Attention => "attention",
            ModuleClass::Router => "router",
            ModuleClass::Embedding => "embedding",
            ModuleClass::Head => "head",
            ModuleClass::Norm => "norms",
            ModuleClass::Vision => "vision",
            ModuleClass::Other => "other",
        }
    }

    /// The class of a module's name, such as `model.layers.3.mlp.experts.7.up_proj`.
    pub fn of(module: &str) -> Self {
        let parts: Vec<&str> = module.split('.').collect();
        let has = |part: &str| parts.contains(&part);
        let projection = matches!(parts.last(), Some(&("gate_proj" | "up_proj" | "down_proj")));
        if has("vision_tower") || has("mm_projector") || has("multi_modal_projector") {
            ModuleClass::Vision
        } else if parts.last().is_some_and(|last| last.ends_with("norm")) {
            ModuleClass::Norm
        } else if has("self_attn") {
            ModuleClass::Attention
        } else if has("shared_experts") && projection {
            ModuleClass::SharedExperts
        } else if has("experts") && projection {
            ModuleClass::RoutedExperts
        } else if has("mlp") && projection {
            ModuleClass::DenseMlp
        } else if parts.ends_with(&["mlp", "gate"]) {
            ModuleClass::Router
        } else if parts.last() == Some(&"embed_tokens") {
            ModuleClass::Embedding
        } else if parts.last() == Some(&"lm_head") {
            ModuleClass::Head
        } else {
            ModuleClass::Other
        }
    }
}

/// The module whose first matrix shares a tensor scale with this one: `up_proj` for `gate_proj` and the other way round. Serving engines
/// multiply by both at once, under one scale.
pub(super) fn partner(module: &str) -> Option<String> {
    let (stem, last) = module.rsplit_once('.')?;
    match last {
        "gate_proj" => Some(format!("{stem}.up_proj")),
        "up_proj" => Some(format!("{stem}.gate_proj")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_release_have_their_class() {
        for (module, class) in [
            ("model.layers.3.mlp.experts.7.up_proj", ModuleClass::RoutedExperts),
            ("language_model.model.layers.3.mlp.shared_experts.gate_proj", ModuleClass::SharedExperts),
            ("model.layers.0.mlp.down_proj", ModuleClass::DenseMlp),
            ("model.layers.1.mlp.gate", ModuleClass::Router),
            ("model.layers.1.self_attn.kv_a_proj_with_mqa", ModuleClass::Attention),
            ("model.layers.1.self_attn.kv_a_layernorm", ModuleClass::Norm),
            ("model.norm", ModuleClass::Norm),
            ("language_model.lm_head", ModuleClass::Head),
            ("model.embed_tokens", ModuleClass::Embedding),
            ("vision_tower.encoder.blocks.0.mlp.fc0", ModuleClass::Vision),
            ("mm_projector.proj.0", ModuleClass::Vision),
            ("model.layers.61.eh_proj", ModuleClass::Other),
        ] {
            assert_eq!(ModuleClass::of(module), class, "{module}");
        }
        assert_eq!(partner("a.gate_proj").as_deref(), Some("a.up_proj"));
        assert_eq!(partner("a.down_proj"), None);
    }
}
