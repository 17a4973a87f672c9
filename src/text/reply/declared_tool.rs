//! A function that a request declares, as the reply parser sees it.

use std::sync::Arc;

use serde_json::Value;

/// The facts of a declared function that identify a call without a name.
#[derive(Debug, Clone)]
pub(super) struct DeclaredTool {
    pub(super) name: String,
    properties: Vec<String>,
    required: Vec<String>,
    /// Properties that are objects or arrays and no strings.
    pub(super) containers: Arc<[String]>,
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
            containers: properties
                .into_iter()
                .flatten()
                .filter(|(_, schema)| is_container(schema))
                .map(|(key, _)| key.clone())
                .collect(),
            required: required.into_iter().flatten().filter_map(|r| r.as_str().map(str::to_owned)).collect(),
        })
    }

    pub(super) fn declares(&self, key: &str) -> bool {
        self.properties.iter().any(|property| property == key)
    }

    /// Number of declared properties that `keys` leave open; `None` if the keys cannot belong to
    /// this function.
    pub(super) fn distance(&self, keys: &[&String]) -> Option<usize> {
        let known = keys.iter().all(|key| self.properties.contains(key));
        let complete = self.required.iter().all(|required| keys.contains(&required));
        (known && complete).then(|| self.properties.len() - keys.len())
    }
}

/// Whether a schema names types, objects or arrays among them and strings not.
fn is_container(schema: &Value) -> bool {
    let types = match &schema["type"] {
        Value::Array(types) => types.as_slice(),
        one => std::slice::from_ref(one),
    };
    types.iter().any(|kind| kind == "object" || kind == "array") && !types.iter().any(|kind| kind == "string")
}
