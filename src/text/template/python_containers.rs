//! Lists and maps that methods change, as Python's do, and namespaces.
//!
//! A list or map never contains another: what is put into it is copied as it is then. A namespace may hold those that
//! change, and no other namespace. So no value contains itself, and nothing that walks one runs for ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::python_values::invalid;
use minijinja::value::{
    Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Error, ErrorKind, State};

/// Values that lists and maps take up in one rendering, those inside of values included. A long conversation needs some
/// ten thousand.
const MAX_VALUES: usize = 4_000_000;
/// Values that are looked at in one rendering before namespaces take them: about a second.
const MAX_LOOKS: usize = 20_000_000;
/// Deepest nesting of a value in a list, map or namespace.
const MAX_DEPTH: usize = 100;
/// A list that methods change.
#[derive(Debug, Default)]
struct List(Mutex<Vec<Value>>);

impl List {
    fn values(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.values().len())
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let none = Ok(Value::from(()));
        match method {
            "append" => {
                let (value,): (Value,) = from_args(args)?;
                let value = frozen(state, &value, 0)?;
                self.values().push(value);
                none
            }
            "extend" => {
                let (more,): (Value,) = from_args(args)?;
                let more: Vec<Value> = more.try_iter()?.collect();
                let more = more.iter().map(|value| frozen(state, value, 0)).collect::<Result<Vec<_>, _>>()?;
                self.values().extend(more);
                none
            }
            "insert" => {
                let (at, value): (i64, Value) = from_args(args)?;
                let value = frozen(state, &value, 0)?;
                let mut values = self.values();
                let at = place(at, values.len()).clamp(0, values.len() as i64);
                spend(state, values.len())?;
                values.insert(at as usize, value);
                none
            }
            "pop" => {
                let (at,): (Option<i64>,) = from_args(args)?;
                let mut values = self.values();
                let at = place(at.unwrap_or(-1), values.len());
                spend(state, if at + 1 == values.len() as i64 { 0 } else { values.len() })?;
                match usize::try_from(at) {
                    Ok(at) if at < values.len() => Ok(values.remove(at)),
                    _ => Err(invalid("pop index out of range")),
                }
            }
            "remove" => {
                let (value,): (Value,) = from_args(args)?;
                // Compared while the list is locked: it must not be this list.
                let value = frozen(state, &value, 0)?;
                let mut values = self.values();
                spend(state, values.len())?;
                let at = values.iter().position(|other| *other == value);
                values.remove(at.ok_or_else(|| invalid("list.remove: the value is not in the list"))?);
                none
            }
            "clear" => {
                let () = from_args(args)?;
                self.values().clear();
                none
            }
            "reverse" => {
                let () = from_args(args)?;
                let mut values = self.values();
                spend(state, values.len())?;
                values.reverse();
                none
            }
            "sort" => {
                let (options,): (Kwargs,) = from_args(args)?;
                let reverse = options.get::<Option<bool>>("reverse")?.unwrap_or_default();
                options.assert_all_used()?;
                let mut values = self.values();
                spend(state, values.len())?;
                values.sort();
                if reverse {
                    values.reverse();
                }
                none
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// A map that methods change.
#[derive(Debug, Default)]
struct Dict(Mutex<Entries>);

/// Values by key, each with its place in the order of insertion.
#[derive(Debug, Default)]
struct Entries {
    by_key: BTreeMap<Value, (usize, Value)>,
    next: usize,
}

impl Entries {
    fn insert(&mut self, key: Value, value: Value) {
        let at = self.by_key.get(&key).map_or(self.next, |(at, _)| *at);
        self.next += 1;
        self.by_key.insert(key, (at, value));
    }

    fn in_order(&self) -> Vec<(Value, Value)> {
        let mut entries: Vec<_> = self.by_key.iter().collect();
        entries.sort_by_key(|(_, (at, _))| *at);
        entries.into_iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect()
    }
}

impl Dict {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        // A map or list as the key may be this map, which is locked.
        let is_plain = !matches!(key.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable);
        is_plain.then(|| self.entries().by_key.get(key).map(|(_, value)| value.clone()))?
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.entries().in_order().into_iter().map(|(key, _)| key).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries().by_key.len())
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match method {
            "update" => {
                // A map, pairs, or arguments by name, which are a map too.
                for more in args {
                    let pairs = pairs_of(state, more)?;
                    let mut entries = self.entries();
                    pairs.into_iter().for_each(|(key, value)| entries.insert(key, value));
                }
                Ok(Value::from(()))
            }
            "setdefault" => {
                let (key, value): (Value, Option<Value>) = from_args(args)?;
                let key = frozen(state, &key, 0)?;
                let value = frozen(state, &value.unwrap_or_else(|| Value::from(())), 0)?;
                let mut entries = self.entries();
                if let Some((_, held)) = entries.by_key.get(&key) {
                    return Ok(held.clone());
                }
                entries.insert(key, value.clone());
                Ok(value)
            }
            "pop" => {
                let (key, default): (Value, Option<Value>) = from_args(args)?;
                let key = frozen(state, &key, 0)?;
                let removed = self.entries().by_key.remove(&key).map(|(_, value)| value);
                removed.or(default).ok_or_else(|| invalid(format!("dict.pop: no key {key}")))
            }
            "clear" => {
                let () = from_args(args)?;
                self.entries().by_key.clear();
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// What `namespace()` makes: its attributes can be set from the inside of loops.
#[derive(Debug, Default)]
struct Namespace(Mutex<BTreeMap<Arc<str>, Value>>);

impl Namespace {
    fn attributes(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.attributes().get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.attributes().keys().cloned().map(Value::from).collect())
    }
}

/// A namespace with the attributes of a map, and those given by name.
pub(super) fn namespace(state: &mut State, maps: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let namespace = Namespace::default();
    for map in maps.into_values() {
        if map.kind() != ValueKind::Map {
            let kind = map.kind();
            return Err(invalid(format!("namespace: a map or arguments by name are expected, not {kind}")));
        }
        for name in map.try_iter()? {
            let value = held(state, &map.get_item(&name)?)?;
            let Some(name) = name.as_str() else { continue };
            namespace.attributes().insert(name.into(), value);
        }
    }
    Ok(Value::from_object(namespace))
}

/// Sets an attribute of a namespace.
pub(super) fn assign(state: &mut State, object: &Value, name: &str, value: &Value) -> Result<Value, Error> {
    let Some(namespace) = object.downcast_object_ref::<Namespace>() else {
        return Err(invalid(format!("can only assign to namespaces, not {}", object.kind())));
    };
    let value = held(state, value)?;
    namespace.attributes().insert(name.into(), value);
    Ok(Value::from(()))
}

/// The map that a literal makes.
pub(super) fn dict(state: &mut State, values: Value) -> Result<Value, Error> {
    let pairs = pairs_of(state, &values)?;
    let mut entries = Entries::default();
    pairs.into_iter().for_each(|(key, value)| entries.insert(key, value));
    Ok(Value::from_object(Dict(Mutex::new(entries))))
}

/// Frozen keys and values of a map, or of a sequence of pairs.
fn pairs_of(state: &mut State, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let items: Vec<Value> = value.try_iter()?.collect();
    let is_map = value.kind() == ValueKind::Map;
    let mut pairs = Vec::with_capacity(items.len());
    for item in items {
        let (key, held) = match is_map {
            true => (item.clone(), value.get_item(&item)?),
            false => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
        };
        pairs.push((frozen(state, &key, 0)?, frozen(state, &held, 0)?));
    }
    Ok(pairs)
}

/// The list that a literal makes.
pub(super) fn list(state: &mut State, values: Value) -> Result<Value, Error> {
    let values: Vec<Value> = values.try_iter()?.collect();
    let values = values.iter().map(|value| frozen(state, value, 0)).collect::<Result<Vec<_>, _>>()?;
    Ok(Value::from_object(List(Mutex::new(values))))
}

/// A place as Python counts it.
fn place(at: i64, len: usize) -> i64 {
    if at < 0 { at.saturating_add(len as i64) } else { at }
}

/// Values that lists and maps have taken up so far.
#[derive(Debug, Default)]
struct Spent(usize);

/// Counts work of lists and maps, which the engine's fuel does not see.
fn spend(state: &mut State, values: usize) -> Result<(), Error> {
    let spent = state.get_or_insert_extension_with(Spent::default);
    spent.0 = spent.0.saturating_add(values);
    match spent.0 > MAX_VALUES {
        true => Err(invalid(format!("the template's lists and maps take up more than {MAX_VALUES} values"))),
        false => Ok(()),
    }
}

/// A value as a namespace holds it: the same one, unless it has a namespace in it.
fn held(state: &mut State, value: &Value) -> Result<Value, Error> {
    match holds_namespace(state, value, 0)? {
        true => frozen(state, value, 0),
        false => Ok(value.clone()),
    }
}

/// Values that were looked at so far.
#[derive(Debug, Default)]
struct Looks(usize);

/// Whether a value is a namespace, or has one in it. Errors: it is nested too deep, or too much was looked at.
fn holds_namespace(state: &mut State, value: &Value, depth: usize) -> Result<bool, Error> {
    let looks = state.get_or_insert_extension_with(Looks::default);
    looks.0 += 1;
    if looks.0 > MAX_LOOKS {
        return Err(invalid(format!("the template's namespaces take more than {MAX_LOOKS} values")));
    }
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value in a namespace is nested deeper than {MAX_DEPTH}")));
    }
    let is_map = match value.kind() {
        ValueKind::Map => true,
        ValueKind::Seq | ValueKind::Iterable => false,
        _ => return Ok(false),
    };
    if value.downcast_object_ref::<Namespace>().is_some() {
        return Ok(true);
    }
    for item in value.try_iter()? {
        let inside = if is_map { value.get_item(&item)? } else { item };
        if holds_namespace(state, &inside, depth + 1)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A value with every list and map that changes in it replaced by what it holds now.
fn frozen(state: &mut State, value: &Value, depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value in a list or map is nested deeper than {MAX_DEPTH}")));
    }
    spend(state, 1)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let values: Vec<Value> = value.try_iter()?.collect();
            values.iter().map(|value| frozen(state, value, depth + 1)).collect()
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter()?.collect();
            let pair = |key: Value| {
                let held = frozen(state, &value.get_item(&key)?, depth + 1)?;
                Ok((key, held))
            };
            keys.into_iter().map(pair).collect::<Result<Vec<(Value, Value)>, Error>>().map(Value::from_pairs)
        }
        _ => Ok(value.clone()),
    }
}
