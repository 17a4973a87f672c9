//! Problems of a configuration, all of one load together.

use std::fmt;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, `section.key`, or what else the problem is about.
    pub key: String,
    /// The value as given; `None` where there is none, or it is secret.
    pub value: Option<String>,
    /// Where it was set; `None` where no single place is to blame.
    pub origin: Option<String>,
    /// What is wrong, with the limit and the remedy.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        write!(f, ": {}", self.problem)?;
        match &self.origin {
            Some(origin) => write!(f, " (set in {origin})"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong with a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("the configuration has a problem:")?,
            n => write!(f, "the configuration has {n} problems:")?,
        }
        for error in &self.0 {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
