//! Hard cuts that the released Kimi encoder makes in a text before its split pattern.
//!
//! A cut falls every 400,000 code points, and where a run of whitespace or of non-whitespace would
//! exceed 25,000 code points. The released encoder cuts the whole prompt, so the walk continues
//! from one part of a prompt to the next.

/// Code points per outer slice.
const MAX_SLICE: usize = 400_000;
/// Code points per run of one class.
const MAX_RUN: usize = 25_000;

/// State of the walk over a prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slicer {
    in_slice: usize,
    in_run: usize,
    run_is_space: bool,
}

impl Slicer {
    /// Walks over `text` and appends to `cuts` the byte positions inside it at which it must be cut, ascending.
    pub(crate) fn walk(&mut self, text: &str, cuts: &mut Vec<usize>) {
        for (at, c) in text.char_indices() {
            if self.in_slice == MAX_SLICE {
                cuts.push(at);
                self.in_slice = 0;
            }
            let is_space = is_space(c);
            if self.in_slice == 0 {
                self.in_run = 0;
                self.run_is_space = is_space;
            }
            self.in_slice += 1;
            if is_space != self.run_is_space {
                self.run_is_space = is_space;
                self.in_run = 1;
            } else {
                self.in_run += 1;
                if self.in_run > MAX_RUN {
                    cuts.push(at);
                    self.in_run = 1;
                }
            }
        }
    }
}

/// Python's `str.isspace`: Unicode White_Space and the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The released encoder's two nested loops, transcribed.
    fn upstream(text: &str) -> Vec<String> {
        let chars: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        for slice in chars.chunks(MAX_SLICE) {
            let (mut run, mut space, mut start) = (0, is_space(slice[0]), 0);
            for i in 0..slice.len() {
                let now = is_space(slice[i]);
                if space ^ now {
                    (run, space) = (1, now);
                } else {
                    run += 1;
                    if run > MAX_RUN {
                        pieces.push(slice[start..i].iter().collect());
                        (start, run) = (i, 1);
                    }
                }
            }
            pieces.push(slice[start..].iter().collect());
        }
        pieces
    }

    fn sliced(parts: &[&str]) -> Vec<String> {
        let mut slicer = Slicer::default();
        let mut pieces = Vec::new();
        for part in parts {
            let mut cuts = Vec::new();
            slicer.walk(part, &mut cuts);
            let mut start = 0;
            for cut in cuts {
                pieces.push(part[start..cut].to_owned());
                start = cut;
            }
            pieces.push(part[start..].to_owned());
        }
        pieces
    }

    #[test]
    fn cuts_where_the_released_encoder_does() {
        for text in [
            "abc  def".to_owned(),
            "x".repeat(25_000),
            "x".repeat(25_001),
            "é".repeat(60_000) + &" ".repeat(50_001) + "y",
            "word ".repeat(100_000),
            "z".repeat(830_000),
            "\u{1c}".repeat(30_000),
        ] {
            assert_eq!(sliced(&[&text]), upstream(&text), "{} bytes", text.len());
        }
    }

    #[test]
    fn the_walk_goes_on_over_parts() {
        let (a, b) = ("x".repeat(20_000), "x".repeat(20_000));
        let pieces = sliced(&[&a, &b]);
        assert_eq!(pieces.iter().map(String::len).collect::<Vec<_>>(), [20_000, 5_000, 15_000]);
    }
}
