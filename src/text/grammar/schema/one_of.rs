//! `oneOf` as `anyOf`: the same where no value meets two branches.
//!
//! Branches are disjoint by their types, their values, their bounds, their patterns, or a member that
//! one of them requires. Where only a member that is optional tells them apart (the tag of a union),
//! the reply has that member: a value without it would often meet two branches. Otherwise each branch
//! is joined with the complement of the others.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::pattern::{Pattern, Texts};
use super::complement::Complement;
use super::document::{self, Document, same, types};

/// Most branches that are compared, and most pairs of them that may be met at once.
const MAX_BRANCHES: usize = 64;
const MAX_MEETING: usize = 64;
/// Schemas that one comparison of two branches may look at.
const COMPARISON_FUEL: usize = 400;
/// Deepest nesting that is compared.
const MAX_DEPTH: usize = 12;
/// Most values of an enumeration that are tried with a pattern.
const MAX_TRIED: usize = 256;

/// A `oneOf` whose branches no value meets twice.
pub(super) struct Disjoint {
    pub(super) branches: Vec<Branch>,
}

/// A branch and what is joined with it.
pub(super) struct Branch {
    pub(super) schema: Value,
    /// A member that the branch has to have.
    pub(super) tag: Option<String>,
    /// Schemas that are met too.
    pub(super) with: Vec<Value>,
}

/// Makes the branches of a `oneOf` disjoint; `beside` are the keywords beside it.
///
/// Errors: why two branches may be met at once.
pub(super) fn disjoint(
    document: Document<'_>,
    beside: &Value,
    branches: &[Value],
    steps: &mut usize,
) -> Result<Disjoint, String> {
    let plain = |schema: &Value| Branch { schema: schema.clone(), tag: None, with: Vec::new() };
    let own_tag = by_tag(document, beside, branches);
    if let Some((_, true)) = own_tag {
        return Ok(Disjoint { branches: branches.iter().map(plain).collect() });
    }
    if branches.len() > MAX_BRANCHES {
        if let Some((tag, _)) = own_tag {
            let tagged = |schema: &Value| Branch { tag: Some(tag.clone()), ..plain(schema) };
            return Ok(Disjoint { branches: branches.iter().map(tagged).collect() });
        }
        return Err(format!("it has more than {MAX_BRANCHES} branches, and no tag tells them apart"));
    }
    let pairs = || (0..branches.len()).flat_map(|a| (a + 1..branches.len()).map(move |b| (a, b)));
    let mut meet = Vec::new();
    for (a, b) in pairs() {
        if !are_disjoint(document, &[beside, &branches[a]], &[beside, &branches[b]], steps) {
            meet.push((a, b));
        }
    }
    if meet.is_empty() {
        return Ok(Disjoint { branches: branches.iter().map(plain).collect() });
    }
    for tag in tags(document, beside, branches) {
        let has_tag = json!({"type": "object", "required": [tag]});
        let describes = |branch: &Value| {
            let parts = document.parts(branch).unwrap_or_default();
            parts.iter().any(|part| part.get("properties").and_then(|members| members.get(&tag)).is_some())
        };
        let tells = |&(a, b): &(usize, usize)| {
            // A branch that does not know the member would be lost.
            if !describes(&branches[a]) || !describes(&branches[b]) {
                return false;
            }
            let (a, b) = ([beside, &branches[a], &has_tag], [beside, &branches[b], &has_tag]);
            are_disjoint(document, &a, &b, steps)
        };
        if meet.iter().all(tells) {
            let tagged = |(number, schema): (usize, &Value)| {
                let meets = meet.iter().any(|&(a, b)| a == number || b == number);
                Branch { tag: Some(tag.clone()).filter(|_| meets), ..plain(schema) }
            };
            return Ok(Disjoint { branches: branches.iter().enumerate().map(tagged).collect() });
        }
    }
    if meet.len() > MAX_MEETING {
        return Err(format!("more than {MAX_MEETING} pairs of its branches can be met at once"));
    }
    let mut found: Vec<Branch> = branches.iter().map(plain).collect();
    for (a, b) in meet {
        let mut complement = Complement { document, steps, fuel: COMPARISON_FUEL };
        let without = |what: String, other: usize| {
            format!("branches {a} and {b} can be met at once, and branch {other} has no complement: {what}")
        };
        let no_b = complement.of(&branches[b]).map_err(|what| without(what, b))?;
        let no_a = complement.of(&branches[a]).map_err(|what| without(what, a))?;
        found[a].with.push(no_b);
        found[b].with.push(no_a);
    }
    Ok(Disjoint { branches: found })
}

