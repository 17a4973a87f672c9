//! Sums of the ledger by client and period, for `/admin/usage`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::super::moment;
use super::files;
use super::line::{Line, Tokens};
use crate::api::ApiError;

/// Most rows of an answer.
const MAX_ROWS: usize = 100_000;

/// What is summed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    /// The first moment that counts.
    from: Option<String>,
    /// The first one that does not any more.
    to: Option<String>,
    client: Option<String>,
    /// Characters of a moment that name its period; 0 = one period.
    period: usize,
}

/// The answer.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    rows: Vec<Row>,
    /// All rows together.
    total: Sums,
    /// Lines that could not be read.
    unreadable_lines: u64,
    /// When the oldest file begins; what ended before it is not known any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    known_from: Option<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<String>,
    /// `null` where no keys are set.
    client: Option<String>,
    #[serde(flatten)]
    sums: Sums,
}

#[derive(Debug, Default, Clone, Serialize)]
struct Sums {
    /// That ended.
    requests: u64,
    /// Of these, such with a status of 400 or above, clients that left among them.
    failed_requests: u64,
    /// Whose process ended before them; their tokens are not known.
    cut_requests: u64,
    #[serde(flatten)]
    tokens: Tokens,
}

impl Query {
    /// Reads the query of a URL: `from`, `to`, `client`, `by`. Errors: 400 with the field.
    pub(crate) fn read(query: Option<&str>) -> Result<Self, ApiError> {
        let mut read = Self::default();
        for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
            // Moments have colons, which some clients escape.
            let value = value.replace("%3A", ":").replace("%3a", ":");
            let moment = || {
                let problem = format!(
                    "{name} is {value:?}, and must be a month, a day or a time in UTC, such as 2026-12-01"
                );
                moment::read(&value).map(Some).ok_or_else(|| ApiError::invalid_value(name, problem))
            };
            match name {
                "from" => read.from = moment()?,
                "to" => read.to = moment()?,
                "client" => read.client = Some(value),
                "by" => {
                    read.period = match &*value {
                        "month" => 7,
                        "day" => 10,
                        "hour" => 13,
                        _ => {
                            let problem = format!("by is {value:?}, and must be month, day or hour");
                            return Err(ApiError::invalid_value("by", problem));
                        }
                    };
                }
                _ => {
                    let problem = format!("{name} is unknown; there are from, to, client and by");
                    return Err(ApiError::invalid_value(name, problem));
                }
            }
        }
        Ok(read)
    }

    fn takes(&self, at: &str, client: Option<&str>) -> bool {
        self.from.as_deref().is_none_or(|from| at >= from)
            && self.to.as_deref().is_none_or(|to| at < to)
            && self.client.as_deref().is_none_or(|wanted| client == Some(wanted))
    }
}

/// Sums the ledger of a folder. Errors: a file that cannot be read; 400 for more rows than [`MAX_ROWS`].
pub(super) fn sum(folder: &Path, query: Query) -> Result<Usage, ApiError> {
    let failed = |error: io::Error| ApiError::internal(format!("the ledger cannot be read: {error}"));
    let paths = files::paths(folder).map_err(failed)?;
    let mut heads = Vec::with_capacity(paths.len());
    for path in &paths {
        let head = match files::lines(path).map_err(failed)?.next() {
            Some(Ok(Some(Line::Head(head)))) => Some(head.at),
            _ => None,
        };
        heads.push(head);
    }
    let (mut sums, mut usage) = (BTreeMap::<(String, Option<String>), Sums>::new(), Usage::default());
    usage.known_from = heads.first().cloned().flatten();
    for (index, path) in paths.iter().enumerate() {
        // A file ends before the next one begins.
        let ends_before =
            |from: &str| heads.get(index + 1).and_then(Option::as_deref).is_some_and(|end| end < from);
        let begins_behind = |to: &str| heads[index].as_deref().is_some_and(|begin| begin >= to);
        if query.from.as_deref().is_some_and(ends_before) || query.to.as_deref().is_some_and(begins_behind) {
            continue;
        }
        for line in files::lines(path).map_err(failed)? {
            let Some(line) = line.map_err(failed)? else {
                usage.unreadable_lines += 1;
                continue;
            };
            let (Line::Cut(opened) | Line::End(super::line::Ended { opened, .. })) = &line else { continue };
            if !query.takes(&opened.at, opened.client.as_deref()) {
                continue;
            }
            let period = opened.at.get(..query.period).unwrap_or_default().to_owned();
            let rows = sums.len();
            let row = sums.entry((period, opened.client.clone())).or_default();
            for sum in [row, &mut usage.total] {
                match &line {
                    Line::End(ended) => {
                        sum.requests += 1;
                        sum.failed_requests += u64::from(ended.status >= 400);
                        sum.tokens.add(&ended.tokens);
                    }
                    _ => sum.cut_requests += 1,
                }
            }
            if rows > MAX_ROWS {
                let problem =
                    format!("the answer has more than {MAX_ROWS} rows; ask for less time or longer periods");
                return Err(ApiError::invalid_value("by", problem));
            }
        }
    }
    let row = |((period, client), sums): ((String, Option<String>), Sums)| Row {
        period: Some(period).filter(|period| !period.is_empty()),
        client,
        sums,
    };
    usage.rows = sums.into_iter().map(row).collect();
    (usage.from, usage.to) = (query.from, query.to);
    Ok(usage)
}
