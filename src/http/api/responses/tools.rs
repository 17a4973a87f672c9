//! Tools of `/v1/responses`: which function each one is for the model.

use serde_json::{Map, Value, json};

use super::super::ApiError;
use super::super::client_tools::{ClientTool, ClientTools, ToolKind, function_name, function_of_custom};
use super::super::tools::{self, MAX_TOOLS};

/// The declared tools.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// The functions, in the words of chat.
    pub(super) functions: Vec<Value>,
    /// What they are for the client.
    pub(super) client: ClientTools,
    /// Places and types of tools that only their own service can run.
    pub(super) hosted: Vec<(String, String)>,
    /// Whether there is a grammar that the model is only told of.
    pub(super) advice: bool,
}

impl Tools {
    /// Declares the entries of a list at `path`.
    pub(super) fn declare(&mut self, tools: &[Value], path: &str) -> Result<(), ApiError> {
        for (index, tool) in tools.iter().enumerate() {
            self.add(tool, &format!("{path}[{index}]"), None)?;
        }
        match self.functions.len() {
            count if count > MAX_TOOLS => {
                Err(ApiError::invalid_value(path, format!("{count} tools in all, limit {MAX_TOOLS}")))
            }
            _ => Ok(()),
        }
    }

    /// Declares what a search has found, and what an item adds to the tools; what is there already stays.
    /// Returns the names of the functions.
    pub(super) fn load(&mut self, tools: &[Value], path: &str) -> Result<Vec<String>, ApiError> {
        let mut found = Self::default();
        found.declare(tools, path)?;
        let mut names = Vec::with_capacity(found.functions.len());
        for function in found.functions {
            let name = function["function"]["name"].as_str().unwrap_or_default().to_owned();
            if !self.declares(&name) {
                if found.client.has(&name) {
                    self.client.add(name.clone(), found.client.of(&name));
                }
                self.functions.push(function);
            }
            names.push(name);
        }
        self.hosted.extend(found.hosted);
        self.advice |= found.advice;
        if self.functions.len() > MAX_TOOLS {
            let message = format!("{} tools in all, limit {MAX_TOOLS}", self.functions.len());
            return Err(ApiError::invalid_value(path, message));
        }
        Ok(names)
    }

    fn declares(&self, name: &str) -> bool {
        self.functions.iter().any(|function| function["function"]["name"] == name)
    }

    fn add(&mut self, tool: &Value, path: &str, namespace: Option<&str>) -> Result<(), ApiError> {
        let kind = tool["type"].as_str().ok_or_else(|| ApiError::missing(format!("{path}.type")))?;
        let name = tool["name"].as_str();
        match kind {
            "namespace" if namespace.is_none() => {
                let name = name.ok_or_else(|| ApiError::missing(format!("{path}.name")))?;
                let tools = tool["tools"].as_array();
                let tools = tools.ok_or_else(|| ApiError::missing(format!("{path}.tools")))?;
                for (index, tool) in tools.iter().enumerate() {
                    self.add(tool, &format!("{path}.tools[{index}]"), Some(name))?;
                }
                Ok(())
            }
            "function" => {
                // Here a function's fields stand beside its type.
                let fields = ["name", "description", "parameters", "strict"].into_iter();
                let fields = fields.filter(|field| !tool[field].is_null());
                let function: Map<_, _> =
                    fields.map(|field| (field.to_owned(), tool[field].clone())).collect();
                self.function(ToolKind::Function, namespace, name, function.into(), path)
            }
            "custom" => {
                let function = function_of_custom(name.unwrap_or_default(), tool);
                if !tool["format"]["definition"].is_null() {
                    self.advice = true;
                }
                self.function(ToolKind::Custom, namespace, name, function, path)
            }
            "tool_search" if tool["execution"] == "client" => {
                let function = json!({"name": kind, "description": tool["description"], "parameters": tool["parameters"]});
                self.function(ToolKind::Search, None, Some(kind), function, path)
            }
            _ => {
                self.hosted.push((path.to_owned(), kind.to_owned()));
                Ok(())
            }
        }
    }

    fn function(
        &mut self,
        kind: ToolKind,
        namespace: Option<&str>,
        name: Option<&str>,
        mut function: Value,
        path: &str,
    ) -> Result<(), ApiError> {
        // A name that is none is told by the check of the function.
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            let flat = function_name(namespace, name);
            let is_plain = kind == ToolKind::Function && flat == name;
            if self.client.has(&flat) || (!is_plain && self.declares(&flat)) {
                let shown: String = flat.chars().take(64).collect();
                let message = format!("two tools have the name `{shown}` for the model; rename one of them");
                return Err(ApiError::invalid_value(format!("{path}.name"), message));
            }
            function["name"] = flat.as_str().into();
            if !is_plain {
                let namespace = namespace.filter(|_| flat != name).map(str::to_owned);
                self.client.add(flat, ClientTool { kind, namespace, name: name.to_owned() });
            }
        } else if name.is_none() {
            function["name"] = Value::Null;
        }
        self.functions.push(tools::tool(function, path, "parameters")?);
        Ok(())
    }
}
