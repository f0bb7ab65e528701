//! What stands in the repository, as values: the crates with their direct dependencies, and the Rust sources.
//!
//! In comes the working tree (`cargo metadata` without the network, and the files); out go facts for the rules to judge.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One of our crates.
#[derive(Debug)]
pub(crate) struct Crate {
    /// Package name.
    pub(crate) name: String,
    /// Its directory below the repository; empty for the root package.
    pub(crate) dir: PathBuf,
    /// Edition and licence, as Cargo sees them.
    pub(crate) edition: String,
    pub(crate) license: String,
    /// What it depends on directly.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A direct dependency.
#[derive(Debug)]
pub(crate) struct Dependency {
    /// Package name, not an alias.
    pub(crate) package: String,
    /// The name the code calls it by.
    pub(crate) ident: String,
    /// Only for tests.
    pub(crate) dev: bool,
}

impl Crate {
    /// The packages it is built from (`dev: false`) or tested with as well (`dev: true`).
    pub(crate) fn uses(&self, dev: bool) -> BTreeSet<&str> {
        self.dependencies.iter().filter(|dep| dep.dev == dev).map(|dep| dep.package.as_str()).collect()
    }

    /// Its manifest's text.
    pub(crate) fn manifest(&self) -> String {
        read(&root().join(&self.dir).join("Cargo.toml"))
    }

    /// Its sources below `part` (`src`, `tests` …): path below the repository, and text.
    pub(crate) fn sources(&self, part: &str) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        walk(&root().join(&self.dir).join(part), &mut found);
        found.sort();
        found.into_iter().map(|path| (path.strip_prefix(root()).unwrap().to_owned(), read(&path))).collect()
    }
}

/// Every crate of the workspace.
pub(crate) fn crates() -> &'static [Crate] {
    static CRATES: OnceLock<Vec<Crate>> = OnceLock::new();
    CRATES.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        metadata["packages"].as_array().unwrap().iter().map(package).collect()
    })
}

fn package(value: &Value) -> Crate {
    let manifest = PathBuf::from(text(&value["manifest_path"]));
    Crate {
        name: text(&value["name"]),
        dir: manifest.parent().unwrap().strip_prefix(root()).unwrap().to_owned(),
        edition: text(&value["edition"]),
        license: text(&value["license"]),
        dependencies: value["dependencies"].as_array().unwrap().iter().map(dependency).collect(),
    }
}

fn dependency(value: &Value) -> Dependency {
    let package = text(&value["name"]);
    let ident = value["rename"].as_str().unwrap_or(&package).replace('-', "_");
    Dependency { ident, dev: value["kind"].as_str() == Some("dev"), package }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Rust files below `dir`; nothing when it does not exist.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether a line of code (comments aside) has this word: `unsafe` is not in `unsafe_code`.
pub(crate) fn says(source: &str, word: &str) -> bool {
    source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .any(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|token| token == word))
}
