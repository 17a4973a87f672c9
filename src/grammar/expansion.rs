//! How much one step of the grammar engine may build: an estimate over a grammar's expressions, before the first step.
//!
//! The engine takes Brzozowski derivatives of patterns, counts what they cost, and looks at its limits between two of them. One
//! derivative can be quadratic: that of `a?a?a?...` is, for each of its ends, the list of all shorter ends. Its size follows from
//! the expressions alone, in one pass in their own order.

use derivre::ExprRef;
use derivre::raw::ExprSet;

/// Kinds of expressions, by the engine's own numbers.
const CONCAT: u8 = 10;
const OR: u8 = 11;
const AND: u8 = 12;

/// Entries in all lists that one derivative of each of these expressions has, at most. Saturates.
pub(super) fn of_one_step(expressions: &ExprSet) -> u64 {
    // Of each expression: alternatives of its derivative.
    let mut alternatives: Vec<u64> = Vec::with_capacity(expressions.len());
    let mut total: u64 = 0;
    for id in 0..expressions.len() as u32 {
        let expression = ExprRef::new(id);
        // Id 0 is no expression.
        if !expressions.is_valid(expression) {
            alternatives.push(0);
            continue;
        }
        // An expression comes after those it is made of.
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
