//! `uniqueItems` of items that can be listed.

use serde_json::{Map, Value, json};

use super::document::{Document, same, types};

/// Most lists that are written out.
const MAX_LISTS: usize = 256;
/// Most values of an item, and most that are read.
const MAX_VALUES: usize = 8;
const MAX_READ: usize = 64;

/// Puts the rule that no item comes twice into the other keywords of a schema, by listing the lists:
/// in any order if these are few, else in the order of the values. Returns whether this was possible.
pub(super) fn expand(document: Document<'_>, object: &mut Map<String, Value>) -> bool {
    let count = |keyword: &str| object.get(keyword).and_then(Value::as_f64).map(|count| count as usize);
    let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
    let kinds = types(&[object]);
    if most.is_some_and(|most| most <= 1) || !kinds.contains(&"array") {
        return true;
    }
    let is_plain = !["prefixItems", "additionalItems"].iter().any(|keyword| object.contains_key(*keyword));
    let values = object
        .get("items")
        .filter(|items| is_plain && items.is_object())
        .and_then(|items| document.values(&document.parts(items)?));
    let Some(mut values) = values.filter(|values| values.len() <= MAX_READ) else { return false };
    let mut distinct: Vec<Value> = Vec::new();
    values.retain(|value| {
        let fresh = !distinct.iter().any(|known| same(known, value));
        if fresh {
            distinct.push(value.clone());
        }
        fresh
    });
    let most = most.unwrap_or(values.len()).min(values.len());
    if least > most {
        join(object, false.into());
        return true;
    }
    if values.len() > MAX_VALUES {
        return false;
    }
    let lists =
        arrangements(&values, least, most, true).or_else(|| arrangements(&values, least, most, false));
    let Some(lists) = lists else { return false };
    let others: Vec<&str> = kinds.into_iter().filter(|kind| *kind != "array").collect();
    let lists = json!({"enum": lists});
    let rule = if others.is_empty() { lists } else { json!({"anyOf": [lists, {"type": others}]}) };
    join(object, rule);
    true
}

/// Lists of `least` to `most` different values, shorter ones first; `None` if they are too many.
fn arrangements(values: &[Value], least: usize, most: usize, any_order: bool) -> Option<Vec<Vec<Value>>> {
    let mut lists = Vec::new();
    // Lists of indices, each one longer than in the round before.
    let mut round: Vec<Vec<usize>> = vec![Vec::new()];
    for length in 0..=most {
        if length >= least {
            lists.extend(round.iter().map(|list| list.iter().map(|&at| values[at].clone()).collect()));
        }
        let longer = |list: &Vec<usize>| -> Vec<Vec<usize>> {
            let fits = |at: &usize| {
                if any_order { !list.contains(at) } else { list.last().is_none_or(|last| last < at) }
            };
            (0..values.len()).filter(fits).map(|at| [&list[..], &[at]].concat()).collect()
        };
        round = round.iter().flat_map(longer).collect();
        if lists.len() > MAX_LISTS || (length < most && round.len() > MAX_LISTS) {
            return None;
        }
    }
    Some(lists)
}

/// Adds a schema that is met too.
pub(super) fn join(object: &mut Map<String, Value>, schema: Value) {
    match object.get_mut("allOf") {
        Some(Value::Array(parts)) => parts.push(schema),
        _ => {
            object.insert("allOf".into(), json!([schema]));
        }
    }
}
