//! Ends a block of the reply (reasoning) in time and requires content after it.
//!
//! Before each draw a rule forces a token or forbids ids. It depends on the reply's tokens alone,
//! so a reply that was cut back continues as one that was never longer.

use std::sync::Arc;

/// Upper bound on blank tokens after a block; further ones are forbidden.
const MAX_BLANK: u32 = 4;

/// A request's rule for the block of its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRule {
    /// The prompt left the block open.
    pub starts_inside: bool,
    /// Opens the block.
    pub open: u32,
    /// Closes the block; forced when the limit is reached.
    pub close: u32,
    /// Tokens that leave the block and are content by themselves.
    pub leave: Vec<u32>,
    /// Tokens that leave the block without being content: their section may be empty, so content
    /// must still follow.
    pub promise: Vec<u32>,
    /// Upper bound on the tokens inside, over all blocks of the reply; 0 closes a block at once.
    pub max_tokens: u32,
    /// Tokens that end the reply; forbidden inside the block, and after it until content has
    /// followed.
    pub ends: Vec<u32>,
    /// Tokens without content (white space, markers), ascending.
    pub blank: Arc<[u32]>,
}

/// Position of a reply under its rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Standing {
    inside: bool,
    /// Tokens inside the block so far.
    spent: u32,
    /// A block was closed and only blank tokens have followed.
    owes_content: bool,
    blanks: u32,
}

/// A rule and the position of one reply under it.
#[derive(Debug, Clone)]
pub struct BlockGuide {
    rule: Arc<BlockRule>,
    standing: Standing,
}

impl BlockGuide {
    /// At the start of a reply.
    pub fn new(rule: Arc<BlockRule>) -> Self {
        let standing = Standing { inside: rule.starts_inside, ..Standing::default() };
        Self { rule, standing }
    }

    /// The forced next token; `None` if the draw is free.
    pub fn forced(&self) -> Option<u32> {
        (self.standing.inside && self.standing.spent >= self.rule.max_tokens).then_some(self.rule.close)
    }

    /// Appends the ids forbidden as the next token.
    pub fn forbid(&self, out: &mut Vec<u32>) {
        let (rule, standing) = (&*self.rule, &self.standing);
        if standing.inside || standing.owes_content {
            out.extend_from_slice(&rule.ends);
        }
        if !standing.inside && standing.owes_content {
            out.extend([rule.open, rule.close]);
            if standing.blanks >= MAX_BLANK {
                out.extend_from_slice(&rule.blank);
            }
        }
    }

    /// Advances the position by a reply token.
    pub fn advance(&mut self, token: u32) {
        let (rule, standing) = (&*self.rule, &mut self.standing);
        if standing.inside {
            standing.spent += 1;
            if token == rule.close {
                (standing.inside, standing.owes_content, standing.blanks) = (false, true, 0);
            } else if rule.leave.contains(&token) {
                (standing.inside, standing.owes_content) = (false, false);
            } else if rule.promise.contains(&token) {
                (standing.inside, standing.owes_content, standing.blanks) = (false, true, 0);
            }
        } else if token == rule.open {
            standing.inside = true;
        } else if standing.owes_content && !rule.promise.contains(&token) {
            let blank = rule.blank.binary_search(&token).is_ok();
            standing.owes_content = blank;
            standing.blanks += u32::from(blank);
        }
    }