/// The member that has texts of its own in each branch, and whether every branch requires it.
fn by_tag(document: Document<'_>, beside: &Value, branches: &[Value]) -> Option<(String, bool)> {
    let around = document.parts(beside)?;
    tags(document, beside, branches).into_iter().find_map(|tag| {
        let (mut known, mut is_required) = (HashSet::new(), true);
        let tells = |branch: &Value| {
            let Some(own) = document.parts(branch) else { return true };
            let parts: Parts<'_> = around.iter().copied().chain(own).collect();
            is_required &= required(&parts).contains(&tag.as_str());
            let Some(member) = member(document, &parts, &tag) else { return false };
            let texts = document.values(&member).unwrap_or_default();
            let is_new = |text: &Value| text.as_str().is_some_and(|text| known.insert(text.to_owned()));
            types(&parts) == ["object"] && !texts.is_empty() && texts.iter().all(is_new)
        };
        let all = branches.iter().all(tells);
        all.then_some((tag, is_required))
    })
}

/// Members that may tell the branches apart: the one that is named, then those of the first branch.
fn tags(document: Document<'_>, beside: &Value, branches: &[Value]) -> Vec<String> {
    let named = beside.pointer("/discriminator/propertyName").and_then(Value::as_str).map(str::to_owned);
    let of_first = branches.first().and_then(|branch| document.parts(branch)).unwrap_or_default();
    let members = of_first.iter().filter_map(|part| part.get("properties")?.as_object()).flat_map(Map::keys);
    named.into_iter().chain(members.cloned()).take(16).collect()
}

/// Whether no value meets all schemas of both lists, as far as this can be seen.
fn are_disjoint(document: Document<'_>, a: &[&Value], b: &[&Value], steps: &mut usize) -> bool {
    let mut comparison = Comparison { document, steps, fuel: COMPARISON_FUEL };
    match (comparison.parts(a), comparison.parts(b)) {
        (Some(a), Some(b)) => comparison.disjoint(&a, &b, 0),
        _ => true,
    }
}

/// Objects of which a value meets all.
type Parts<'a> = Vec<&'a Map<String, Value>>;

struct Comparison<'a, 'b> {
    document: Document<'a>,
    steps: &'b mut usize,
    fuel: usize,
}

impl<'a> Comparison<'a, '_> {
    fn parts(&self, schemas: &[&'a Value]) -> Option<Parts<'a>> {
        let mut parts = Vec::new();
        for schema in schemas {
            parts.extend(self.document.parts(schema)?);
        }
        Some(parts)
    }

    fn disjoint(&mut self, a: &Parts<'a>, b: &Parts<'a>, depth: usize) -> bool {
        if depth > MAX_DEPTH || self.fuel == 0 || !self.spend(1 + a.len() + b.len()) {
            return false;
        }
        self.fuel -= 1;
        let kinds = types(&[&a[..], &b[..]].concat());
        let is_only = |kind: &str| kinds == [kind];
        kinds.is_empty()
            || self.by_values(a, b)
            || is_only("number") && by_bounds(a, b)
            || is_only("string") && (by_counts(a, b, "minLength", "maxLength") || self.by_patterns(a, b))
            || is_only("array") && by_counts(a, b, "minItems", "maxItems")
            || is_only("object") && self.by_members(a, b, depth)
            || self.by_ways(a, b, depth)
            || self.by_ways(b, a, depth)
    }

    /// Counts work beyond that of patterns.
    fn spend(&mut self, count: usize) -> bool {
        let left = self.steps.checked_sub(count);
        *self.steps = left.unwrap_or(0);
        left.is_some()
    }

    fn by_values(&mut self, a: &Parts<'a>, b: &Parts<'a>) -> bool {
        match (self.document.values(a), self.document.values(b)) {
            (Some(a), Some(b)) if self.spend(a.len() + b.len() + a.len().saturating_mul(b.len()) / 16) => {
                !a.iter().any(|value| b.iter().any(|other| same(value, other)))
            }
            _ => false,
        }
    }

    /// Patterns that no text matches at once, or that none of the named texts matches.
    fn by_patterns(&mut self, a: &Parts<'a>, b: &Parts<'a>) -> bool {
        let steps = &mut *self.steps;
        let mut texts = |parts: &Parts<'a>| -> Option<Texts> {
            let patterns = parts.iter().filter_map(|part| part.get("pattern")?.as_str());
            let all = patterns
                .map(|pattern| Pattern::read(pattern, steps))
                .collect::<Result<Vec<Pattern>, _>>()
                .ok()?;
            (!all.is_empty()).then(|| Texts { all, none: Vec::new() })
        };
        let named =
            |parts: &Parts<'a>| self.document.values(parts).filter(|values| values.len() <= MAX_TRIED);
        let (a_texts, b_texts) = (texts(a), texts(b));
        let none_accepted = |values: &[Value], texts: &Texts, steps: &mut usize| {
            let accepted = texts.accept(values.iter().filter_map(Value::as_str), steps);
            accepted.is_ok_and(|accepted| !accepted.contains(&true))
        };
        match (named(a), named(b), a_texts, b_texts) {
            (Some(values), _, _, Some(texts)) | (_, Some(values), Some(texts), _) => {
                none_accepted(&values, &texts, self.steps)
            }
            (_, _, Some(mut both), Some(more)) => {
                both.all.extend(more.all);
                both.is_empty(self.steps).unwrap_or(false)
            }
            _ => false,
        }
    }

    /// A member that one side requires, and whose values are not the same.
    fn by_members(&mut self, a: &Parts<'a>, b: &Parts<'a>, depth: usize) -> bool {
        let mut names = required(a);
        names.extend(required(b));
        names.sort_unstable();
        names.dedup();
        self.spend(names.len())
            && names.into_iter().any(|name| {
                let both = (member(self.document, a, name), member(self.document, b, name));
                let (Some(a), Some(b)) = both else { return true };
                self.disjoint(&a, &b, depth + 1)
            })
    }

    /// Whether each way of `anyOf` or `oneOf` in `a` is disjoint from `b`.
    fn by_ways(&mut self, a: &Parts<'a>, b: &Parts<'a>, depth: usize) -> bool {
        for part in a {
            for ways in ["anyOf", "oneOf"].into_iter().filter_map(|keyword| part.get(keyword)?.as_array()) {
                let all = ways.iter().all(|way| {
                    let Some(own) = self.document.parts(way) else { return true };
                    // The part without its ways would be split again.
                    let mut with: Parts<'a> =
                        a.iter().copied().filter(|other| !std::ptr::eq(*other, *part)).collect();
                    with.extend(own);
                    self.disjoint(&with, b, depth + 1)
                });
                if all {
                    return true;
                }
            }
        }
        false
    }
}

