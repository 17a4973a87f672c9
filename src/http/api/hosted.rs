//! Tools that a service runs itself, such as web search: requests name them, and this server has none.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiError;
use super::unknown::Unknown;

/// Most characters of a client's word in an error.
const MAX_SHOWN_CHARS: usize = 32;

/// What becomes of tools that only the service of their type can run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostedTools {
    /// They are left out of the prompt, and named in the answer's header `x-perigee-ignored-fields`.
    #[default]
    Ignore,
    /// The request is a 400.
    Refuse,
}

impl HostedTools {
    /// Leaves out the tool of type `kind` that stands at `path` in the body, or refuses it. Its name in the header is
    /// `tools[].KIND`, once per type.
    pub(super) fn leave_out(self, kind: &str, path: &str, unknown: &mut Unknown) -> Result<(), ApiError> {
        match self {
            Self::Ignore => {
                unknown.add(&format!("tools[].{kind}"));
                Ok(())
            }
            Self::Refuse => {
                let shown: String = kind.chars().take(MAX_SHOWN_CHARS).collect();
                let what = format!("a tool of type {shown} (server.hosted_tools)");
                Err(ApiError::unsupported(format!("{path}.type"), &what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_cannot_be_run_is_named_or_refused() {
        let mut unknown = Unknown::default();
        for _ in 0..2 {
            assert_eq!(HostedTools::Ignore.leave_out("web_search", "tools[1]", &mut unknown), Ok(()));
        }
        assert_eq!(unknown.header().as_deref(), Some("tools[].web_search"));
        let error = HostedTools::Refuse.leave_out("web_search", "tools[1]", &mut unknown).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("tools[1].type")));
        assert!(error.message.contains("web_search") && error.message.contains("server.hosted_tools"));
    }
}