    /// Restarts with the tokens that a cut left.
    pub fn replay(&mut self, reply: &[u32]) {
        *self = Self::new(Arc::clone(&self.rule));
        reply.iter().for_each(|&token| self.advance(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: u32 = 90;
    const CLOSE: u32 = 91;
    const CALLS: u32 = 92;
    const SECTION: u32 = 93;
    const SECTION_END: u32 = 2;
    const END: u32 = 99;
    const BLANK: u32 = 1;

    fn guide(starts_inside: bool, max_tokens: u32) -> BlockGuide {
        BlockGuide::new(Arc::new(BlockRule {
            starts_inside,
            open: OPEN,
            close: CLOSE,
            leave: vec![CALLS],
            promise: vec![SECTION],
            max_tokens,
            ends: vec![END],
            blank: vec![BLANK, SECTION_END, END].into(),
        }))
    }

    /// Tokens written by a model that wants to write `wants`; a refused token is dropped from
    /// `wants`.
    fn written(guide: &mut BlockGuide, wants: &[u32]) -> Vec<u32> {
        let mut reply = Vec::new();
        for &want in wants {
            while let Some(forced) = guide.forced() {
                guide.advance(forced);
                reply.push(forced);
            }
            let mut forbidden = Vec::new();
            guide.forbid(&mut forbidden);
            let token = match forbidden.contains(&want) {
                true => (50..).find(|token| !forbidden.contains(token)).unwrap(),
                false => want,
            };
            guide.advance(token);
            reply.push(token);
        }
        reply
    }

    #[test]
    fn the_block_closes_in_time_and_content_follows() {
        for (starts_inside, max_tokens, wants, expected) in [
            (true, 2, &[5, 6, 7, END][..], &[5, 6, CLOSE, 7, END][..]),
            (true, 0, &[5, END], &[CLOSE, 5, END]),
            (true, 9, &[5, CLOSE, END, END], &[5, CLOSE, 50, END]),
            (true, 9, &[5, CLOSE, BLANK, END, END], &[5, CLOSE, BLANK, 50, END]),
            // The reply does not end inside the block; the model closes the block itself.
            (true, 9, &[5, END, 7, CLOSE, 8, END], &[5, 50, 7, CLOSE, 8, END]),
            (true, 9, &[5, CALLS, END], &[5, CALLS, END]),
            (true, 9, &[5, CLOSE, CALLS, END], &[5, CLOSE, CALLS, END]),
            (true, 9, &[5, SECTION, CALLS, END], &[5, SECTION, CALLS, END]),
            // A section without a call is not content, by whichever token it begins.
            (
                true,
                9,
                &[5, CLOSE, SECTION, SECTION_END, END, END],
                &[5, CLOSE, SECTION, SECTION_END, 50, END],
            ),
            (true, 9, &[5, SECTION, SECTION_END, END, END], &[5, SECTION, SECTION_END, 50, END]),
            // Blank tokens before a call do not forbid it.
            (
                true,
                9,
                &[CLOSE, BLANK, BLANK, BLANK, BLANK, SECTION, CALLS, END],
                &[CLOSE, BLANK, BLANK, BLANK, BLANK, SECTION, CALLS, END],
            ),
            (true, 9, &[5, CLOSE, OPEN, CLOSE, 6], &[5, CLOSE, 50, CLOSE, 6]),
            (
                true,
                9,
                &[CLOSE, BLANK, BLANK, BLANK, BLANK, BLANK, END],
                &[CLOSE, BLANK, BLANK, BLANK, BLANK, 50, END],
            ),
            (false, 2, &[OPEN, 5, 6, 7, END], &[OPEN, 5, 6, CLOSE, 7, END]),
            (false, 2, &[5, END], &[5, END]),
            (true, 3, &[5, CLOSE, 6, OPEN, 7, 8, END], &[5, CLOSE, 6, OPEN, 7, CLOSE, 8, END]),
        ] {
            assert_eq!(written(&mut guide(starts_inside, max_tokens), wants), expected, "{wants:?}");
        }
    }

    #[test]
    fn replayed_then_continued_equals_never_having_gone_there() {
        let mut rng = fastrand::Rng::with_seed(3);
        let tokens = [OPEN, CLOSE, CALLS, SECTION, SECTION_END, END, BLANK, 5, 6];
        let mut draw = |n| -> Vec<u32> { (0..n).map(|_| tokens[rng.usize(..tokens.len())]).collect() };
        for length in 0..60 {
            let (kept, lost, new) = (draw(length), draw(9), draw(9));
            let (mut a, mut b) = (guide(true, 4), guide(true, 4));
            let reply = written(&mut a, &kept);
            written(&mut a, &lost);
            a.replay(&reply);
            written(&mut b, &kept);
            assert_eq!(written(&mut a, &new), written(&mut b, &new));
            assert_eq!(a.standing, b.standing);
        }
    }
}