/// The members that the parts require.
fn required<'a>(parts: &Parts<'a>) -> Vec<&'a str> {
    let lists = parts.iter().filter_map(|part| part.get("required")?.as_array());
    lists.flatten().filter_map(Value::as_str).collect()
}

/// What the parts say of a member; `None` where it may not be.
fn member<'a>(document: Document<'a>, parts: &Parts<'a>, name: &str) -> Option<Parts<'a>> {
    let mut found = Vec::new();
    for part in parts {
        let own = part.get("properties").and_then(|members| members.get(name));
        match (own, part.get("additionalProperties")) {
            (Some(schema), _) => found.extend(document.parts(schema)?),
            (None, Some(Value::Bool(false))) if !part.contains_key("patternProperties") => return None,
            _ => {}
        }
    }
    Some(found)
}

/// The tightest bound among the parts.
fn bound(parts: &[&Map<String, Value>], keyword: &str, tighter: fn(f64, f64) -> f64) -> Option<f64> {
    parts.iter().filter_map(|part| part.get(keyword)?.as_f64()).reduce(tighter)
}

/// Numbers of which one side's are all below the other's.
fn by_bounds(a: &Parts<'_>, b: &Parts<'_>) -> bool {
    let below = |low: &Parts<'_>, high: &Parts<'_>| {
        let most = (bound(low, "maximum", f64::min), bound(low, "exclusiveMaximum", f64::min));
        let least = (bound(high, "minimum", f64::max), bound(high, "exclusiveMinimum", f64::max));
        let less = |most: Option<f64>, least: Option<f64>, or_equal: bool| {
            most.zip(least).is_some_and(|(most, least)| most < least || (or_equal && most == least))
        };
        less(most.0, least.0, false)
            || less(most.0, least.1, true)
            || less(most.1, least.0, true)
            || less(most.1, least.1, true)
    };
    below(a, b) || below(b, a)
}

/// Counts of which one side's are all below the other's.
fn by_counts(a: &Parts<'_>, b: &Parts<'_>, least: &str, most: &str) -> bool {
    let below = |low: &Parts<'_>, high: &Parts<'_>| {
        let ends = bound(low, most, f64::min).zip(bound(high, least, f64::max));
        ends.is_some_and(|(most, least)| most < least)
    };
    below(a, b) || below(b, a)
}

/// Whether the schema is a reference alone.
pub(super) fn is_reference(schema: &Value) -> Option<&str> {
    let object = schema.as_object()?;
    let alone = object.keys().all(|key| key == "$ref" || document::is_note(key));
    object.get("$ref").and_then(Value::as_str).filter(|_| alone)
}
