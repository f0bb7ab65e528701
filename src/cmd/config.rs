//! `config check` and `config show`.

use std::io::{Write, stderr, stdout};

use serde_json::Value;

use crate::config::{Loaded, Setting};

/// The configuration was loaded, so it can be run if there is something to read.
pub(super) fn check(loaded: &Loaded) -> anyhow::Result<()> {
    if let Some(doubt) = loaded.checked.tree()? {
        writeln!(stderr(), "warning: {doubt}")?;
    }
    let file = loaded
        .file
        .as_ref()
        .map_or_else(|| "no file; built-in values and the environment".into(), |file| file.display().to_string());
    writeln!(stdout(), "ok ({file})")?;
    Ok(())
}

/// `key: value  # source`, one option a line.
pub(super) fn show(loaded: &Loaded) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    let lines: Vec<(String, &str)> =
        loaded.layers.settings().map(|setting| (line(&setting), setting.source.word())).collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
    for (line, source) in lines {
        writeln!(out, "{line:width$}  # {source}")?;
    }
    Ok(())
}

/// Values are shown as JSON, which is YAML.
fn line(setting: &Setting) -> String {
    let Setting { key, value, .. } = setting;
    match value {
        Value::String(text)
            if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-{}".contains(&b)) =>
        {
            format!("{key}: {text}")
        }
        value => format!("{key}: {value}"),
    }
}
