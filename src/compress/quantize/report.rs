//! What was lost, per class of modules.

use serde::{Deserialize, Serialize};

use crate::calibrate::calibration::CalibrationReport;
use perigee_model::ModuleClass;
use perigee_numbers::quant::distortion::Distortion;

/// Sums over the tensors of one class that are stored in one way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassReport {
    /// Class.
    pub class: ModuleClass,
    /// How they are stored: a format, or `unchanged`.
    pub stored: String,
    /// Modules; for what is copied, tensors.
    pub count: u64,
    /// Bytes in the source, scales included.
    pub bytes_before: u64,
    /// Bytes in the result, scales included.
    pub bytes_after: u64,
    /// Sum of squared differences.
    pub error: f64,
    /// Sum of squared originals.
    pub signal: f64,
    /// Largest absolute difference.
    pub largest: f64,
}

impl ClassReport {
    /// Of one tensor or module.
    pub(super) fn one(class: ModuleClass, stored: &str, before: u64, after: u64, lost: &Distortion) -> Self {
        Self {
            class,
            stored: stored.into(),
            count: 1,
            bytes_before: before,
            bytes_after: after,
            error: lost.error,
            signal: lost.signal,
            largest: lost.largest,
        }
    }

    /// The measures of what was lost.
    pub fn distortion(&self) -> Distortion {
        Distortion { error: self.error, signal: self.signal, largest: self.largest }
    }
}

/// Adds to the entry of the same class and storage, or makes it.
pub(super) fn add(classes: &mut Vec<ClassReport>, one: &ClassReport) {
    match classes.iter_mut().find(|c| c.class == one.class && c.stored == one.stored) {
        Some(sum) => {
            sum.count += one.count;
            sum.bytes_before += one.bytes_before;
            sum.bytes_after += one.bytes_after;
            sum.error += one.error;
            sum.signal += one.signal;
            sum.largest = sum.largest.max(one.largest);
        }
        None => {
            classes.push(one.clone());
            classes.sort_by(|a, b| (a.class, &a.stored).cmp(&(b.class, &b.stored)));
        }
    }
}

/// The outcome of a whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The options, in words.
    pub options: String,
    /// Shards written, now or by runs that this one took up.
    pub shards: usize,
    /// Shards that were there already.
    pub resumed_shards: usize,
    /// Per class, sorted.
    pub classes: Vec<ClassReport>,
    /// What the calibration texts reached, if there were any.
    pub calibration: Option<CalibrationReport>,
}

impl Report {
    /// As JSON: the classes with their errors, and the sums.
    pub fn json(&self) -> serde_json::Value {
        let classes: Vec<_> = self
            .classes
            .iter()
            .map(|c| {
                let lost = c.distortion();
                let lossless = lost.error == 0.0;
                serde_json::json!({
                    "class": c.class, "stored": c.stored, "count": c.count,
                    "bytes_before": c.bytes_before, "bytes_after": c.bytes_after,
                    "relative_error": lost.relative(),
                    "snr_db": if lossless { None } else { Some(lost.snr_db()) },
                    "largest_difference": lost.largest
                })
            })
            .collect();
        let sum = |f: fn(&ClassReport) -> u64| self.classes.iter().map(f).sum::<u64>();
        serde_json::json!({
            "options": self.options, "shards": self.shards, "resumed_shards": self.resumed_shards,
            "bytes_before": sum(|c| c.bytes_before), "bytes_after": sum(|c| c.bytes_after),
            "classes": classes, "calibration": self.calibration
        })
    }

    /// As a table.
    pub fn table(&self) -> String {
        let mut rows = vec![[
            "modules".to_owned(),
            "stored as".into(),
            "count".into(),
            "MB before".into(),
            "MB after".into(),
            "relative error".into(),
            "SNR dB".into(),
        ]];
        let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        for c in &self.classes {
            let lost = c.distortion();
            let lossless = lost.error == 0.0;
            rows.push([
                c.class.name().into(),
                c.stored.clone(),
                c.count.to_string(),
                megabytes(c.bytes_before),
                megabytes(c.bytes_after),
                if lossless { "0".into() } else { format!("{:.4}", lost.relative()) },
                if lossless { "-".into() } else { format!("{:.1}", lost.snr_db()) },
            ]);
        }
        let sum = |f: fn(&ClassReport) -> u64| self.classes.iter().map(f).sum::<u64>();
        let (before, after) = (sum(|c| c.bytes_before), sum(|c| c.bytes_after));
        let empty = String::new;
        rows.push(["all".into(), empty(), empty(), megabytes(before), megabytes(after), empty(), empty()]);
        let widths: [usize; 7] =
            std::array::from_fn(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0));
        let mut text = format!("{}\n", self.options);
        for row in &rows {
            let cells: Vec<String> = row
                .iter()
                .zip(widths)
                .enumerate()
                .map(
                    |(i, (cell, width))| {
                        if i < 2 { format!("{cell:width$}") } else { format!("{cell:>width$}") }
                    },
                )
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        if let Some(calibration) = &self.calibration {
            text.push_str(&calibration.text());
        }
        text
    }
}
