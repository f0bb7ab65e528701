//! Shapes: an option's value has that of its default.
//!
//! In comes a value from the file or the text of a variable; out comes the value, or a [`LayerError`] that says which
//! shape it must have. Refused: to guess, as YAML does with `yes` and `007`.

use pve_imds_model::tap::plain_number;
use serde_json::Value;

use super::layers::{LayerError, variable};
use super::words::items;

/// A value from the file, if it has the shape of the option's default. `null` is "as if it were not there" nowhere:
/// it would hide a typo.
pub(super) fn shaped(key: &str, value: Value, like: &Value) -> Result<Value, LayerError> {
    let wrong = |expected| Err(LayerError::Shape { key: key.to_owned(), expected });
    match (like, value) {
        (Value::Bool(_), value @ Value::Bool(_)) | (Value::String(_), value @ Value::String(_)) => Ok(value),
        (Value::Array(_), Value::Array(items)) => {
            let list = items.into_iter().map(|item| listed(key, item));
            list.collect::<Result<_, _>>().map(Value::Array)
        }
        (Value::Bool(_), _) => wrong("true or false"),
        (Value::Array(_), _) => wrong("a list"),
        // YAML has read a number by now: what was written (007, 1.10) is lost.
        (_, Value::Number(_)) => wrong("text; put it in quotes"),
        _ => wrong("text"),
    }
}

fn listed(key: &str, item: Value) -> Result<Value, LayerError> {
    match (item, key == NUMBERS) {
        (Value::Number(number), true) if number.as_u64().is_some_and(|n| u32::try_from(n).is_ok()) => {
            Ok(Value::Number(number))
        }
        (value @ Value::String(_), false) => Ok(value),
        (_, true) => Err(LayerError::Shape { key: key.to_owned(), expected: "a list of numbers" }),
        (_, false) => Err(LayerError::Shape { key: key.to_owned(), expected: "a list of texts" }),
    }
}

/// The one list of numbers.
const NUMBERS: &str = "guests.exclude.vmids";

/// A value from a variable: lists by comma, the rest by the shape of the option's default.
pub(super) fn spelled(name: &str, text: &str, like: &Value) -> Result<Value, LayerError> {
    let wrong = |expected| LayerError::Shape { key: name.to_owned(), expected };
    match like {
        Value::Bool(_) => text.parse().map(Value::Bool).map_err(|_| wrong("true or false")),
        Value::Array(_) => {
            let items = items(text);
            if name == variable(NUMBERS) {
                let numbers = items.map(|item| plain_number(item).map(Value::from));
                let all = numbers.collect::<Option<_>>().map(Value::Array);
                all.ok_or_else(|| wrong("numbers without leading zeros, separated by commas"))
            } else {
                Ok(Value::Array(items.map(Value::from).collect()))
            }
        }
        _ => Ok(Value::String(text.to_owned())),
    }
}
