//! Rules that the compiler does not know, written in those it knows, before the schemas inside are
//! walked.

use serde_json::{Map, Value, json};

use super::complement::Complement;
use super::walk::{Place, Walk};
use super::{
    COMPLEMENT_FUEL, MAX_DEPENDENCIES, MAX_WRITTEN_BYTES, TAGGED, UNSUPPORTED, Unenforced, document, names,
    one_of, unique,
};
use crate::grammar::GrammarError;

impl Walk<'_> {
    /// Writes rules that the compiler does not know in others.
    pub(super) fn expand(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        self.drop_without_effect(object);
        for keyword in UNSUPPORTED {
            let Some(value) = object.get(keyword).cloned() else { continue };
            if self.unenforced(keyword, value, "this keyword cannot be enforced")?.is_none() {
                object.shift_remove(keyword);
            }
        }
        if self.unenforced == Unenforced::Advice
            && let Some(reference) = object.get("$ref").and_then(Value::as_str)
            && self.document.target(reference).is_none()
            && !reference.starts_with(&format!("#/{TAGGED}/"))
        {
            object.shift_remove("$ref");
            self.advise("$ref");
        }
        self.rewrite(object, "not", |walk, object, value| {
            let other = walk.complement().of(value)?;
            unique::join(object, other);
            Ok(())
        })?;
        self.rewrite(object, "if", |walk, object, value| walk.conditional(object, value))?;
        if !object.contains_key("if") {
            object.shift_remove("then");
            object.shift_remove("else");
        }
        self.rewrite(object, "dependentRequired", |_, object, value| dependent(object, value))?;
        self.rewrite(object, "propertyNames", |walk, object, value| walk.names(object, value))?;
        if object.get("uniqueItems") == Some(&Value::Bool(true)) {
            object.shift_remove("uniqueItems");
            // Texts and numbers that come twice cannot be ruled out by a grammar.
            if !unique::expand(self.document, object) {
                self.advise("uniqueItems");
            }
        }
        self.rewrite_one_of(object)
    }

    /// Takes a rule out of a schema after `write` has put it into other keywords.
    fn rewrite(
        &mut self,
        object: &mut Map<String, Value>,
        keyword: &'static str,
        write: impl FnOnce(&mut Self, &mut Map<String, Value>, &Value) -> Result<(), String>,
    ) -> Result<(), GrammarError> {
        let Some(value) = object.shift_remove(keyword) else { return Ok(()) };
        let Err(why) = write(self, object, &value) else { return Ok(()) };
        let why = format!("it has no form that can be enforced: {why}");
        if let Some(value) = self.unenforced(keyword, value, &why)? {
            object.insert(keyword.into(), value);
        }
        Ok(())
    }

    fn complement(&mut self) -> Complement<'_, '_> {
        Complement { document: self.document, steps: self.steps, fuel: COMPLEMENT_FUEL }
    }

    /// `if` with `then` and `else`, as a choice of two.
    fn conditional(&mut self, object: &mut Map<String, Value>, condition: &Value) -> Result<(), String> {
        let other = self.complement().of(condition)?;
        let then = object.shift_remove("then").unwrap_or(true.into());
        let otherwise = object.shift_remove("else").unwrap_or(true.into());
        let ways = json!([{"allOf": [condition, then]}, {"allOf": [other, otherwise]}]);
        unique::join(object, json!({"anyOf": ways}));
        Ok(())
    }

    fn names(&mut self, object: &mut Map<String, Value>, rule: &Value) -> Result<(), String> {
        let mut changed = object.clone();
        names::expand(self.document, &mut changed, rule, self.steps)?;
        let patterns = changed.get("patternProperties").and_then(Value::as_object);
        if patterns.is_some_and(|patterns| patterns.keys().any(|key| key.len() > MAX_WRITTEN_BYTES)) {
            return Err("its pattern is too long".into());
        }
        self.written_patterns.extend(patterns.into_iter().flat_map(Map::keys).cloned());
        *object = changed;
        Ok(())
    }

    fn rewrite_one_of(&mut self, object: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let Some(Value::Array(branches)) = object.get("oneOf") else { return Ok(()) };
        let branches = branches.clone();
        let mut beside = object.clone();
        beside.shift_remove("oneOf");
        let found = one_of::disjoint(self.document, &beside.into(), &branches, self.steps);
        let ways = match found {
            Ok(found) => found.branches.into_iter().map(|branch| self.branch(branch)).collect(),
            Err(why) => match self.unenforced("oneOf", branches.into(), &why)? {
                Some(_) => return Ok(()),
                // As advice, any of the branches.
                None => object["oneOf"].as_array().cloned().unwrap_or_default(),
            },
        };
        // In its place: the order of the keywords is the order of the members.
        let ways = Value::Array(ways);
        let (keyword, rule) = match (object.contains_key("anyOf"), object.contains_key("allOf")) {
            (false, _) => ("anyOf", ways),
            (true, false) => ("allOf", json!([{"anyOf": ways}])),
            (true, true) => {
                object.shift_remove("oneOf");
                unique::join(object, json!({"anyOf": ways}));
                return Ok(());
            }
        };
        let renamed = |(key, value): (String, Value)| {
            if key == "oneOf" { (keyword.to_owned(), rule.clone()) } else { (key, value) }
        };
        *object = std::mem::take(object).into_iter().map(renamed).collect();
        Ok(())
    }

    /// The schema of a branch with all that is joined with it.
    fn branch(&mut self, branch: one_of::Branch) -> Value {
        let mut parts = Vec::new();
        match (&branch.tag, one_of::is_reference(&branch.schema).and_then(document::pointer)) {
            (Some(tag), Some(place)) => {
                let copy = (place, tag.clone());
                let known = self.tagged.iter().position(|known| *known == copy);
                let number = known.unwrap_or_else(|| {
                    self.tagged.push(copy);
                    self.tagged.len() - 1
                });
                parts.push(json!({"$ref": format!("#/{TAGGED}/{number}")}));
            }
            (Some(tag), None) => {
                let mut schema = branch.schema;
                require(&mut schema, tag);
                parts.push(schema);
            }
            (None, _) => parts.push(branch.schema),
        }
        parts.extend(branch.with);
        if parts.len() == 1 { parts.remove(0) } else { json!({"allOf": parts}) }
    }

    /// Adds the copies of schemas whose tag is required. They may have such branches in turn.
    pub(super) fn copies(&mut self, root: &mut Value) -> Result<(), GrammarError> {
        let mut copies = Vec::new();
        while let Some((place, tag)) = self.tagged.get(copies.len()).cloned() {
            let mut copy = self.document.0.pointer(&place).cloned().unwrap_or(true.into());
            require(&mut copy, &tag);
            self.path = place.split('/').skip(1).map(str::to_owned).collect();
            self.value(&mut copy, Place::Schema, 1)?;
            copies.push(copy);
        }
        if let Value::Object(root) = root
            && !copies.is_empty()
        {
            root.insert(TAGGED.into(), copies.into());
        }
        Ok(())
    }

    /// Leaves out keywords that say nothing as they stand.
    fn drop_without_effect(&self, object: &mut Map<String, Value>) {
        let has = |object: &Map<String, Value>, key: &str| object.contains_key(key);
        if !has(object, "contains") {
            object.shift_remove("minContains");
            object.shift_remove("maxContains");
        }
        if !has(object, "if") {
            object.shift_remove("then");
            object.shift_remove("else");
        } else if !has(object, "then") && !has(object, "else") {
            object.shift_remove("if");
        }
        for keyword in ["$dynamicAnchor", "$recursiveAnchor"] {
            object.shift_remove(keyword);
        }
        for keyword in ["unevaluatedItems", "unevaluatedProperties"] {
            if object.get(keyword).is_some_and(document::is_any) {
                object.shift_remove(keyword);
            }
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            if object.get(keyword).and_then(Value::as_object).is_some_and(Map::is_empty) {
                object.shift_remove(keyword);
            }
        }
        // No rule; the compiler refuses the keyword whatever its value.
        if object.get("uniqueItems") == Some(&Value::Bool(false)) {
            object.shift_remove("uniqueItems");
        }
    }
}

/// Makes a member one that an object must have.
fn require(schema: &mut Value, name: &str) {
    let Value::Object(object) = schema else { return };
    if !document::types(&[object]).contains(&"object") {
        *schema = false.into();
        return;
    }
    object.insert("type".into(), "object".into());
    match object.get_mut("required") {
        Some(Value::Array(names)) => {
            if !names.iter().any(|known| known == name) {
                names.push(name.into());
            }
        }
        _ => drop(object.insert("required".into(), json!([name]))),
    }
}

/// `dependentRequired`: for each member, none of it, or those that it needs.
fn dependent(object: &mut Map<String, Value>, rule: &Value) -> Result<(), String> {
    let rule = rule.as_object().ok_or("it is no object")?;
    if rule.len() > MAX_DEPENDENCIES {
        return Err(format!("it names more than {MAX_DEPENDENCIES} members"));
    }
    for (name, needed) in rule {
        unique::join(object, json!({"anyOf": [{"properties": {name: false}}, {"required": needed}]}));
    }
    Ok(())
}
