//! Two checkpoints on one text: how far apart are their predictions, and in which layer they part.

use serde::Serialize;

use crate::calibrate::text_pass::{Documents, Meter, PassError, PassOptions, PassProgress, TextPass};
use perigee_model::NoObserver;
use perigee_ops::Calibrate;
use perigee_text::Tokenizer;

/// What a comparison found. A is the yardstick.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Documents run.
    pub documents: u64,
    /// Tokens run; each gives one prediction.
    pub tokens: u64,
    /// Predictions whose next token the text has.
    pub scored: u64,
    /// exp(mean negative log probability of the next token), A and B.
    pub perplexity: [f64; 2],
    /// Mean over all predictions of KL(A || B), nats.
    pub mean_kl: f64,
    /// The largest of one prediction.
    pub max_kl: f64,
    /// Share of predictions with the same most probable token; the lowest id on ties.
    pub top1_agreement: f64,
    /// Per layer, sqrt(sum over tokens of |a - b|^2 / sum of |a|^2) of the residual stream after it.
    pub layer_errors: Vec<f64>,
    /// Limit of `first_above`.
    pub limit: f64,
    /// First layer whose error is above the limit.
    pub first_above: Option<usize>,
}

impl Comparison {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::from("layer  relative error of hidden states\n");
        for (layer, error) in self.layer_errors.iter().enumerate() {
            let mark = if self.first_above == Some(layer) { "  <- first above the limit" } else { "" };
            text.push_str(&format!("{layer:5}  {error:.6}{mark}\n"));
        }
        let first = self.first_above.map_or("none".to_owned(), |layer| layer.to_string());
        text.push_str(&format!(
            "perplexity {:.4} against {:.4} ({:+.2} %), mean KL {:.6} nats (largest {:.4}), top-1 agreement {:.2} %, \
             first layer above {}: {first}; {} tokens of {} documents\n",
            self.perplexity[0],
            self.perplexity[1],
            (self.perplexity[1] / self.perplexity[0] - 1.0) * 100.0,
            self.mean_kl,
            self.max_kl,
            self.top1_agreement * 100.0,
            self.limit,
            self.tokens,
            self.documents,
        ));
        text
    }
}

/// Sums over predictions.
#[derive(Default)]
struct Sums {
    scored: u64,
    losses: [f64; 2],
    kl: f64,
    max_kl: f64,
    agreed: u64,
}

/// Runs the text through both, layer by layer. The tokenizer is A's; both passes were opened with `options`.
pub fn compare<A: Calibrate, B: Calibrate>(
    a: &mut TextPass<'_, A>,
    b: &mut TextPass<'_, B>,
    tokenizer: &Tokenizer,
    documents: &Documents,
    options: &PassOptions,
    limit: f64,
    progress: &mut dyn FnMut(PassProgress),
) -> Result<Comparison, PassError> {
    let (first, second) = (a.blueprint(), b.blueprint());
    for (what, x, y) in [
        ("layers", first.num_layers, second.num_layers),
        ("hidden size", first.hidden_size, second.hidden_size),
        ("vocabulary", first.vocab_size, second.vocab_size),
    ] {
        if x != y {
            return Err(PassError::Unlike(format!(
                "{what}: {x} and {y}; only checkpoints of one network can be compared"
            )));
        }
    }
    let (num_layers, width) = (first.num_layers, first.hidden_size);
    let mut layer_sums = vec![[0f64; 2]; num_layers];
    let mut sums = Sums::default();
    let (windows, num_documents) = documents.windows(tokenizer, options)?;
    let total: u64 = windows.iter().map(|window| window.len() as u64).sum();
    let mut meter = Meter::new(&windows, num_layers, progress);
    for windows in a.passes(&windows) {
        let (mut from_a, mut from_b) = (a.embed(windows)?, b.embed(windows)?);
        for (layer, layer_sums) in layer_sums.iter_mut().enumerate() {
            a.stream.load(layer)?;
            b.stream.load(layer)?;
            for chunk in a.chunks(windows) {
                a.run_chunk(windows, chunk, &mut from_a, &mut NoObserver)?;
                b.run_chunk(windows, chunk, &mut from_b, &mut NoObserver)?;
                let rows = chunk.rows(width);
                for (x, y) in from_a[rows.clone()].iter().zip(&from_b[rows]) {
                    let (x, y) = (f64::from(*x), f64::from(*y));
                    layer_sums[0] += (x - y) * (x - y);
                    layer_sums[1] += x * x;
                }
                meter.advance(chunk);
            }
        }
        a.stream.load_head()?;
        b.stream.load_head()?;
        let next = windows.iter().flat_map(|window| window.iter().skip(1).copied().map(Some).chain([None]));
        predictions(a, b, [&from_a, &from_b], &next.collect::<Vec<_>>(), &mut sums)?;
    }
    let ratio =
        |[difference, squares]: [f64; 2]| if difference == 0.0 { 0.0 } else { (difference / squares).sqrt() };
    let layer_errors: Vec<f64> = layer_sums.into_iter().map(ratio).collect();
    let perplexity = sums.losses.map(|loss| (loss / sums.scored.max(1) as f64).exp());
    Ok(Comparison {
        documents: num_documents,
        tokens: total,
        scored: sums.scored,
        perplexity,
        mean_kl: sums.kl / total.max(1) as f64,
        max_kl: sums.max_kl,
        top1_agreement: sums.agreed as f64 / total.max(1) as f64,
        // An error that is no number is above every limit.
        first_above: layer_errors.iter().position(|error| error.is_nan() || *error > limit),
        layer_errors,
        limit,
    })
}

