//! Where a value came from.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from; ordered from the weakest source to the strongest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The program.
    Default,
    /// The site file.
    SiteFile {
        /// Path as given.
        path: PathBuf,
        /// Line, from 1, where it is known.
        line: Option<usize>,
    },
    /// A profile, or one that it extends.
    Profile {
        /// Name of the profile.
        name: String,
        /// Its file; `None` for a profile that comes with the program.
        path: Option<PathBuf>,
        /// Line, from 1, where it is known.
        line: Option<usize>,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// The file that an environment variable names.
    SecretFile {
        /// Name of the variable.
        variable: String,
        /// The file.
        path: PathBuf,
    },
    /// A flag of the command line.
    Flag {
        /// As written, without its value.
        flag: String,
    },
}

impl Origin {
    /// The kind of source, one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::SiteFile { .. } => "site",
            Origin::Profile { .. } => "profile",
            Origin::Environment { .. } => "environment",
            Origin::SecretFile { .. } => "file",
            Origin::Flag { .. } => "flag",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |f: &mut fmt::Formatter<'_>, line: &Option<usize>| match line {
            Some(line) => write!(f, " line {line}"),
            None => Ok(()),
        };
        match self {
            Origin::Default => f.write_str("default"),
            Origin::SiteFile { path, line } => {
                write!(f, "{}", path.display())?;
                at(f, line)
            }
            Origin::Profile { name, path, line } => {
                match path {
                    Some(path) => write!(f, "profile {name}, {}", path.display())?,
                    None => write!(f, "profile {name}, built in")?,
                }
                at(f, line)
            }
            Origin::Environment { variable } => f.write_str(variable),
            Origin::SecretFile { variable, path } => write!(f, "{variable} ({})", path.display()),
            Origin::Flag { flag } => f.write_str(flag),
        }
    }
}
