//! Sizes that the grammar engine may build between two checks of its limits, computed from a
//! grammar's expressions beforehand.
//!
//! The engine takes Brzozowski derivatives of patterns, counts their cost, and checks its limits
//! between two derivatives. One derivative can be quadratic: that of `a?a?a?...` is, for each of
//! its ends, the list of all shorter ends. Its size follows from the expressions alone, in one pass
//! in their own order.
//!
//! Building a lexer takes the first derivative by every byte and asks of each whether any text
//! matches. For intersections and complements that is a search over products of states, `(a{3})*b &
//! (a{5})*b & ...`, and this first search, unlike later ones, has no limit in the engine.

use derivre::raw::{DerivCache, ExprSet, RelevanceCache};
use derivre::{AlphabetInfo, ExprRef};

/// Kinds of expressions, by the engine's own numbers.
const NOT: u8 = 8;
const CONCAT: u8 = 10;
const OR: u8 = 11;
const AND: u8 = 12;

/// Upper bound on the entries in all lists that one derivative of each of these expressions has.
/// Saturates.
pub(super) fn of_one_step(expressions: &ExprSet) -> u64 {
    // Per expression: alternatives of its derivative.
    let mut alternatives: Vec<u64> = Vec::with_capacity(expressions.len());
    let mut total: u64 = 0;
    for id in 0..expressions.len() as u32 {
        let expression = ExprRef::new(id);
        // Id 0 is no expression.
        if !expressions.is_valid(expression) {
            alternatives.push(0);
            continue;
        }
        // An expression comes after its parts.
        let of = |part: &ExprRef| alternatives.get(part.as_usize()).copied().unwrap_or(1);
        let parts = expressions.get_args(expression);
        let own = match (expressions.get_tag(expression) as u8, parts) {
            (CONCAT, [first, rest]) if expressions.is_nullable(*first) => of(rest).saturating_add(1),
            (OR, parts) => parts.iter().map(of).fold(0, u64::saturating_add),
            (AND, parts) => parts.len() as u64,
            _ => 1,
        };
        alternatives.push(own);
        total = total.saturating_add(own);
    }
    total
}

/// Steps that the engine takes to decide whether any text begins with each byte, over all
/// intersections and complements. `None` where one byte takes more than `limit`, or all of them
/// more than `limit_of_all`.
pub(super) fn first_steps(expressions: &ExprSet, limit: u64, limit_of_all: u64) -> Option<u64> {
    let searched: Vec<ExprRef> = (0..expressions.len() as u32)
        .map(ExprRef::new)
        .filter(|&id| expressions.is_valid(id) && matches!(expressions.get_tag(id) as u8, AND | NOT))
        .collect();
    if searched.is_empty() {
        return Some(0);
    }
    let (alphabet, mut expressions, searched) = AlphabetInfo::from_exprset(expressions.clone(), &searched);
    let (mut derivatives, mut relevance) = (DerivCache::new(), RelevanceCache::new());
    // One byte stands for all bytes that no pattern tells apart.
    let mut known = [false; 256];
    let bytes: Vec<u8> =
        (0..=255).filter(|&byte| !std::mem::replace(&mut known[alphabet.map(byte)], true)).collect();
    let start = expressions.cost();
    for expression in searched {
        for &byte in &bytes {
            let rest = derivatives.derivative(&mut expressions, expression, byte);
            relevance.is_non_empty_limited(&mut expressions, rest, limit).ok()?;
            if expressions.cost() - start > limit_of_all {
                return None;
            }
        }
    }
    Some(expressions.cost() - start)
}

#[cfg(test)]
mod tests {
    use derivre::RegexBuilder;

    use super::*;

    fn estimate(pattern: &str) -> u64 {
        let mut builder = RegexBuilder::new();
        builder.mk_regex(pattern).unwrap();
        of_one_step(builder.exprset())
    }

    #[test]
    fn kinds_have_their_numbers() {
        for (pattern, kind) in [("[ab]?[cd]", CONCAT), ("[ab]*|[cd]x", OR)] {
            let mut builder = RegexBuilder::new();
            let made = builder.mk_regex(pattern).unwrap();
            assert_eq!(builder.exprset().get_tag(made) as u8, kind, "{pattern}");
        }
        let mut builder = RegexBuilder::new();
        let made = builder.mk_regex_and(&["[ab]*", "[bc]*x"]).unwrap();
        assert_eq!(builder.exprset().get_tag(made) as u8, AND);
    }

    /// `(a{n})*b`, one `a` missing, for each length: the shortest match has the product of the
    /// lengths, less one, as its number of `a`.
    fn steps_of_cycles(lengths: &[usize], limit: u64) -> Option<u64> {
        let patterns: Vec<String> =
            lengths.iter().map(|&length| format!("{}(a{{{length}}})*b", "a".repeat(length - 1))).collect();
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let mut builder = RegexBuilder::new();
        builder.mk_regex_and(&patterns).unwrap();
        first_steps(builder.exprset(), limit, 8 * limit)
    }

    #[test]
    fn a_search_over_a_product_of_states_ends_at_its_limit() {
        let few = steps_of_cycles(&[3, 5], 1_000_000).unwrap();
        let more = steps_of_cycles(&[3, 5, 7, 11], 1_000_000).unwrap();
        assert!(more > 10 * few, "{few} and {more}");
        assert_eq!(steps_of_cycles(&[3, 5, 7, 11], more / 20), None);
        assert_eq!(steps_of_cycles(&[3, 5, 7, 11, 13, 17, 19, 23, 29, 31], 1_000_000), None);
    }

    #[test]
    fn chains_of_options_are_quadratic_and_other_patterns_are_not() {
        for count in [100, 1000, 10_000] {
            let found = estimate(&"a?".repeat(count));
            let expected = (count * count / 2) as u64;
            assert!((expected..2 * expected + 100).contains(&found), "{count}: {found}");
            for pattern in ["[a-z]", "(ab|cd)", "a{1,9}b", "a?b"] {
                let found = estimate(&pattern.repeat(count));
                assert!(found < 20 * count as u64 + 1000, "{pattern} x {count}: {found}");
            }
        }
    }
}
