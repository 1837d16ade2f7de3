//! Whether what a command gives out as JSON is what `docs/reference/schema` says.
//!
//! Knows the part of JSON Schema that `scripts/schema.py` writes, and panics at any other word:
//! what is not understood is not taken for right.

use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// Words that say nothing of a value.
const REMARKS: [&str; 4] = ["$schema", "$defs", "title", "description"];

/// Checks a value that a command has given out; answers it.
///
/// # Panics
/// The schema of this name (`keep-events`) does not describe the value: the sentence says where.
pub fn described(name: &str, value: Value) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/schema").join(name);
    let path = path.with_extension("json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let schema: Value = serde_json::from_str(&text).expect("a schema is JSON");
    if let Some(fault) = fault(&schema, &value) {
        panic!("docs/reference/schema/{name}.json does not describe what was given out: {fault}\n{value}");
    }
    value
}

/// What of the value is not as the schema says, in a sentence; `None` if all is.
///
/// # Panics
/// The schema has a word that is not known here.
pub fn fault(schema: &Value, value: &Value) -> Option<String> {
    judge(schema, schema, value, "$").err()
}

fn judge(whole: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let rules = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Bool(false) => return Err(format!("{at} may not be there")),
        Value::Object(rules) => rules,
        other => panic!("no schema: {other}"),
    };
    let wrong = |what: String| Err(format!("{at} is {value}: {what}"));
    for (word, rule) in rules {
        match word.as_str() {
            "$ref" => {
                let path = rule.as_str().and_then(|path| path.strip_prefix('#')).expect("a reference in this file");
                let target = whole.pointer(path).unwrap_or_else(|| panic!("the schema has no {path}"));
                judge(whole, target, value, at)?;
            }
            "type" if !is_of(rule.as_str().expect("one type"), value) => return wrong(format!("not of type {rule}")),
            "const" if rule != value => return wrong(format!("not {rule}")),
            "enum" if !list(rule).contains(value) => return wrong(format!("none of {rule}")),
            "minimum" if value.as_f64() < rule.as_f64() => return wrong(format!("less than {rule}")),
            "maximum" if value.as_f64() > rule.as_f64() => return wrong(format!("more than {rule}")),
            "anyOf" if list(rule).iter().all(|one| judge(whole, one, value, at).is_err()) => {
                return wrong("none of the forms that it may have".to_owned());
            }
            "oneOf" => one_of(whole, list(rule), value, at)?,
            "properties" | "required" | "additionalProperties" if value.is_object() => fields(whole, rules, value, at)?,
            "items" | "prefixItems" | "minItems" if value.is_array() => elements(whole, rules, value, at)?,
            "type" | "const" | "enum" | "minimum" | "maximum" | "anyOf" | "properties" | "required" => {}
            "additionalProperties" | "items" | "prefixItems" | "minItems" => {}
            remark if REMARKS.contains(&remark) => {}
            unknown => panic!("the schema says {unknown}, which is not known here"),
        }
    }
    Ok(())
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        other => panic!("the schema says type {other}, which is not known here"),
    }
}

fn list(rule: &Value) -> &[Value] {
    rule.as_array().expect("a list")
}

/// Exactly one fits. Of events only the one of this name is judged, for its sentence.
fn one_of(whole: &Value, forms: &[Value], value: &Value, at: &str) -> Result<(), String> {
    let is_named = |form: &&Value| form.pointer("/properties/event/const").is_some_and(|name| *name == value["event"]);
    if let Some(form) = forms.iter().find(is_named) {
        return judge(whole, form, value, at);
    }
    match forms.iter().filter(|form| judge(whole, form, value, at).is_ok()).count() {
        1 => Ok(()),
        count => Err(format!("{at} has {count} of the forms that it has one of")),
    }
}

fn fields(whole: &Value, rules: &Map<String, Value>, value: &Value, at: &str) -> Result<(), String> {
    let empty = Map::new();
    let known = rules.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    for name in rules.get("required").map_or(&[][..], list) {
        let name = name.as_str().expect("a name");
        if value.get(name).is_none() {
            return Err(format!("{at} has no {name}"));
        }
    }
    for (name, field) in value.as_object().expect("an object") {
        let at = format!("{at}.{name}");
        match (known.get(name), rules.get("additionalProperties")) {
            (Some(rule), _) | (None, Some(rule)) => judge(whole, rule, field, &at)?,
            (None, None) => {}
        }
    }
    Ok(())
}

fn elements(whole: &Value, rules: &Map<String, Value>, value: &Value, at: &str) -> Result<(), String> {
    let elements = list(value);
    let first = rules.get("prefixItems").map_or(&[][..], list);
    if rules.get("minItems").and_then(Value::as_u64).is_some_and(|least| (elements.len() as u64) < least) {
        return Err(format!("{at} has {} elements only", elements.len()));
    }
    for (nth, element) in elements.iter().enumerate() {
        if let Some(rule) = first.get(nth).or(rules.get("items")) {
            judge(whole, rule, element, &format!("{at}[{nth}]"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "oneOf": [{
                "type": "object",
                "properties": {
                    "event": {"const": "a"},
                    "pid": {"type": "integer", "minimum": 0, "maximum": 9},
                    "who": {"anyOf": [{"$ref": "#/$defs/Who"}, {"type": "null"}]},
                    "pair": {
                        "type": "array",
                        "prefixItems": [{"type": "number"}, {"type": "boolean"}],
                        "items": false,
                        "minItems": 2
                    },
                    "all": {"type": "array", "items": {"type": "string", "description": "a remark"}}
                },
                "required": ["event", "pid"],
                "additionalProperties": false
            }, {
                "type": "object",
                "properties": {"event": {"const": "b"}},
                "required": ["event"],
                "additionalProperties": false
            }],
            "$defs": {"Who": {"enum": ["me", "you"]}}
        })
    }

    #[test]
    fn what_fits_has_no_fault() {
        for good in [
            json!({"event": "b"}),
            json!({"event": "a", "pid": 0, "who": null, "pair": [1.5, true], "all": []}),
            json!({"event": "a", "pid": 9, "who": "me", "pair": [1, false], "all": ["x", "y"]}),
        ] {
            assert_eq!(fault(&schema(), &good), None, "{good}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (bad, part) in [
            (json!({"event": "a"}), "$ has no pid"),
            (json!({"event": "a", "pid": 1, "new": 2}), "$.new may not be there"),
            (json!({"event": "a", "pid": 1.5}), "not of type"),
            (json!({"event": "a", "pid": -1}), "less than 0"),
            (json!({"event": "a", "pid": 10}), "more than 9"),
            (json!({"event": "a", "pid": 1, "who": "they"}), "$.who is"),
            (json!({"event": "a", "pid": 1, "pair": [1]}), "has 1 elements only"),
            (json!({"event": "a", "pid": 1, "pair": [1, true, 2]}), "$.pair[2] may not be there"),
            (json!({"event": "a", "pid": 1, "all": ["x", 2]}), "$.all[1] is 2"),
            (json!({"event": "c"}), "0 of the forms"),
            (json!([]), "0 of the forms"),
        ] {
            assert!(fault(&schema(), &bad).expect("a fault").contains(part), "{bad}: {:?}", fault(&schema(), &bad));
        }
    }

    #[test]
    #[should_panic(expected = "the schema says pattern")]
    fn an_unknown_word_is_not_passed_over() {
        fault(&json!({"pattern": "x"}), &json!("y"));
    }
}
