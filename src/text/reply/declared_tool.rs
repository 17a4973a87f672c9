//! A function that a request declares, as the reply parser sees it.

use serde_json::Value;

/// The facts of a declared function that identify a call without a name.
#[derive(Debug, Clone)]
pub(super) struct DeclaredTool {
    pub(super) name: String,
    properties: Vec<String>,
    required: Vec<String>,
}

impl DeclaredTool {
    pub(super) fn of(tool: &Value) -> Option<Self> {
        let function = &tool["function"];
        let parameters = &function["parameters"];
        let properties = parameters["properties"].as_object();
        let required = parameters["required"].as_array();
        Some(Self {
            name: function["name"].as_str()?.to_owned(),
            properties: properties.into_iter().flat_map(|p| p.keys().cloned()).collect(),
            required: required.into_iter().flatten().filter_map(|r| r.as_str().map(str::to_owned)).collect(),
        })
    }

    /// Number of declared properties that `keys` leave open; `None` if the keys cannot belong to
    /// this function.
    pub(super) fn distance(&self, keys: &[&String]) -> Option<usize> {
        let known = keys.iter().all(|key| self.properties.contains(key));
        let complete = self.required.iter().all(|required| keys.contains(&required));
        (known && complete).then(|| self.properties.len() - keys.len())
    }
}