/// Adds the predictions of rows whose residual streams after the last layer are `hidden`, `[T, D]` of A and of B. `next`: `[T]`, the token that
/// comes, where the text has one.
fn predictions<A: Calibrate, B: Calibrate>(
    a: &mut TextPass<'_, A>,
    b: &mut TextPass<'_, B>,
    hidden: [&[f32]; 2],
    next: &[Option<u32>],
    sums: &mut Sums,
) -> Result<(), PassError> {
    let (vocab, width) = (a.blueprint().vocab_size, a.blueprint().hidden_size);
    let rows = a.stream.max_logits_rows().min(b.stream.max_logits_rows());
    let chunks = hidden[0].chunks(rows * width).zip(hidden[1].chunks(rows * width));
    for ((rows_a, rows_b), next) in chunks.zip(next.chunks(rows)) {
        let from_a = a.stream.logits(rows_a)?;
        let from_b = b.stream.logits(rows_b)?;
        for ((next, a), b) in next.iter().zip(from_a.chunks(vocab)).zip(from_b.chunks(vocab)) {
            let (log_a, log_b) = (log_softmax(a), log_softmax(b));
            let kl: f64 = log_a
                .iter()
                .zip(&log_b)
                .filter(|(p, _)| **p > f64::NEG_INFINITY)
                .map(|(p, q)| p.exp() * (p - q))
                .sum();
            // Not below zero but for rounding.
            let kl = if kl.is_nan() { f64::NAN } else { kl.max(0.0) };
            sums.kl += kl;
            sums.max_kl = if kl > sums.max_kl || kl.is_nan() { kl } else { sums.max_kl };
            sums.agreed += u64::from(top(a) == top(b));
            if let Some(next) = next {
                sums.scored += 1;
                sums.losses[0] -= log_a[*next as usize];
                sums.losses[1] -= log_b[*next as usize];
            }
        }
    }
    Ok(())
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = logits.iter().map(|x| f64::from(*x) - f64::from(max));
    let sum: f64 = shifted.clone().map(f64::exp).sum();
    shifted.map(|x| x - sum.ln()).collect()
}

/// The most probable token, the lowest id on ties.
fn top(logits: &[f32]) -> usize {
    let better = |best: usize, (i, x): (usize, &f32)| if *x > logits[best] { i } else { best };
    logits.iter().enumerate().fold(0, better)
}

#[cfg(test)]
mod tests;
