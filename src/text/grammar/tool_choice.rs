//! Required or optional tool calls: the family's call section as a grammar.
//!
//! `<|tool_calls_section_begin|>` then per call
//! `<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>` JSON `<|tool_call_end|>`,
//! then `<|tool_calls_section_end|>`. The markers are tokens; the arguments are JSON of the tool's
//! schema. Rules of a schema that cannot be enforced are refused where the tool is strict; otherwise
//! they are left out, and a schema that is refused as a whole leaves any object.

use serde_json::Value;

use super::{GrammarError, schema};

/// Most tools of one grammar.
const MAX_TOOLS: usize = 128;
/// Longest name of a tool, bytes.
const MAX_NAME_BYTES: usize = 256;

/// A function the model can call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolFunction {
    /// Name as declared.
    pub name: String,
    /// JSON Schema of the arguments; `None` allows any object.
    pub parameters: Option<Value>,
    /// Whether the request depends on the schema, also where the model may call or not.
    pub strict: bool,
}

impl ToolFunction {
    /// The schema of the arguments, restricted to objects.
    pub(super) fn schema(&self) -> Value {
        schema::of_arguments(self.parameters.as_ref())
    }
}

/// Whether a reply calls tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolMode {
    /// Text, then calls at the model's choice.
    Auto,
    /// At least one call and no text.
    Required,
    /// One call of this function and no text.
    Named(String),
}

/// Calls as a grammar: `tools`, `tool_choice` and `parallel_tool_calls` of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCalls {
    tools: Vec<ToolFunction>,
    pub(super) mode: ToolMode,
    pub(super) parallel: bool,
}

impl ToolCalls {
    /// Calls of these tools. `parallel` allows more than one; a named function is called once in
    /// any case.
    ///
    /// Errors: no tool, too many, a name that is empty, too long or given twice, and a named
    /// function that is not among the tools.
    pub fn new(tools: Vec<ToolFunction>, mode: ToolMode, parallel: bool) -> Result<Self, GrammarError> {
        let syntax = |text: String| Err(GrammarError::Syntax(text));
        if tools.is_empty() {
            return syntax("there is no tool to call".into());
        }
        if tools.len() > MAX_TOOLS {
            return Err(GrammarError::Limit { what: "tools", limit: MAX_TOOLS });
        }
        for (number, tool) in tools.iter().enumerate() {
            if tool.name.is_empty() || tool.name.len() > MAX_NAME_BYTES {
                return syntax(format!(
                    "the name of tool {number} has {} bytes, allowed: 1 to {MAX_NAME_BYTES}",
                    tool.name.len()
                ));
            }
            if tools[..number].iter().any(|other| other.name == tool.name) {
                return syntax(format!("the tool `{}` is given twice", tool.name));
            }
        }
        if let ToolMode::Named(name) = &mode
            && tools.iter().all(|tool| tool.name != *name)
        {
            let known: Vec<&str> = tools.iter().take(8).map(|tool| tool.name.as_str()).collect();
            return syntax(format!("there is no tool `{name}`; there are: {}", known.join(", ")));
        }
        Ok(Self { tools, mode, parallel })
    }

    /// Whether the reply consists of calls only.
    pub(super) fn is_forced(&self) -> bool {
        self.mode != ToolMode::Auto
    }

    /// The tools that may be called.
    pub(super) fn chosen(&self) -> impl Iterator<Item = &ToolFunction> {
        self.tools.iter().filter(|tool| self.allows(tool))
    }

    fn allows(&self, tool: &ToolFunction) -> bool {
        match &self.mode {
            ToolMode::Named(name) => tool.name == *name,
            _ => true,
        }
    }

    /// Whether calls of the tool never go without its schema.
    pub(super) fn enforces(&self, tool: &ToolFunction) -> bool {
        tool.strict
    }

    /// These calls without the schemas that `build` refuses in calls of their tool alone, and the
    /// names of those tools. Errors: the refusal of a schema that is enforced, and errors that are
    /// no refusals.
    pub(super) fn loosened(
        &self,
        mut build: impl FnMut(Self) -> Result<(), GrammarError>,
    ) -> Result<(Self, Vec<String>), GrammarError> {
        let mut loosened = self.clone();
        let mut dropped = Vec::new();
        for tool in loosened.tools.iter_mut().filter(|tool| self.allows(tool)) {
            let Err(error) = build(Self { tools: vec![tool.clone()], ..self.clone() }) else { continue };
            if !error.is_refusal() {
                return Err(error);
            }
            if self.enforces(tool) {
                return Err(error.of_tool(&tool.name));
            }
            tool.parameters = None;
            dropped.push(tool.name.clone());
        }
        Ok((loosened, dropped))
    }
}
